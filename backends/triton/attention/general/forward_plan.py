"""The launches that make up a forward call, put together once for a spec and the layouts of its arrays."""

from __future__ import annotations

from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras, Strides
from einops_fast.backends.triton.attention.general.decode import combine_kernel
from einops_fast.backends.triton.attention.general.forward import forward_kernel
from einops_fast.backends.triton.attention.general.tilings import Tiling
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import contiguous_strides

__all__ = ["ForwardPlan", "elements_together"]

_CACHED = 24 << 20
"""Bytes of k and v that stay in the L2 cache while they're worked on."""


def elements_together(spec: AttentionSpec, share: int) -> int:
    """How many batch elements to work on side by side, so that their k and v stay in the L2 cache."""
    each = spec.kv_len * (spec.head_dim + spec.v_head_dim) * ITEM_SIZES[spec.dtype]
    return max(1, _CACHED // max(1, each)) * share


class ForwardPlan:
    """A forward call.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it; with strides of ``out`` and ``lse``.
        rows: queries of all sequences together, if there are several, else of each batch element.
        tiling: of the kernel.
    """

    def __init__(self, spec: AttentionSpec, problem: Problem, rows: int, tiling: Tiling) -> None:
        self.tiling = tiling
        self._sums = accumulator(spec.dtype)
        share = problem.share
        heads = problem.elements // share if tiling.packed else problem.elements
        together = elements_together(spec, 1 if tiling.packed else share)
        tiles = -(-problem.q_len * (share if tiling.packed else 1) // tiling.block_m)
        strides = problem.strides_of("out")
        self._combine: KernelCall | None = None
        if tiling.parts > 1:
            sizes = [1 if spec.varlen and at == 0 else size for at, size in enumerate(problem.sizes)]
            shape = (*sizes, rows, spec.v_head_dim)
            self._rows = prod(shape[:-1])
            self._elements = prod(shape)
            flat = contiguous_strides(shape)
            logs = contiguous_strides(shape[:-1])
            strides = strides._replace(parts=(self._elements, self._rows))
            self._combine = KernelCall(
                combine_kernel,
                (self._rows, 1),
                (Strides(out=strides.out, lse=strides.lse, parts=strides.parts), problem.counting, rows),
                {
                    "f": problem.features,
                    "parts": tiling.parts,
                    "columns": 1 << (spec.v_head_dim - 1).bit_length(),
                },
                4,
                1,
            )
            strides = strides._replace(out=flat, lse=logs)
        self._forward = KernelCall(
            forward_kernel,
            (tiles * heads, tiling.parts),
            (strides, problem.counting, *problem.runtime(heads, together)),
            {
                "f": problem.features,
                "block_m": tiling.block_m,
                "block_n": tiling.block_n,
                "packed": tiling.packed,
                "parts": tiling.parts,
            },
            tiling.warps,
            tiling.stages,
        )

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        if self._combine is None:
            self._forward(memory, device, q, k, v, out, lse, extras)
            return
        parts = self.tiling.parts
        parts_out = memory.workspace(q, parts * self._elements, self._sums)
        parts_lse = memory.workspace(q, parts * self._rows, self._sums)
        self._forward(memory, device, q, k, v, parts_out, parts_lse, extras)
        self._combine(memory, device, parts_out, parts_lse, out, lse)
