"""The launches of the kernels for short attention, put together once, as those of the general kernels are."""

from __future__ import annotations

from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.general.backward_plan import Gradients, bias_sizes, is_whole, parts_of
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, power
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.attention.short.forward import short_forward_kernel
from einops_fast.backends.triton.attention.short.gradients import short_gradients_kernel
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides

__all__ = ["ShortBackwardPlan", "ShortForwardPlan", "suits_short", "suits_short_backward"]

_DTYPES = ("float16", "bfloat16")
"""Products of others would take more registers than there are."""

_MOST_FEATURES = 64

_FEW = 64
"""Positions of a tile that four warps work on, of which several are at work on a multiprocessor."""

_MOST = 128
"""Positions, if there are few batch elements."""

_FORWARD_ROUNDS = 2
"""Batch elements with so many positions for each multiprocessor, up to which there are few."""

_BACKWARD_ROUNDS = 4
"""The same where one kernel is in place of three."""

_FORWARD_PROGRAMS = 4
"""That are at work on a multiprocessor, of those that go through elements that share a bias."""

_BACKWARD_PROGRAMS = 2

_REGISTERS = 128
"""Of a thread in the forward kernel, so that as many programs have room. Of gradients, that would spill too many."""


def suits_short(spec: AttentionSpec, problem: Problem, units: int, rounds: int = _FORWARD_ROUNDS) -> bool:
    """Whether all positions fit into one tile, and that takes less time than tiles that follow each other.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        units: multiprocessors of the device.
        rounds: for each of these, how many elements of more than 64 positions are few.
    """
    if spec.dtype not in _DTYPES or spec.varlen or spec.cache or spec.page_size:
        return False
    if max(spec.head_dim, spec.v_head_dim) > _MOST_FEATURES:
        return False
    if problem.features.shared and spec.q_len <= FEW_QUERIES:
        # One tile has the queries of all heads that share keys.
        return False
    longest = max(spec.q_len, spec.kv_len)
    return longest <= _FEW or (longest <= _MOST and problem.elements <= rounds * units)


def suits_short_backward(spec: AttentionSpec, problem: Problem, units: int) -> bool:
    """The same of the gradients. Nobody else may add to what a program writes."""
    summed = problem.strides.d_bias is not None and not is_whole(spec)
    # Sums take registers.
    fits = not summed or max(spec.q_len, spec.kv_len) <= _FEW
    return fits and not problem.features.shared and suits_short(spec, problem, units, _BACKWARD_ROUNDS)


class _Sharing:
    """How batch elements that share a bias are divided among programs: what the kernels take for it.

    Args:
        problem: what is computed.
        name: of the bias or its gradient, if elements share it, else empty: then each program has one element.
        enough: programs that keep the device busy.
    """

    def __init__(self, problem: Problem, name: str, enough: int) -> None:
        self.programs, self.parts = problem.elements, 1
        self.arguments: tuple[Any, ...] = (None, 1, 1)
        if name:
            kept, summed = bias_sizes(problem, name)
            self.programs = prod(kept)
            self.parts = parts_of(self.programs, prod(summed), enough)
            sharing = (ANY, *kept[1:]), (ANY, *summed[1:]), contiguous_strides(problem.sizes)
            self.arguments = sharing, prod(summed), self.parts


def _is_shared(problem: Problem) -> bool:
    """Whether batch elements share a bias that it pays to load once for several."""
    return problem.features.bias == (True, True) and prod(bias_sizes(problem, "bias")[1]) > 1


def _tile(spec: AttentionSpec) -> tuple[tuple[int, int], int]:
    """Queries and keys of a tile, and warps that work on it."""
    block_m, block_n = power(spec.q_len), power(spec.kv_len)
    return (block_m, block_n), 4 if block_m * block_n <= _FEW * _FEW else 8


class ShortForwardPlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it; see :func:`suits_short`.
        units: multiprocessors of the device.
    """

    def __init__(self, spec: AttentionSpec, problem: Problem, units: int) -> None:
        sharing = _Sharing(problem, "bias" if _is_shared(problem) else "", _FORWARD_PROGRAMS * units)
        (block_m, block_n), warps = _tile(spec)
        self._call = KernelCall(
            short_forward_kernel,
            (sharing.programs, sharing.parts),
            (
                problem.strides_of("out"),
                problem.counting,
                *sharing.arguments,
                *problem.runtime(problem.elements, 1),
            ),
            {"f": problem.features, "block_m": block_m, "block_n": block_n},
            warps,
            1,
            registers=_REGISTERS,
        )

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        self._call(memory, device, q, k, v, out, lse, extras)


class ShortBackwardPlan:
    """A backward call; see :class:`BackwardPlan`, which this is one of in all but the kernels.

    Args:
        spec: what was computed.
        problem: the same, as the kernels take it; see :func:`suits_short_backward`.
        units: multiprocessors of the device.
    """

    bias_starts_at_zero = False

    def __init__(self, spec: AttentionSpec, problem: Problem, units: int) -> None:
        self._sums = accumulator(spec.dtype)
        self._rows = problem.elements * spec.q_len if spec.sinks else 0
        self._direct = is_whole(spec)
        strides = problem.strides_of("d_out", "dq", "dk", "dv", "d_bias")
        summed = strides.d_bias is not None and not self._direct
        shared = "d_bias" if summed else "bias" if _is_shared(problem) else ""
        sharing = _Sharing(problem, shared, _BACKWARD_PROGRAMS * units)
        self.bias_parts = 1
        if summed:
            assert spec.bias is not None
            self.bias_parts = sharing.parts
            strides = strides._replace(parts=(prod(spec.bias),))
        (block_m, block_n), warps = _tile(spec)
        self._call = KernelCall(
            short_gradients_kernel,
            (sharing.programs, sharing.parts),
            (
                strides,
                problem.counting,
                *sharing.arguments,
                *problem.runtime(problem.elements, 1),
            ),
            {"f": problem.features, "block_m": block_m, "block_n": block_n},
            warps,
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
        """Write the gradients, and return ``delta`` if there are sinks, whose gradient needs it."""
        (q, k, v), (_, lse), (d_out, d_lse) = operands, results, gradients_in
        delta = memory.workspace(q, self._rows, self._sums) if self._rows else None
        direct, sums = (into.bias, None) if self._direct else (None, into.bias)
        self._call(memory, device, q, k, v, d_out, lse, d_lse, delta, into.q, into.k, into.v, direct, sums, extras)
        return delta
