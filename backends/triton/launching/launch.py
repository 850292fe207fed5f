"""What every launch depends on: dtypes as Triton names them, alignment, and the current device."""

from __future__ import annotations

import triton.language as tl
from triton.runtime import driver

from einops_fast.backends.capabilities import EARLY, HOPPER
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.cost import is_integer

_NAMES = "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"

DTYPES = {name: getattr(tl, name) for name in _NAMES} | {"complex64": tl.float32, "complex128": tl.float64}
"""Triton's types of the dtypes that kernels take; for complex numbers, the type of their two parts."""

ALIGNMENT = 16
"""Bytes: a pointer that isn't a multiple gets a kernel of its own, and the hardware copies no box from there."""


def accumulator(dtype: str) -> str:
    """Return the dtype that sums are kept in. Those of integers wrap around, and what is cut off is the same."""
    if is_integer(dtype):
        return "int64" if dtype == "int64" else "int32"
    return dtype if dtype in ("float64", "complex64", "complex128") else "float32"


def spelled(dtype: str) -> str:
    """Spell a type as Triton's compiler does; that of an array's address begins with an asterisk."""
    if dtype == "bool":
        return "u1"
    return str((DTYPES.get(dtype) or getattr(tl, dtype)).name.replace("int", "i").replace("ui", "u"))


def _capability() -> tuple[int, int]:
    """Return the compute capability of the current device; (0, 0) if it isn't NVIDIA's, or there is none."""
    if interpreted():
        return 0, 0
    target = driver.active.get_current_target()
    return divmod(int(target.arch), 10) if target.backend == "cuda" else (0, 0)


def follow_early() -> bool:
    """Whether the current device lets a kernel begin while the one before it ends: Hopper and later."""
    return EARLY.has(_capability())


def copies_boxes() -> bool:
    """Whether the current device is one that the kernels with boxes are for: Hopper."""
    return HOPPER.has(_capability())
