"""Where Hopper's own kernels of attention can be used, with what tiles, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.around.copyable import copyable, odd_added, reachable
from einops_fast.backends.triton.attention.around.mask_bounds import is_bounded, mask_bounds
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.general import plan as general
from einops_fast.backends.triton.attention.general.plan import bias_sizes, is_whole
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, BackwardTilings
from einops_fast.backends.triton.attention.hopper.bias_gradient import Parts, hopper_bias_kernel
from einops_fast.backends.triton.attention.hopper.call import (
    BATCH_AXES,
    HopperCall,
    Layouts,
    array_of,
    of_batch,
    padded,
)
from einops_fast.backends.triton.attention.hopper.forward import hopper_kernel
from einops_fast.backends.triton.attention.hopper.keys_gradient import hopper_keys_kernel
from einops_fast.backends.triton.attention.hopper.queries_gradient import hopper_queries_kernel
from einops_fast.backends.triton.attention.hopper.shapes import (
    Shape,
    bytes_of_one,
    fitting,
    has_added,
    is_small,
    is_wide,
    parts_of_sums,
    shared_bytes,
)
from einops_fast.backends.triton.attention.hopper.tiles import ITEM, HopperTiling, pair_bytes
from einops_fast.backends.triton.attention.hopper.tilings import (
    WIDE_SHAPES,
    forward_shapes,
    keys_shapes,
    queries_shapes,
)
from einops_fast.backends.triton.attention.hopper.values_gradient import hopper_values_kernel
from einops_fast.backends.triton.attention.launches import BACKWARD, Launch, Plan
from einops_fast.backends.triton.attention.problem import Problem, missing_axes
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.planning.cost import ITEM_SIZES

__all__ = ["backward", "forward", "suits_hopper", "suits_hopper_backward"]

_MOST_FEATURES = 256

_MOST_ADDED = 128
"""Features with a bias or a mask, for whose tiles there is no memory beside those of more."""


def suits_hopper(
    spec: AttentionSpec,
    problem: Problem,
    capability: tuple[int, int],
    bias_dtype: str = "",
    arrays: Sequence[str] = ("q", "k", "v", "out"),
) -> bool:
    """Whether the kernels can be used.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        capability: compute capability of the device.
        bias_dtype: of the bias, if there is one.
        arrays: with features that the hardware has to copy, by the names of :class:`Strides`.
    """
    features = problem.features
    if interpreted() or capability[0] != 9 or spec.dtype not in ("float16", "bfloat16") or spec.scale <= 0:
        return False
    if features.alibi or features.sinks or features.segments or features.dropout:
        return False
    if spec.varlen or spec.cache or spec.page_size or spec.q_len <= FEW_QUERIES or not spec.kv_len:
        return False
    most = _MOST_ADDED if has_added(problem) else _MOST_FEATURES
    if features.axes > BATCH_AXES or max(spec.head_dim, spec.v_head_dim) > most:
        return False
    if not all(copyable(getattr(problem.strides, name), ITEM) for name in arrays):
        return False
    if features.bias is not None and bias_dtype not in ("float16", "bfloat16", "float32"):
        return False
    return reachable(problem.strides.bias, features.bias, ITEM_SIZES.get(bias_dtype, 0)) and reachable(
        problem.strides.mask, features.mask, 1
    )


def suits_hopper_backward(
    spec: AttentionSpec, problem: Problem, capability: tuple[int, int], bias_dtype: str = ""
) -> bool:
    """Whether the backward kernels can be used; see :func:`suits_hopper`."""
    if missing_axes(spec, "q"):
        return False
    wanted = [name for name in ("dq", "dk", "dv") if getattr(problem.strides, name) is not None]
    return suits_hopper(spec, problem, capability, bias_dtype, ("q", "k", "v", "d_out", *wanted))


class _Kernels:
    """Launches of Hopper's kernels for one call.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        units: multiprocessors of the device.
        bias_dtype: of the bias, if there is one.
    """

    def __init__(self, spec: AttentionSpec, problem: Problem, units: int, bias_dtype: str) -> None:
        self._spec, self._problem, self._units, self._bias_dtype = spec, problem, units, bias_dtype

    def tiling(
        self, shapes: Sequence[Shape], length: int, size: Callable[[HopperTiling], int], **others: bool
    ) -> HopperTiling:
        """Return the first tiling for which there is shared memory; see :func:`fitting`."""
        return fitting(self._problem, self._bias_dtype, shapes, length, size, **others)

    def launches(
        self,
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

        Args:
            function: the kernel.
            tiling: of it.
            otherwise: launches in its place, where an array lies at an odd address.
            elements, length: there are so many tiles for each ``tiling.rows`` of these positions of an element.
            times: programs that are worth starting, by tiles.
            scalars: what the kernel takes after its arrays.
        """
        spec, problem = self._spec, self._problem
        names = function.arg_names[: -2 - len(scalars)]
        before: tuple[Launch, ...] = ()
        places = None
        if "bounds" in names and is_bounded(spec, problem, tiling):
            first, places = mask_bounds(spec, problem, tiling)
            before, tiling = (first,), replace(tiling, bounded=True)
        layouts = Layouts(spec, problem, tiling, self._bias_dtype)
        arrays = {name: layouts(array_of(name)) for name in names}
        call = HopperCall(
            function,
            tiling,
            arrays,
            scalars,
            layouts.numbers(elements, length, self._units, places),
            layouts.programs(elements * times, length, self._units),
        )
        takes = tuple([array_of(name) if array else None for name, array in arrays.items()])
        return *before, Launch(call, takes, otherwise=otherwise)

    def keys_gradient(self, otherwise: tuple[Launch, ...]) -> tuple[Launch, ...]:
        """Return the launch for k and v; of wide heads, that for v and that for k."""
        spec, problem = self._spec, self._problem
        given: dict[str, Any] = {"elements": problem.elements // problem.share, "length": spec.kv_len}
        if not is_wide(spec):
            tiling = self.tiling(keys_shapes(spec, problem), spec.q_len, shared_bytes, turned=True)
            return self.launches(hopper_keys_kernel, tiling, otherwise, **given, scale=spec.scale)
        tiling = self.tiling([Shape(2, 64, 3), Shape(2, 64, 2)], spec.q_len, bytes_of_one, turned=True)
        # All that it takes the other kernel takes, too, which has the launches for odd addresses.
        values = self.launches(hopper_values_kernel, tiling, **given)
        tiling = self.tiling(WIDE_SHAPES, spec.q_len, shared_bytes, turned=True, dv=False)
        return *values, *self.launches(hopper_keys_kernel, tiling, otherwise, **given, scale=spec.scale)

    def queries_gradient(self, otherwise: tuple[Launch, ...], d_bias: bool) -> tuple[Launch, ...]:
        """Return the launch for q and, where that lacks no axis, the bias."""
        spec, problem = self._spec, self._problem
        tiling = self.tiling(
            queries_shapes(spec, problem),
            spec.kv_len,
            lambda tiling: shared_bytes(tiling) + tiling.rows * tiling.kept(0) * ITEM * (not tiling.wide),
            d_bias=d_bias,
        )
        given: dict[str, Any] = {"elements": problem.elements, "length": spec.q_len, "scale": spec.scale}
        return self.launches(hopper_queries_kernel, tiling, otherwise, **given)

    def shared_bias_tiling(self) -> tuple[HopperTiling, int]:
        """Return that of the kernel for a bias that elements share, and in how many parts it sums these up."""
        spec, problem, features = self._spec, self._problem, self._problem.features
        shapes = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 32, 2)]
        if is_small(spec) and not (features.masked or features.left or features.right or self._bias_dtype == "float32"):
            # More of these take more registers than there are.
            shapes = [Shape(2, 128, 2)]
        tiling = self.tiling(
            shapes,
            spec.kv_len,
            lambda tiling: tiling.stages * pair_bytes(tiling) + tiling.rows * tiling.block * tiling.bias_item,
            d_bias=True,
        )
        own = prod(bias_sizes(problem)[0])
        tiles = own * -(-spec.q_len // tiling.rows) * -(-spec.kv_len // tiling.block)
        parts = parts_of_sums(tiles, problem.elements // own, self._units)
        return replace(tiling, in_parts=parts > 1), parts

    def bias_gradient(self, otherwise: tuple[Launch, ...], tiling: HopperTiling, parts: int) -> tuple[Launch, ...]:
        """Return the launch for a bias that elements share."""
        spec, problem = self._spec, self._problem
        assert spec.bias is not None
        own, key_tiles = prod(bias_sizes(problem)[0]), -(-spec.kv_len // tiling.block)
        *batch, row, column = problem.strides.d_bias
        places = Parts._make((parts, prod(spec.bias), *of_batch(tuple(batch), 0), row, column))
        given: dict[str, Any] = {"elements": own, "length": spec.q_len, "times": key_tiles * parts}
        scalars: dict[str, Any] = {"key_tiles": key_tiles, "sharers": problem.elements // own, "parts": places}
        return self.launches(hopper_bias_kernel, tiling, otherwise, **given, **scalars)


def _in_room(launches: tuple[Launch, ...], room: RowCopies | None, zeros: bool) -> tuple[Launch, ...]:
    """Have the gradient of the bias written where the hardware can, and copied where it belongs.

    With ``zeros``, those of what isn't seen have to be there, too.
    """
    if room is None:
        return launches
    *before, last = launches
    into = room.launch(("d_bias",)) if zeros else ()
    written = Launch(
        last.call,
        tuple([room.names.get(name, name) for name in last.takes]),
        then=room.launch(("d_bias",), back=True),
        otherwise=last.otherwise,
    )
    first, *others = (*into, *before, written)
    return first._replace(rooms=(*first.rooms, *room.rooms)), *others


def forward(
    spec: AttentionSpec, problem: Problem, units: int, otherwise: tuple[Launch, ...], bias_dtype: str = ""
) -> tuple[Launch, ...]:
    """Return the launches of a forward call.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        units: multiprocessors of the device.
        otherwise: the same by another kernel, for arrays at odd addresses.
        bias_dtype: of the bias, if there is one.
    """
    kernels = _Kernels(spec, problem, units, bias_dtype)
    tiling = kernels.tiling(forward_shapes(spec, problem, units), spec.kv_len, bytes_of_one)
    return kernels.launches(hopper_kernel, tiling, otherwise, elements=problem.elements, length=spec.q_len)


def backward(
    spec: AttentionSpec,
    problem: Problem,
    rows: int,
    tilings: BackwardTilings,
    units: int,
    bias_dtype: str = "",
    copies: RowCopies | None = None,
) -> Plan:
    """Return the plan of a backward call, with the kernels of :mod:`general` for arrays at odd addresses.

    Args:
        spec: what was computed.
        problem: the same, as the kernels take it.
        rows: see :func:`general.backward`.
        tilings: of those kernels.
        units: multiprocessors of the device.
        bias_dtype: of the bias, if there is one.
        copies: of arrays that the hardware can't copy, if the problem is about these.
    """
    kernels, strides = _Kernels(spec, problem, units, bias_dtype), problem.strides
    by_score = strides.d_bias is not None and problem.features.bias == (True, True)
    whole = strides.d_bias is not None and is_whole(spec)
    zeros = general.starts_at_zero(spec, problem)
    tiling, parts = kernels.shared_bias_tiling() if by_score and not whole else (None, 0)
    of_keys: tuple[Launch, ...] = ()
    of_queries: tuple[Launch, ...] = ()
    of_bias: tuple[Launch, ...] = ()
    if strides.dk is not None:
        of_keys = (general.keys_gradient(spec, problem, tilings.keys),)
    if strides.dq is not None:
        of_queries = (general.queries_gradient(spec, problem, tilings.queries),)
    if strides.d_bias is not None and not whole:
        launch, parts = general.bias_gradient(spec, problem, tilings.bias, parts)
        of_bias = (launch,)
    room = None
    if by_score and parts <= 1:
        odd = odd_added(problem, "d_bias", bias_dtype)
        room = odd and RowCopies({"d_bias": (odd, bias_dtype)})
        if room:
            problem = replace(problem, strides=strides._replace(**room.strides))
            kernels = _Kernels(spec, problem, units, bias_dtype)
    writable = by_score and copyable(problem.strides.d_bias, ITEM_SIZES[bias_dtype])
    if of_keys:
        of_keys = kernels.keys_gradient(of_keys)
    if of_queries and (writable or not whole):
        of_queries = kernels.queries_gradient(of_queries, whole)
        of_queries = _in_room(of_queries, room, zeros) if whole else of_queries
    if tiling and (writable or parts > 1):
        of_bias = _in_room(kernels.bias_gradient(of_bias, tiling, parts), room, zeros)
    launches = (general.deltas(spec, problem, rows, padded(spec)), *of_keys, *of_queries, *of_bias)
    if copies:
        launches = copies.around(launches, ("dq", "dk", "dv"))
    return Plan(BACKWARD, launches, bias_parts=max(parts, 1), bias_starts_at_zero=zeros, exact=False)
