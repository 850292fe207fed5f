"""Compiling and launching the kernel that has boxes copied by the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from einops_fast.backends.triton.launch import ALIGNMENT, DTYPES, interpreted, spelled
from einops_fast.backends.triton.memory import Memory
from einops_fast.backends.triton.tma_contraction import box_kernel
from einops_fast.backends.triton.tma_tiles import BoxTiling

__all__ = ["BoxKernel", "Descriptor", "copies_boxes", "descriptor_type"]

_WARPS = 4
"""Warps of the first warp group."""


def copies_boxes() -> bool:
    """Whether the current device is one that the kernel is for: Hopper."""
    if interpreted():
        return False
    target = driver.active.get_current_target()
    return target.backend == "cuda" and int(target.arch) // 10 == 9


class Descriptor:
    """An array as Triton's launcher describes it to the hardware.

    Args:
        shape: of at most five axes.
        strides: in elements; the last one is 1, the others are multiples of 16 bytes.
    """

    padding = "zero"
    round_f32_to_tf32 = False

    def __init__(self, shape: list[int], strides: list[int], pointer: int = 0) -> None:
        self.shape, self.strides, self._pointer = shape, strides, pointer

    @property
    def base(self) -> Descriptor:
        """What Triton asks the address of."""
        return self

    def data_ptr(self) -> int:
        """The address."""
        return self._pointer

    def at(self, pointer: int) -> Descriptor:
        """The same of an array at another address."""
        return Descriptor(self.shape, self.strides, pointer)


def descriptor_type(block: list[int], dtype: str) -> str:
    """How Triton writes the type of a descriptor whose boxes have this shape."""
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[dtype])
    return f"tensordesc<{spelled(dtype)}{block},{layout!r}>"


class BoxKernel:
    """A kernel for one tiling, compiled when it is launched first.

    Args:
        tiling: what the kernel is specialised for.
        dtype: of the operands and the result.
        units: multiprocessors of the device.
    """

    def __init__(self, tiling: BoxTiling, dtype: str, units: int) -> None:
        self.tiling = tiling
        self._programs = min(tiling.total, units)
        views = {"left": tiling.left, "right": tiling.right, "out": tiling.out_piece}
        self._descriptors = [
            Descriptor([dim.size for dim in view.dims], [dim.stride for dim in view.dims]) for view in views.values()
        ]
        views |= {"before": tiling.out_piece, "right_rest": tiling.right_rest}
        views |= {"out_rest": tiling.out_rest, "before_rest": tiling.out_rest}
        self._types = {name: descriptor_type(view.block, dtype) for name, view in views.items()}
        self._types["bias"] = f"*{DTYPES[dtype].name}"
        self._compiled: Any = None

    def launch(self, memory: Memory, device: int, operands: Sequence[Any], bias: Any, out: Any, before: Any) -> None:
        """Queue the kernel on the framework's stream of the device, which is the current one.

        Addresses are multiples of 16 bytes. Without a bias that is ``None``; ``before`` is ``out`` if nothing is kept.
        """
        compiled = self._compiled or self.compile()
        left, right, result = (
            descriptor.at(memory.pointer(array))
            for descriptor, array in zip(self._descriptors, (*operands, out), strict=True)
        )
        kept = result if before is out else result.at(memory.pointer(before))
        third = memory.pointer(out if bias is None else bias)
        compiled.run(
            self._programs, 1, 1, memory.stream(device), compiled.function, compiled.packed_metadata,
            None, None, None, left, right, result, kept, right, result, kept, third, self.tiling,
        )  # fmt: skip

    def compile(self) -> Any:
        """Compile for the current device, or take the kernel from Triton's own cache."""
        aligned = {(list(self._types).index("bias"),): [["tt.divisibility", ALIGNMENT]]}
        types = {**self._types, "tiling": "constexpr"}
        source = GluonASTSource(box_kernel, types, {"tiling": self.tiling}, aligned)
        options = {"num_warps": _WARPS}
        if self.tiling.registers is not None:
            options["maxnreg"] = self.tiling.registers
        compiled = triton.compile(source, target=driver.active.get_current_target(), options=options)
        _ = compiled.run  # loads it on the device, which may fail
        self._compiled = compiled
        return compiled
