"""Where Hopper's own kernels of attention can be used, with what tiles, and their launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from einops_fast.backends.triton.attention.around.copyable import copyable, odd_added, reachable
from einops_fast.backends.triton.attention.around.mask_bounds import is_bounded, mask_bounds
from einops_fast.backends.triton.attention.around.parts_sum import in_parts
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.general import plan as general
from einops_fast.backends.triton.attention.general.plan import bias_sizes, is_whole
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, BackwardTilings
from einops_fast.backends.triton.attention.hopper.bias_gradient import Parts, hopper_bias_kernel
from einops_fast.backends.triton.attention.hopper.call import (
    array_of,
    described,
    is_for_hopper,
    launch,
    numbers_of,
    of_batch,
    padded,
    programs_of,
)
from einops_fast.backends.triton.attention.hopper.forward import hopper_kernel
from einops_fast.backends.triton.attention.hopper.keys_gradient import hopper_keys_kernel, hopper_values_kernel
from einops_fast.backends.triton.attention.hopper.queries_gradient import hopper_queries_kernel
from einops_fast.backends.triton.attention.hopper.tiles import ITEM, HopperTiling
from einops_fast.backends.triton.attention.hopper.tilings import (
    WIDE_SHAPES,
    Shape,
    bytes_of_one,
    fitting,
    forward_shapes,
    has_added,
    is_small,
    is_wide,
    keys_shapes,
    parts_of_sums,
    queries_shapes,
    shared_bytes,
)
from einops_fast.backends.triton.attention.launches import BACKWARD, Launch, Plan
from einops_fast.backends.triton.attention.problem import Problem, missing_axes
from einops_fast.planning.cost import ITEM_SIZES

_MOST_FEATURES = 256

_MOST_ADDED = 128
"""Features with a bias or a mask, for whose tiles there is no memory beside those of more."""


def suits_hopper(problem: Problem, arrays: Sequence[str] = ("q", "k", "v", "out")) -> bool:
    """Return whether the kernels can be used, where the hardware has to copy these ``arrays`` with features."""
    spec, features, strides = problem.spec, problem.features, problem.strides
    if not is_for_hopper(problem) or features.sinks or spec.cache or spec.page_size:
        return False
    if spec.q_len <= FEW_QUERIES or not spec.kv_len:
        return False
    if problem.width > (_MOST_ADDED if has_added(problem) else _MOST_FEATURES):
        return False
    if not all(copyable(getattr(strides, name), ITEM) for name in arrays):
        return False
    bias_dtype = problem.dtype("bias")
    if features.bias is not None and bias_dtype not in ("float16", "bfloat16", "float32"):
        return False
    of_bias = reachable(strides.bias, features.bias, ITEM_SIZES.get(bias_dtype, 0))
    return of_bias and reachable(strides.mask, features.mask, 1)


def suits_hopper_backward(problem: Problem) -> bool:
    """Return whether the backward kernels can be used."""
    if missing_axes(problem.spec, "q"):
        return False
    wanted = [name for name in ("dq", "dk", "dv") if getattr(problem.strides, name) is not None]
    return suits_hopper(problem, ("q", "k", "v", "d_out", *wanted))


def _launches(
    problem: Problem,
    function: Any,
    tiling: HopperTiling,
    otherwise: tuple[Launch, ...] = (),
    *,
    elements: int,
    length: int,
    times: int = 1,
    **scalars: Any,
) -> tuple[Launch, ...]:
    """Return the launch of a kernel, after that of the mask's bounds where it goes by these.

    Each of ``elements`` has tiles of ``length`` positions, each tile work for ``times`` programs.
    """
    names = function.arg_names[: -2 - len(scalars)]
    before: tuple[Launch, ...] = ()
    places = None
    if "bounds" in names and is_bounded(problem, tiling):
        first, places = mask_bounds(problem, tiling)
        before, tiling = (first,), replace(tiling, bounded=True)
    arrays = {name: described(problem, tiling, array_of(name)) for name in names}
    numbers = (*scalars.values(), numbers_of(problem, tiling, elements, length, places))
    programs = programs_of(problem, tiling, elements * times, length)
    return *before, launch(function, tiling, arrays, numbers, programs, otherwise=otherwise)


def _keys_gradient(problem: Problem, otherwise: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """Return the launch for k and v; of wide heads, that for v and that for k."""
    spec = problem.spec
    given: dict[str, Any] = {"elements": problem.elements // problem.share, "length": spec.kv_len}
    if not is_wide(problem):
        tiling = fitting(problem, keys_shapes(problem), spec.q_len, shared_bytes, turned=True)
        return _launches(problem, hopper_keys_kernel, tiling, otherwise, **given, scale=spec.scale)
    tiling = fitting(
        problem, [Shape(2, 64, 3, second=3), Shape(2, 64, 2, second=2)], spec.q_len, bytes_of_one, turned=True
    )
    # All that it takes the other kernel takes, too, which has the launches for odd addresses.
    values = _launches(problem, hopper_values_kernel, tiling, **given)
    tiling = fitting(problem, WIDE_SHAPES, spec.q_len, shared_bytes, turned=True, dv=False)
    return *values, *_launches(problem, hopper_keys_kernel, tiling, otherwise, **given, scale=spec.scale)


def _queries_gradient(problem: Problem, otherwise: tuple[Launch, ...], d_bias: bool) -> tuple[Launch, ...]:
    """Return the launch for q and, where that lacks no axis, the bias."""
    spec = problem.spec
    tiling = fitting(
        problem,
        queries_shapes(problem),
        spec.kv_len,
        lambda tiling: shared_bytes(tiling) + tiling.rows * tiling.kept(0) * ITEM * (not tiling.wide),
        d_bias=d_bias,
    )
    given: dict[str, Any] = {"elements": problem.elements, "length": spec.q_len, "scale": spec.scale}
    return _launches(problem, hopper_queries_kernel, tiling, otherwise, **given)


def _shared_bias_tiling(problem: Problem) -> tuple[HopperTiling, int]:
    """Return that of the kernel for a bias that elements share, and in how many parts it sums these up."""
    spec, features = problem.spec, problem.features
    shapes = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 32, 2)]
    hides = features.mask is not None or features.left or features.right
    if is_small(problem) and not (hides or problem.dtype("bias") == "float32"):
        # More of these take more registers than there are.
        shapes = [Shape(2, 128, 2)]
    tiling = fitting(
        problem,
        shapes,
        spec.kv_len,
        lambda tiling: tiling.stages * tiling.pair_bytes + tiling.rows * tiling.block * tiling.bias_item,
        d_bias=True,
    )
    own = prod(bias_sizes(problem)[0])
    tiles = own * -(-spec.q_len // tiling.rows) * -(-spec.kv_len // tiling.block)
    parts = parts_of_sums(tiles, problem.elements // own, problem.units)
    return replace(tiling, in_parts=parts > 1), parts


def _bias_gradient(
    problem: Problem, otherwise: tuple[Launch, ...], tiling: HopperTiling, parts: int
) -> tuple[Launch, ...]:
    """Return the launch for a bias that elements share."""
    spec = problem.spec
    assert spec.bias is not None
    own, key_tiles = prod(bias_sizes(problem)[0]), -(-spec.kv_len // tiling.block)
    *batch, row, column = problem.strides.d_bias
    places = Parts._make((parts, prod(spec.bias), *of_batch(batch, 0), row, column))
    given: dict[str, Any] = {"elements": own, "length": spec.q_len, "times": key_tiles * parts}
    scalars: dict[str, Any] = {"key_tiles": key_tiles, "sharers": problem.elements // own, "parts": places}
    return _launches(problem, hopper_bias_kernel, tiling, otherwise, **given, **scalars)


def forward(problem: Problem, otherwise: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """Return the launches of a forward call, with those of other kernels for arrays at odd addresses."""
    spec = problem.spec
    tiling = fitting(problem, forward_shapes(problem), spec.kv_len, bytes_of_one)
    return _launches(problem, hopper_kernel, tiling, otherwise, elements=problem.elements, length=spec.q_len)


def backward(problem: Problem, tilings: BackwardTilings, copies: RowCopies | None = None) -> Plan:
    """Return the plan of a backward call, with the kernels of :mod:`general` and their tilings for odd addresses.

    The problem may be about ``copies`` of arrays that the hardware can't copy.
    """
    strides = problem.strides
    by_score = strides.d_bias is not None and problem.features.bias == (True, True)
    whole = strides.d_bias is not None and is_whole(problem.spec)
    zeros = general.starts_at_zero(problem)
    tiling, parts = _shared_bias_tiling(problem) if by_score and not whole else (None, 0)
    odd = odd_added(problem, "d_bias") if by_score and parts <= 1 else None
    room = RowCopies({"d_bias": odd}) if odd else None
    if room:
        problem = replace(problem, strides=strides._replace(**room.strides))
    writable = by_score and copyable(problem.strides.d_bias, ITEM_SIZES[problem.dtype("bias")])
    of_keys: tuple[Launch, ...] = ()
    of_queries: tuple[Launch, ...] = ()
    of_bias: tuple[Launch, ...] = ()
    if strides.dk is not None:
        of_keys = _keys_gradient(problem, (general.keys_gradient(problem, tilings.keys),))
    if strides.dq is not None:
        of_queries = (general.queries_gradient(problem, tilings.queries),)
        if writable or not whole:
            of_queries = _queries_gradient(problem, of_queries, whole)
    if strides.d_bias is not None and not whole:
        of_shared, parts = general.bias_gradient(problem, tilings.bias, parts)
        of_bias = (of_shared,)
        if tiling and (writable or parts > 1):
            of_bias = _bias_gradient(problem, of_bias, tiling, parts)
        of_bias = in_parts(of_bias, problem, parts)
    launches = (general.deltas(problem, padded(problem)), *of_keys, *of_queries, *of_bias)
    if room:
        launches = room.around(launches, ("d_bias",), ("d_bias",) if zeros else ())
    if copies:
        launches = copies.around(launches, ("dq", "dk", "dv"))
    return Plan(BACKWARD, launches, bias_starts_at_zero=zeros, exact=False)
