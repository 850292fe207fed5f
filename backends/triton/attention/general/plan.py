"""The launches of the kernels that compute everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Strides
from einops_fast.backends.triton.attention.around.parts_sum import in_parts
from einops_fast.backends.triton.attention.general.forward import combine_kernel, forward_kernel
from einops_fast.backends.triton.attention.general.gradients import (
    bias_kernel,
    delta_kernel,
    keys_kernel,
    queries_kernel,
)
from einops_fast.backends.triton.attention.general.tilings import BackwardTilings, Tiling, power
from einops_fast.backends.triton.attention.launches import BACKWARD, Launch, Plan, Room, launch
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import contiguous_strides

_CACHED = 24 << 20
"""Bytes of k and v that stay in the L2 cache while they're worked on."""

_TILE = 4096
"""Elements of a tile in the kernel that sums up ``o * do``, at most; but for :data:`_ROWS`."""

_ROWS = 32, 128
"""Rows of such a tile, at least and at most."""

_PROGRAMS = 512
"""So many keep a GPU busy: a small bias is summed up in parts."""


def is_whole(spec: AttentionSpec) -> bool:
    """Return whether there is a bias that lacks no axis."""
    return spec.bias == (*spec.batch, spec.q_len, spec.kv_len)


def bias_sizes(problem: Problem, name: str = "d_bias") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes of the batch axes that a bias or its gradient has, and of those that it lacks; 1 for the others."""
    # An axis that it lacks has stride 0; one of the batch has at least two elements.
    has = [stride != 0 for stride in getattr(problem.strides, name)[:-2]]
    kept = tuple(size if is_own else 1 for size, is_own in zip(problem.sizes, has, strict=True))
    return kept, tuple(1 if is_own else size for size, is_own in zip(problem.sizes, has, strict=True))


def parts_of(programs: int, steps: int, enough: int = _PROGRAMS) -> int:
    """Return in how many parts to go through so many steps for each program, of which ``enough`` are enough."""
    return max(1, min(enough // max(1, programs), steps))


def starts_at_zero(problem: Problem) -> bool:
    """Return whether the kernels leave out parts of the gradient of a bias: that of what isn't seen."""
    spec, features = problem.spec, problem.features
    return is_whole(spec) and (features.left or features.right or spec.varlen or spec.cache or spec.segments)


def _launch(
    function: Any,
    problem: Problem,
    tiling: Tiling,
    grid: tuple[int, int],
    strides: Strides,
    heads: int,
    share: int,
    *numbers: Any,
    instead: Mapping[str, str | None] | None = None,
    **constants: Any,
) -> Launch:
    """Return the launch of a kernel with tiles of scores, whose programs are counted over so many ``heads``.

    Groups of ``share`` heads are worked on side by side, as many as have their k and v stay in the L2 cache; with 0,
    one head after the other. ``numbers`` are what the kernel takes beside those that all kernels take.
    """
    spec = problem.spec
    each = spec.kv_len * (spec.head_dim + spec.v_head_dim) * ITEM_SIZES[spec.dtype]
    together = max(1, _CACHED // max(1, each)) * share
    return launch(
        function,
        grid,
        (strides, problem.counting, *numbers, *problem.runtime(heads, together)),
        {"f": problem.features, "block_m": tiling.block_m, "block_n": tiling.block_n, **constants},
        tiling.warps,
        tiling.stages,
        instead=instead,
    )


def forward(problem: Problem, tiling: Tiling) -> tuple[Launch, ...]:
    """Return the launches of a forward call, of a problem with strides of ``out`` and ``lse``."""
    spec, rows = problem.spec, problem.q_rows
    share, together = (1, problem.share) if tiling.packed else (problem.share, 1)
    heads = problem.elements // together
    tiles = -(-spec.q_len * together // tiling.block_m)
    strides = problem.strides_of("out")
    names: dict[str, str | None] = {}
    rooms: tuple[Room, ...] = ()
    then: tuple[Launch, ...] = ()
    if tiling.parts > 1:
        shape = (*[1 if spec.varlen and at == 0 else size for at, size in enumerate(problem.sizes)], rows)
        count, elements = prod(shape), prod(shape) * spec.v_head_dim
        strides = strides._replace(parts=(elements, count))
        columns = 1 << (spec.v_head_dim - 1).bit_length()
        sum_up = launch(
            combine_kernel,
            (count, 1),
            (Strides(out=strides.out, lse=strides.lse, parts=strides.parts), problem.counting, rows),
            {"f": problem.features, "parts": tiling.parts, "columns": columns},
        )
        strides = strides._replace(out=contiguous_strides((*shape, spec.v_head_dim)), lse=contiguous_strides(shape))
        names, then, sums = {"out": "parts_out", "lse": "parts_lse"}, (sum_up,), accumulator(spec.dtype)
        rooms = Room("parts_out", tiling.parts * elements, sums), Room("parts_lse", tiling.parts * count, sums)
    grid, constants = (tiles * heads, tiling.parts), {"packed": tiling.packed, "parts": tiling.parts}
    first = _launch(forward_kernel, problem, tiling, grid, strides, heads, share, instead=names, **constants)
    return (first._replace(rooms=rooms, then=then),)


def backward(problem: Problem, tilings: BackwardTilings) -> Plan:
    """Return the plan of a backward call.

    The problem has strides of ``out``, ``lse`` (``delta`` has them, too), ``d_out`` and the gradients that are wanted.
    """
    launches = [deltas(problem)]
    if problem.strides.dk is not None:
        launches.append(keys_gradient(problem, tilings.keys))
    if problem.strides.dq is not None:
        launches.append(queries_gradient(problem, tilings.queries))
    if problem.strides.d_bias is not None and not is_whole(problem.spec):
        of_bias, parts = bias_gradient(problem, tilings.bias)
        launches += in_parts((of_bias,), problem, parts)
    return Plan(BACKWARD, launches, bias_starts_at_zero=starts_at_zero(problem))


def deltas(problem: Problem, padded: int = 0) -> Launch:
    """Return the launch that comes before the others: ``delta`` of each row.

    If ``padded`` isn't 0, rows' numbers are written once more as ``rows``, for so many queries of each batch element; a
    multiple of 128.
    """
    spec, strides, rows = problem.spec, problem.strides, problem.q_rows
    length, columns = padded or rows, power(spec.v_head_dim)
    elements = problem.elements // (problem.sizes[0] if spec.varlen else 1)
    block = min(max(_ROWS[0], _TILE // columns), _ROWS[1])
    rooms = [Room("delta", elements * rows, accumulator(spec.dtype))]
    if padded:
        rooms.append(Room("rows", 2 * elements * padded))
    return launch(
        delta_kernel,
        (elements * -(-length // block), 1),
        (Strides(out=strides.out, d_out=strides.d_out, lse=strides.lse), problem.counting, rows, length),
        {"f": problem.features, "block": block, "columns": columns},
        instead={"padded": "rows" if padded else None},
    )._replace(rooms=tuple(rooms))


def keys_gradient(problem: Problem, tiling: Tiling) -> Launch:
    """Return the launch for the gradients of k and v."""
    heads = problem.elements // problem.share
    grid = heads * -(-problem.spec.kv_len // tiling.block_n), 1
    return _launch(keys_kernel, problem, tiling, grid, problem.strides_of("d_out", "dk", "dv"), heads, 1)


def queries_gradient(problem: Problem, tiling: Tiling) -> Launch:
    """Return the launch for the gradient of q, and for that of a bias that lacks no axis."""
    heads, strides = problem.elements, problem.strides_of("d_out", "dq", "d_bias")
    grid = heads * -(-problem.spec.q_len // tiling.block_m), 1
    names: dict[str, str | None] = {} if is_whole(problem.spec) else {"d_bias": None}
    return _launch(queries_kernel, problem, tiling, grid, strides, heads, problem.share, instead=names)


def bias_gradient(problem: Problem, tiling: Tiling, parts: int = 0) -> tuple[Launch, int]:
    """Return the launch for the gradient of a bias that lacks axes, and in how many parts it sums that up.

    Those are ``parts``, or for 0 as many as are good.
    """
    spec = problem.spec
    assert spec.bias is not None
    kept, summed = bias_sizes(problem)
    tiles = -(-spec.bias[-2] // tiling.block_m), -(-spec.bias[-1] // tiling.block_n)
    programs = prod(tiles) * prod(kept)
    if not parts:
        whole: Sequence[int] = (-(-spec.q_len // tiling.block_m), -(-spec.kv_len // tiling.block_n))
        lacking = [count for count, length in zip(whole, spec.bias[-2:], strict=True) if length == 1]
        parts = parts_of(programs, prod(summed) * prod(lacking))
    strides = problem.strides_of("d_out", "d_bias")._replace(parts=(prod(spec.bias),))
    numbers = (ANY, *kept[1:]), (ANY, *summed[1:]), contiguous_strides(problem.sizes), *tiles, prod(summed), parts
    return _launch(bias_kernel, problem, tiling, (programs, parts), strides, problem.elements, 0, *numbers), parts
