"""The one launch that makes all gradients of short attention, put together once; see :mod:`backward_plan`."""

from __future__ import annotations

from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import Gradients, bias_sizes, is_whole, parts_of
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.attention.short_gradients import short_kernel
from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.launch import accumulator
from einops_fast.backends.triton.memory import Memory
from einops_fast.layout import contiguous_strides

__all__ = ["ShortBackwardPlan", "suits_short"]

_DTYPES = ("float16", "bfloat16")
"""Products of others would take more registers than there are."""

_MOST_FEATURES = 64

_FEW = 64
"""Positions of a tile that four warps work on."""

_MOST = 128
"""Positions; with a bias whose gradient is a sum, which takes registers, :data:`_FEW`."""


def suits_short(spec: AttentionSpec, problem: Problem) -> bool:
    """Whether all positions fit into one tile, and nobody else adds to what a program writes."""
    if spec.dtype not in _DTYPES or spec.varlen or spec.cache or spec.page_size:
        return False
    if problem.features.shared or max(spec.head_dim, spec.v_head_dim) > _MOST_FEATURES:
        return False
    summed = problem.strides.d_bias is not None and not is_whole(spec)
    return max(spec.q_len, spec.kv_len) <= (_FEW if summed else _MOST)


class ShortBackwardPlan:
    """A backward call; see :class:`BackwardPlan`, which this is one of in all but the kernels.

    Args:
        spec: what was computed.
        problem: the same, as the kernels take it; see :func:`suits_short`.
    """

    bias_starts_at_zero = False

    def __init__(self, spec: AttentionSpec, problem: Problem) -> None:
        self._sums = accumulator(spec.dtype)
        self._rows = problem.elements * spec.q_len
        self._direct = is_whole(spec)
        self.bias_parts = 1
        programs, kept, summed = problem.elements, problem.sizes, (1,) * len(problem.sizes)
        strides = problem.strides_of("out", "d_out", "dq", "dk", "dv", "d_bias")
        if strides.d_bias is not None and not self._direct:
            assert spec.bias is not None
            kept, summed = bias_sizes(problem)
            programs = prod(kept)
            self.bias_parts = parts_of(programs, prod(summed))
            strides = strides._replace(parts=(prod(spec.bias),))
        blocks = [max(16, 1 << (length - 1).bit_length()) for length in (spec.q_len, spec.kv_len)]
        self._call = KernelCall(
            short_kernel,
            (programs, self.bias_parts),
            (
                strides,
                problem.counting,
                (ANY, *kept[1:]),
                (ANY, *summed[1:]),
                contiguous_strides(problem.sizes),
                prod(summed),
                self.bias_parts,
                *problem.runtime(problem.elements, 1),
            ),
            {"f": problem.features, "block_m": blocks[0], "block_n": blocks[1]},
            4 if prod(blocks) <= _FEW * _FEW else 8,
            1,
        )

    def __call__(
        self,
        memory: Memory,
        device: int,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        gradients_in: tuple[Any, Any],
        extras: Extras,
        into: Gradients,
    ) -> Any:
        """Write the gradients, and return ``delta``."""
        (q, k, v), (out, lse), (d_out, d_lse) = operands, results, gradients_in
        delta = memory.workspace(q, self._rows, self._sums)
        direct, sums = (into.bias, None) if self._direct else (None, into.bias)
        self._call(
            memory, device, q, k, v, d_out, out, lse, d_lse, delta, into.q, into.k, into.v, direct, sums, extras
        )  # fmt: skip
        return delta
