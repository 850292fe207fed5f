"""The kernels of fused steps as the launcher takes them: arrays, constants and options by the kind of tiling."""

from __future__ import annotations

from typing import Any

from einops_fast.backends.triton.contraction.boxes.kernel import box_kernel
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling, View
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling, chain_kernel
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling, reduce_kernel
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling, contract_kernel
from einops_fast.backends.triton.contraction.threads.kernel import fma_kernel
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.device.generic import generic
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.backends.triton.launching.launch import DTYPES, accumulator, interpreted
from einops_fast.planning.cost import ITEM_SIZES, is_complex
from einops_fast.planning.layout import VECTOR

__all__ = ["GENERIC", "BoxKernel", "Kernel"]

_KERNELS = {
    ReductionTiling: reduce_kernel,
    ChainTiling: chain_kernel,
    ContractionTiling: contract_kernel,
    FmaTiling: fma_kernel,
}

GENERIC = ContractionTiling, ReductionTiling
"""Tilings of the kernels that may be told sizes and strides when they run."""

_WARPS = 4
"""Warps of the first warp group, where boxes are copied."""


def _order(tiling: BoxTiling | ContractionTiling, swapped: bool) -> tuple[int, ...]:
    """Return where left, right, a third array, the result and kept sums are in a call, or what is in their place."""
    epilogue = tiling.epilogue
    third = tiling.factored or (epilogue is not None and epilogue.bias is not None)
    out = 2 + third
    return int(swapped), 1 - swapped, 2, out, out + (epilogue is not None and epilogue.keeps)


class Kernel(DeclaredCall):
    """A kernel that takes addresses, for one tiling and for operands and a result of these dtypes.

    Where it is ``told`` sizes and strides when it runs, one is compiled for many. The second operand of a call is the
    left one if they are ``swapped``.
    """

    def __init__(self, tiling: Any, dtype: str, result: str, swapped: bool = False, told: bool = False) -> None:
        self.tiling = tiling
        operand, out = Array(dtype), Array(result)
        pattern, numbers = tiling, None
        if told:
            in_chunks = dtype == "float32" and isinstance(tiling, ContractionTiling) and tiling.precision == "ieee"
            pattern, numbers = generic(tiling, VECTOR // ITEM_SIZES[dtype], in_chunks)
        constants: dict[str, Any] = {"tiling": pattern, "acc_type": DTYPES[accumulator(dtype)]}
        if isinstance(tiling, ReductionTiling):
            constants["parts"] = 2 if is_complex(dtype) else 1
        else:
            constants["upcast"] = interpreted() and dtype == "bfloat16"
        arrays: tuple[Any, ...] = operand, operand, operand, out, out
        order: tuple[Any, ...]
        if isinstance(tiling, ContractionTiling):
            order = _order(tiling, swapped)
        else:
            arrays, order = ((operand,) * tiling.operands, out), (tuple(range(tiling.operands)), tiling.operands)
        options: dict[str, Any] = {"num_warps": tiling.warps, "num_stages": tiling.stages}
        if isinstance(tiling, FmaTiling):
            options |= tiling.options
        if tiling.follows:
            options["launch_pdl"] = True
        tail = (numbers,) if type(tiling) in GENERIC else ()
        super().__init__(_KERNELS[type(tiling)], tiling.grid[:2], arrays, tail, constants, options, order=order)


class BoxKernel(DeclaredCall):
    """The kernel that has boxes copied by the hardware, for one tiling and a device of so many multiprocessors.

    Where the steps are cut into parts, the result is for the sums of all of them.
    """

    def __init__(self, tiling: BoxTiling, dtype: str, units: int, swapped: bool = False) -> None:
        self.tiling = tiling
        piece, rest = tiling.leaving

        def seen(view: View) -> Array:
            sizes, strides = tuple([dim.size for dim in view.dims]), tuple([dim.stride for dim in view.dims])
            return Array(dtype, sizes, strides, tuple(view.block))

        views = tiling.left, tiling.right, piece, piece, tiling.right_rest, rest, rest
        arrays = (*map(seen, views), Array(dtype), Array(dtype if tiling.split == 1 else "float32"))
        left, right, third, out, kept = _order(tiling, swapped)
        # Where threads write the result, the hardware gets any array in its place, and writes nothing.
        result, before = (left, left) if tiling.by_threads else (out, kept)
        order = left, right, result, before, right, result, before, third, out
        options: dict[str, Any] = {"num_warps": _WARPS}
        if tiling.registers is not None:
            options["maxnreg"] = tiling.registers
        if tiling.follows:
            options["launch_pdl"] = True
        programs = min(tiling.total, units)
        super().__init__(box_kernel, (programs, 1), arrays, (), {"tiling": tiling}, options, order=order)
