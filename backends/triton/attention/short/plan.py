"""The launches of the kernels for short attention, put together once, as those of the general kernels are."""

from __future__ import annotations

from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Strides
from einops_fast.backends.triton.attention.general.plan import bias_sizes, is_whole, parts_of
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, power
from einops_fast.backends.triton.attention.launches import BACKWARD, Launch, Plan, Room, launch
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.attention.short.forward import short_forward_kernel
from einops_fast.backends.triton.attention.short.gradients import short_gradients_kernel
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides

__all__ = ["backward", "forward", "suits_short", "suits_short_backward"]

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


def _sharing(problem: Problem, name: str, enough: int) -> tuple[tuple[int, int], tuple[Any, ...]]:
    """Divide batch elements that share a bias among programs: the grid, and what the kernels take for it.

    Args:
        problem: what is computed.
        name: of the bias or its gradient, if elements share it, else empty: then each program has one element.
        enough: programs that keep the device busy.
    """
    if not name:
        return (problem.elements, 1), (None, 1, 1)
    kept, summed = bias_sizes(problem, name)
    parts = parts_of(prod(kept), prod(summed), enough)
    sharing = (ANY, *kept[1:]), (ANY, *summed[1:]), contiguous_strides(problem.sizes)
    return (prod(kept), parts), (sharing, prod(summed), parts)


def _is_shared(problem: Problem) -> bool:
    """Whether batch elements share a bias that it pays to load once for several."""
    return problem.features.bias == (True, True) and prod(bias_sizes(problem, "bias")[1]) > 1


def _launch(
    function: Any,
    spec: AttentionSpec,
    problem: Problem,
    sharing: tuple[tuple[int, int], tuple[Any, ...]],
    strides: Strides,
    **others: Any,
) -> Launch:
    """Return the launch of a kernel, whose tiles have all positions."""
    block_m, block_n = power(spec.q_len), power(spec.kv_len)
    grid, shared = sharing
    return launch(
        function,
        grid,
        (strides, problem.counting, *shared, *problem.runtime(problem.elements, 1)),
        {"f": problem.features, "block_m": block_m, "block_n": block_n},
        4 if block_m * block_n <= _FEW * _FEW else 8,
        **others,
    )


def forward(spec: AttentionSpec, problem: Problem, units: int) -> tuple[Launch, ...]:
    """Return the launch of a forward call.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it; see :func:`suits_short`.
        units: multiprocessors of the device.
    """
    sharing = _sharing(problem, "bias" if _is_shared(problem) else "", _FORWARD_PROGRAMS * units)
    strides = problem.strides_of("out")
    return (_launch(short_forward_kernel, spec, problem, sharing, strides, registers=_REGISTERS),)


def backward(spec: AttentionSpec, problem: Problem, units: int) -> Plan:
    """Return the plan of a backward call, which writes ``delta`` if there are sinks, whose gradient needs it.

    Args:
        spec: what was computed.
        problem: the same, as the kernels take it; see :func:`suits_short_backward`.
        units: multiprocessors of the device.
    """
    strides = problem.strides_of("d_out", "dq", "dk", "dv", "d_bias")
    summed = strides.d_bias is not None and not is_whole(spec)
    shared = "d_bias" if summed else "bias" if _is_shared(problem) else ""
    sharing = _sharing(problem, shared, _BACKWARD_PROGRAMS * units)
    instead: dict[str, str | None] = {"sums": None}
    if summed:
        assert spec.bias is not None
        strides = strides._replace(parts=(prod(spec.bias),))
        instead = {"d_bias": None, "sums": "d_bias"}
    if not spec.sinks:
        instead["delta"] = None
    found = _launch(short_gradients_kernel, spec, problem, sharing, strides, instead=instead)
    if spec.sinks:
        found = found._replace(rooms=(Room("delta", problem.elements * spec.q_len, accumulator(spec.dtype)),))
    return Plan(BACKWARD, (found,), bias_parts=sharing[0][1] if summed else 1)
