"""What times depend on beside the code: the device and its clocks, libraries down to their commits, our settings."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import einops_fast
from einops_fast.profiles.frameworks import Framework, cpu_name, thread_environment
from einops_fast.runtime.background import processors

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
    "cupy-cuda12x", "cupy-cuda13x", "liger-kernel", "quack-kernels", "transformers",
)  # fmt: skip

# Variables of others that change what is run.
SETTINGS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TRITON_INTERPRET", "MXNET_SUBGRAPH_BACKEND")


def versions(framework: Framework) -> dict[str, str]:
    """Return versions of Python and of every library that has a say in the times."""
    found = {"python": platform.python_version(), "einops_fast": einops_fast.__version__}
    for package in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return {**found, **framework.versions()}


def environment(framework: Framework) -> dict[str, str]:
    """Return everything else, by name; what can't be found out is left out."""
    clocks = [float(value) for value in _values("/proc/cpuinfo", "cpu MHz")]
    folder = Path(einops_fast.__file__).resolve().parent
    commit = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    memory = _values("/proc/meminfo", "MemTotal")
    found = {
        "system": platform.platform(),
        "CPU": cpu_name(),
        "CPUs": f"{processors()} usable of {os.cpu_count()}",
        "threads": str(framework.threads),
        "CPU clock": f"{min(clocks):.0f}–{max(clocks):.0f} MHz" if clocks else "",
        "CPU governor": "".join(_lines("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")).strip(),
        "memory": f"{int(memory[0].split()[0]) / 2**20:.0f} GiB" if memory else "",
        "einops_fast commit": "" if "site-packages" in folder.parts else _told(commit),
    }
    found |= _torch(framework) if framework.name == "torch" else {}
    if framework.device == "gpu":
        query = f"--query-gpu={','.join(GPU_QUERY.values())}"
        told = _told(["nvidia-smi", "--id=0", query, "--format=csv,noheader"]).partition("\n")[0]
        found |= dict(zip(GPU_QUERY, map(str.strip, told.split(",")), strict=False))
    # Where the cache is makes no difference for times.
    ours = (name for name in sorted(os.environ) if name.startswith("EINOPS_FAST_") and name != "EINOPS_FAST_CACHE_DIR")
    found |= {name: os.environ.get(name, "") for name in (*ours, *thread_environment(1), *SETTINGS)}
    return {name: value for name, value in found.items() if value}


def _torch(framework: Any) -> dict[str, str]:
    torch = framework.torch
    found = {"torch commit": torch.version.git_version, "float32 products": torch.get_float32_matmul_precision()}
    if framework.device == "gpu":
        found["CUDA"] = torch.version.cuda
        found["compute capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["multiprocessors"] = torch.cuda.get_device_properties(0).multi_processor_count
        found["cuDNN"] = torch.backends.cudnn.version()
    return {name: str(value) for name, value in found.items()}


def _told(command: Sequence[str]) -> str:
    """Return what a command prints; nothing if it can't be run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _values(path: str, name: str) -> list[str]:
    """Return what stands behind a name in the lines of a file of Linux's."""
    return [line.partition(":")[2].strip() for line in _lines(path) if line.startswith(name)]


def _lines(path: str) -> list[str]:
    with suppress(OSError), open(path, encoding="utf-8") as file:
        return file.readlines()
    return []
