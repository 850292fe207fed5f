"""The launches of the kernels for short attention."""

from __future__ import annotations

from math import prod
from typing import Any

from einops_fast.backends.triton.attention.arguments import Strides
from einops_fast.backends.triton.attention.around.parts_sum import in_parts
from einops_fast.backends.triton.attention.general.plan import bias_sizes, is_whole, parts_of
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, power
from einops_fast.backends.triton.attention.launches import BACKWARD, Launch, Plan, Room, launch
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.attention.short.kernels import short_forward_kernel, short_gradients_kernel
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides

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


def suits_short(problem: Problem, rounds: int = _FORWARD_ROUNDS) -> bool:
    """Return whether all positions fit into one tile, and that takes less time than tiles that follow each other.

    ``rounds``: for each multiprocessor, how many elements of more than 64 positions are few.
    """
    spec = problem.spec
    if spec.dtype not in _DTYPES or spec.varlen or spec.cache or spec.page_size:
        return False
    if problem.width > _MOST_FEATURES:
        return False
    if problem.features.shared and spec.q_len <= FEW_QUERIES:
        # One tile has the queries of all heads that share keys.
        return False
    longest = max(spec.q_len, spec.kv_len)
    return longest <= _FEW or (longest <= _MOST and problem.elements <= rounds * problem.units)


def suits_short_backward(problem: Problem) -> bool:
    """Return the same of the gradients. Nobody else may add to what a program writes."""
    # Sums take registers.
    fits = not _is_summed(problem) or max(problem.spec.q_len, problem.spec.kv_len) <= _FEW
    return fits and not problem.features.shared and suits_short(problem, _BACKWARD_ROUNDS)


def _is_summed(problem: Problem) -> bool:
    """Return whether the gradient of a bias is a sum over batch elements."""
    return problem.strides.d_bias is not None and not is_whole(problem.spec)


def _is_shared(problem: Problem) -> bool:
    """Return whether batch elements share a bias that it pays to load once for several."""
    return problem.features.bias == (True, True) and prod(bias_sizes(problem, "bias")[1]) > 1


def _launch(
    function: Any, problem: Problem, strides: Strides, sharing: str, enough: int, **others: Any
) -> tuple[Launch, int]:
    """Return the launch of a kernel whose tiles have all positions, and in how many parts it goes through the batch.

    Args:
        sharing: the bias or its gradient, if elements share it, else empty: then each program has one element.
        enough: programs for each multiprocessor that keep it busy.
    """
    block_m, block_n = power(problem.spec.q_len), power(problem.spec.kv_len)
    grid: tuple[int, int] = problem.elements, 1
    shared: tuple[Any, ...] = None, 1, 1
    if sharing:
        kept, summed = bias_sizes(problem, sharing)
        parts = parts_of(prod(kept), prod(summed), enough * problem.units)
        axes = (ANY, *kept[1:]), (ANY, *summed[1:]), contiguous_strides(problem.sizes)
        grid, shared = (prod(kept), parts), (axes, prod(summed), parts)
    found = launch(
        function,
        grid,
        (strides, problem.counting, *shared, *problem.runtime(problem.elements, 1)),
        {"f": problem.features, "block_m": block_m, "block_n": block_n},
        4 if block_m * block_n <= _FEW * _FEW else 8,
        **others,
    )
    return found, grid[1]


def forward(problem: Problem) -> tuple[Launch, ...]:
    """Return the launch of a forward call."""
    sharing, strides = "bias" if _is_shared(problem) else "", problem.strides_of("out")
    found, _ = _launch(short_forward_kernel, problem, strides, sharing, _FORWARD_PROGRAMS, registers=_REGISTERS)
    return (found,)


def backward(problem: Problem) -> Plan:
    """Return the plan of a backward call, which writes ``delta`` if there are sinks, whose gradient needs it."""
    spec, summed = problem.spec, _is_summed(problem)
    strides = problem.strides_of("d_out", "dq", "dk", "dv", "d_bias")
    sharing = "d_bias" if summed else "bias" if _is_shared(problem) else ""
    instead: dict[str, str | None] = {"sums": None}
    if summed:
        assert spec.bias is not None
        strides = strides._replace(parts=(prod(spec.bias),))
        instead = {"d_bias": None, "sums": "d_bias"}
    if not spec.sinks:
        instead["delta"] = None
    found, parts = _launch(short_gradients_kernel, problem, strides, sharing, _BACKWARD_PROGRAMS, instead=instead)
    if spec.sinks:
        found = found._replace(rooms=(Room("delta", problem.elements * spec.q_len, accumulator(spec.dtype)),))
    return Plan(BACKWARD, in_parts((found,), problem, parts if summed else 1))
