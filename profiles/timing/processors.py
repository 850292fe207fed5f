"""The processors of this machine, asked without importing a framework."""

from __future__ import annotations

import platform

__all__ = ["cpu_name", "thread_environment"]


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables that give any framework ``threads`` threads; read when it is imported."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def cpu_name() -> str:
    """The CPU, as its maker calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
