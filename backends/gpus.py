"""What known GPUs reach, for the cost model, and which driver they have."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from einops_fast.planning.cost import Ceilings

__all__ = ["driver_version", "gpu_ceilings"]


def _gpu(bandwidth: float, half: float, single: float, double: float, units: int) -> Ceilings:
    flops = {"float16": half, "bfloat16": half, "float32": single, "float64": double}
    return Ceilings(
        bandwidth,
        # As measured for copies that permute axes; where another one becomes the fastest, they read whole lines
        # for single elements.
        runs=bandwidth / 2.7,
        gather=bandwidth / 7,
        flops=flops,
        call=4e-6,
        # A loop of small GEMMs is bound by what the host needs to launch one.
        again=1e-5,
        item=0.0,
        broadcast=bandwidth / 2.5,
        tile=0.0,
        depth=48.0,
        blocks={"float16": 128, "bfloat16": 128, "float32": 32, "float64": 32},
        dots=dict.fromkeys(flops, 8e10),
        dot_kernels=frozenset(flops),
        units=units,
        overlaps=True,
    )


_GPUS = {
    "H200": _gpu(4.2e12, 7.0e14, 5.0e13, 5.0e13, 132),
    "H100": _gpu(3.0e12, 7.0e14, 5.0e13, 5.0e13, 132),
    "A100": _gpu(1.4e12, 2.5e14, 1.9e13, 1.8e13, 108),
}


def gpu_ceilings(name: str) -> Ceilings:
    """Ceilings of the GPU of this name; one that isn't known counts as an A100."""
    return next((found for key, found in _GPUS.items() if key in name), _GPUS["A100"])


@lru_cache(maxsize=1)
def driver_version() -> str:
    """Version of NVIDIA's driver, or of the CUDA that it is for where it doesn't tell its own."""
    with suppress(OSError):
        told = re.search(r"\b\d+(\.\d+)+\b", Path("/proc/driver/nvidia/version").read_text("utf-8"))
        if told:
            return told[0]
    version = ctypes.c_int(0)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)
