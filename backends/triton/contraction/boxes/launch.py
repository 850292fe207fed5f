"""Compiling and launching the kernel that has boxes copied by the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.boxes.kernel import box_kernel
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.launching.compiling import compiling
from einops_fast.backends.triton.launching.launch import ALIGNMENT, DTYPES, interpreted, spelled
from einops_fast.backends.triton.launching.mapped_launch import MappedLaunch

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
        piece, rest = tiling.leaving
        views = {"left": tiling.left, "right": tiling.right, "out": piece}
        left, right, out = (
            Descriptor([dim.size for dim in view.dims], [dim.stride for dim in view.dims]) for view in views.values()
        )
        self._descriptors = left, right, out, out, right, out, out, None, None
        views |= {"before": piece, "right_rest": tiling.right_rest, "out_rest": rest, "before_rest": rest}
        self._types = {name: descriptor_type(view.block, dtype) for name, view in views.items()}
        written = DTYPES[dtype if tiling.split == 1 else "float32"]
        self._types |= {"third": f"*{DTYPES[dtype].name}", "written": f"*{written.name}"}
        self._compiled: Any = None
        self._launch: MappedLaunch | None = None

    def launch(self, memory: Memory, device: int, operands: Sequence[Any], third: Any, out: Any, before: Any) -> None:
        """Queue the kernel on the framework's stream of the device, which is the current one.

        Addresses are multiples of 16 bytes. Without a bias or a factor, ``third`` is ``None``; ``before`` is ``out`` if
        nothing is kept.
        Where the steps are cut into parts, ``out`` is for the sums of all of them.
        """
        launch = self._launch
        if launch is None:
            compiled = self._compiled or self.compile()
            self._launch = launch = MappedLaunch(compiled, self._programs, self._descriptors, (self.tiling,))
        left, right, written = map(memory.pointer, (*operands, out))
        result = left if self.tiling.by_threads else written
        kept = result if before is out else memory.pointer(before)
        more = written if third is None else memory.pointer(third)
        addresses = (left, right, result, kept, right, result, kept, more, written)
        stream = memory.stream(device)
        if not launch.again(stream, addresses):
            launch(stream, addresses)

    def compile(self, aligned: bool = True) -> Any:
        """Compile for the current device, or take the kernel from Triton's own cache; addresses have to be aligned."""
        hints = {(list(self._types).index(name),): [["tt.divisibility", ALIGNMENT]] for name in ("third", "written")}
        types = {**self._types, "tiling": "constexpr"}
        source = GluonASTSource(box_kernel, types, {"tiling": self.tiling}, hints)
        options: dict[str, Any] = {"num_warps": _WARPS}
        if self.tiling.registers is not None:
            options["maxnreg"] = self.tiling.registers
        if self.tiling.follows:
            options["launch_pdl"] = True
        with compiling():
            compiled = triton.compile(source, target=driver.active.get_current_target(), options=options)
        _ = compiled.run  # loads it on the device, which may fail
        self._compiled = compiled
        return compiled
