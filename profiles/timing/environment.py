"""What times depend on beside the code: the device and its clocks, libraries down to their commits, our settings."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import einops_fast
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.timing.processors import available_threads, cpu_name, thread_environment

__all__ = ["environment", "versions"]

# What nvidia-smi is asked.
GPU_QUERY = {
    "driver": "driver_version",
    "GPU memory": "memory.total",
    "clock now": "clocks.sm",
    "clock at most": "clocks.max.sm",
    "memory clock": "clocks.mem",
    "power limit": "power.limit",
    "temperature": "temperature.gpu",
    "persistence mode": "persistence_mode",
    "ECC": "ecc.mode.current",
}

LIBRARIES = (
    "numpy", "opt_einsum", "nvidia-cutlass-dsl", "nvidia-cublas", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "liger-kernel", "quack-kernels", "transformers",
)  # fmt: skip

# Variables of others that change what is run.
SETTINGS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TRITON_INTERPRET", "MXNET_SUBGRAPH_BACKEND")


def versions(framework: Framework) -> dict[str, str]:
    """Versions of Python and of every library that has a say in the times."""
    found = {"python": platform.python_version(), "einops_fast": einops_fast.__version__}
    for package in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return {**found, **framework.versions()}


def environment(framework: Framework) -> dict[str, str]:
    """Everything else, by name; what can't be found out is left out."""
    found = {
        "system": platform.platform(),
        "CPU": cpu_name(),
        "CPUs": f"{available_threads()} usable of {os.cpu_count()}",
        "threads": str(framework.threads),
        "CPU clock": _cpu_clock(),
        "CPU governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": _memory(),
        "einops_fast commit": _commit(Path(einops_fast.__file__).resolve().parent),
    }
    if framework.name == "torch":
        found |= _torch(framework)
    if framework.name == "mxnet":
        found |= _mxnet(framework)
    if framework.device == "gpu":
        found |= _gpu()
    # Where the cache is makes no difference for times.
    ours = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("EINOPS_FAST_") and name != "EINOPS_FAST_CACHE_DIR"
    }
    theirs = {name: os.environ[name] for name in (*thread_environment(1), *SETTINGS) if name in os.environ}
    return {name: value for name, value in {**found, **ours, **theirs}.items() if value}


def _torch(framework: Any) -> dict[str, str]:
    torch = framework.torch
    found = {
        "torch commit": str(torch.version.git_version),
        "float32 products": str(torch.get_float32_matmul_precision()),
    }
    if framework.device == "gpu":
        found["CUDA"] = str(torch.version.cuda)
        found["compute capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["multiprocessors"] = str(torch.cuda.get_device_properties(0).multi_processor_count)
        with suppress(Exception):
            found["cuDNN"] = str(torch.backends.cudnn.version())
    return found


def _mxnet(framework: Any) -> dict[str, str]:
    with suppress(Exception):
        features = framework.mx.runtime.Features()
        return {"MXNet features": ", ".join(name for name, feature in features.items() if feature.enabled)}
    return {}


def _gpu() -> dict[str, str]:
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(GPU_QUERY.values())}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.splitlines()[0].split(",")] if answer.strip() else []
    return dict(zip(GPU_QUERY, values, strict=False))


def _cpu_clock() -> str:
    clocks = [float(line.split(":")[1]) for line in _lines("/proc/cpuinfo") if line.startswith("cpu MHz")]
    return f"{min(clocks):.0f}–{max(clocks):.0f} MHz" if clocks else ""


def _memory() -> str:
    total = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "")
    return f"{int(total) / 2**20:.0f} GiB" if total else ""


def _commit(folder: Path) -> str:
    """The commit of a checkout, and whether files differ from it; nothing for an installed package."""
    try:
        told = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    tracked = "site-packages" not in folder.parts
    return told.stdout.strip() if tracked and told.returncode == 0 else ""


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: str) -> list[str]:
    if sys.platform != "linux":
        return []
    try:
        with open(path, encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []
