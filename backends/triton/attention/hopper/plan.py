"""Where Hopper's own kernels of attention can be used, with what tiles, and their launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.around.copyable import copyable, odd_added, reachable
from einops_fast.backends.triton.attention.around.mask_bounds import MaskBounds, is_bounded
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.general.backward_plan import BackwardPlan, bias_sizes
from einops_fast.backends.triton.attention.general.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, BackwardTilings
from einops_fast.backends.triton.attention.hopper.bias_gradient import Parts, hopper_bias_kernel
from einops_fast.backends.triton.attention.hopper.call import BATCH_AXES, Array, HopperCall, Layouts, of_batch, padded
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
from einops_fast.backends.triton.attention.hopper.tiles import ITEM, HopperTiling, Places, pair_bytes
from einops_fast.backends.triton.attention.hopper.tilings import (
    WIDE_SHAPES,
    forward_shapes,
    keys_shapes,
    queries_shapes,
)
from einops_fast.backends.triton.attention.hopper.values_gradient import hopper_values_kernel
from einops_fast.backends.triton.attention.problem import Problem, missing_axes
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.planning.cost import ITEM_SIZES

__all__ = [
    "HopperBackwardPlan",
    "HopperForwardPlan",
    "suits_hopper",
    "suits_hopper_backward",
]

_MOST_FEATURES = 256

_MOST_ADDED = 128
"""Features with a bias or a mask, for whose tiles there is no memory beside those of more."""

_OPERANDS = ("q", "k", "v", "d_out")
"""Of the kernels of the gradients, as arrays are called."""


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


def _bounded(spec: AttentionSpec, problem: Problem, tiling: HopperTiling) -> tuple[HopperTiling, MaskBounds | None]:
    """A kernel's tiling and, where it is to leave out what a mask hides, what finds that out."""
    if not is_bounded(spec, problem, tiling):
        return tiling, None
    return replace(tiling, bounded=True), MaskBounds(spec, problem, tiling)


def _places(bounds: MaskBounds | None) -> Places | None:
    return None if bounds is None else bounds.places


class HopperForwardPlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        units: multiprocessors of the device.
        other: the same by another kernel, for arrays at odd addresses.
    """

    def __init__(
        self, spec: AttentionSpec, problem: Problem, units: int, other: ForwardPlan, bias_dtype: str = ""
    ) -> None:
        self._other = other
        shapes = forward_shapes(spec, problem, units)
        tiling = fitting(problem, bias_dtype, shapes, spec.kv_len, bytes_of_one)
        tiling, bounds = _bounded(spec, problem, tiling)
        layouts = Layouts(spec, problem, tiling, bias_dtype)
        arrays: dict[str, Array | None] = {f"{name}_desc": layouts(name) for name in ("q", "k", "v", "out")}
        arrays |= {"bias": layouts.added("bias"), "mask": layouts.added("mask")}
        arrays |= {"bounds": None if bounds is None else Array("int32"), "lse": Array("float32")}
        numbers = layouts.numbers(problem.elements, spec.q_len, units, _places(bounds))
        programs = layouts.programs(problem.elements, spec.q_len, units)
        self.kernel = HopperCall(hopper_kernel, tiling, arrays, {}, numbers, programs)
        self._bounds = bounds

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        bounds = self._bounds and self._bounds(memory, device, q, extras.mask)
        if not self.kernel(memory, device, q, k, v, out, extras.bias, extras.mask, bounds, lse):
            self._other(memory, device, q, k, v, extras, out, lse)


class HopperBackwardPlan(BackwardPlan):
    """A backward call; see :class:`BackwardPlan`, whose kernels are for arrays at odd addresses.

    Args:
        units: multiprocessors of the device.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        problem: Problem,
        rows: int,
        tilings: BackwardTilings,
        units: int,
        bias_dtype: str = "",
    ) -> None:
        super().__init__(spec, problem, rows, tilings, padded(spec))
        self._given = spec, problem, units, bias_dtype
        self._bounds: dict[Any, MaskBounds | None] = {}
        self._hopper_bias: HopperCall | None = None
        self._room: RowCopies | None = None
        by_score = problem.strides.d_bias is not None and problem.features.bias == (True, True)
        shared = by_score and not self._direct
        if shared:
            tiling, parts = self._shared_bias_tiling()
            self._bias = self._bias_call(spec, problem, tilings.bias, parts)
        if by_score and self.bias_parts == 1:
            odd = odd_added(problem, "d_bias", bias_dtype)
            if odd is not None:
                self._room = RowCopies({"d_bias": (odd, bias_dtype)})
                problem = replace(problem, strides=problem.strides._replace(**self._room.strides))
                self._given = spec, problem, units, bias_dtype
        strides = problem.strides
        writable = by_score and copyable(strides.d_bias, ITEM_SIZES[bias_dtype])
        whole = self._direct and strides.d_bias is not None
        self._hopper_keys = self._keys_calls() if strides.dk is not None else ()
        self._hopper_queries: HopperCall | None = None
        if strides.dq is not None and (writable or not whole):
            self._hopper_queries = self._queries_call(whole)
        if shared and (writable or self.bias_parts > 1):
            self._hopper_bias = self._shared_bias_call(tiling)

    def _call(
        self,
        function: Any,
        tiling: HopperTiling,
        names: Sequence[str],
        added: Sequence[str],
        scalars: Mapping[str, Any],
        elements: int,
        length: int,
        times: int = 1,
        *,
        bounded: bool = False,
    ) -> HopperCall:
        """A call of a kernel with so many tiles for each ``tiling.rows`` positions of an element.

        ``bounded`` says whether the kernel takes a mask's bounds.
        """
        spec, problem, units, bias_dtype = self._given
        bounds = None
        if bounded:
            tiling, bounds = _bounded(spec, problem, tiling)
            self._bounds[function] = bounds
        layouts = Layouts(spec, problem, tiling, bias_dtype)
        arrays: dict[str, Array | None] = {f"{name}_desc": layouts(name) for name in names}
        arrays |= {name: layouts.added(name) for name in added}
        if bounded:
            arrays["bounds"] = None if bounds is None else Array("int32")
        arrays["rows"] = layouts.rows()
        numbers = layouts.numbers(elements, length, units, _places(bounds))
        programs = layouts.programs(elements * times, length, units)
        return HopperCall(function, tiling, arrays, scalars, numbers, programs)

    def _keys_calls(self) -> tuple[HopperCall, ...]:
        """Of the kernel for k and v; of wide heads, of that for v and of that for k."""
        spec, problem, _, bias_dtype = self._given
        scalars = {"scale": spec.scale}
        elements = problem.elements // problem.share
        given, added = (*_OPERANDS, "dk", "dv"), ("bias", "mask")
        if not is_wide(spec):
            shapes = keys_shapes(spec, problem)
            tiling = fitting(problem, bias_dtype, shapes, spec.q_len, shared_bytes, turned=True)
            return (self._call(hopper_keys_kernel, tiling, given, added, scalars, elements, spec.kv_len, bounded=True),)
        tiling = fitting(problem, bias_dtype, [Shape(2, 64, 3), Shape(2, 64, 2)], spec.q_len, bytes_of_one, turned=True)
        values = self._call(hopper_values_kernel, tiling, ("q", "k", "d_out", "dv"), (), {}, elements, spec.kv_len)
        tiling = fitting(problem, bias_dtype, WIDE_SHAPES, spec.q_len, shared_bytes, turned=True, dv=False)
        keys = self._call(hopper_keys_kernel, tiling, given, added, scalars, elements, spec.kv_len, bounded=True)
        return values, keys

    def _queries_call(self, d_bias: bool) -> HopperCall:
        spec, problem, _, bias_dtype = self._given
        tiling = fitting(
            problem,
            bias_dtype,
            queries_shapes(spec, problem),
            spec.kv_len,
            lambda tiling: shared_bytes(tiling) + tiling.rows * tiling.kept(0) * ITEM * (not tiling.wide),
            d_bias=d_bias,
        )
        scalars = {"scale": spec.scale}
        given, added = (*_OPERANDS, "dq"), ("bias", "mask", "d_bias")
        elements = problem.elements
        return self._call(hopper_queries_kernel, tiling, given, added, scalars, elements, spec.q_len, bounded=True)

    def _shared_bias_tiling(self) -> tuple[HopperTiling, int]:
        """Of the kernel for a bias that batch elements share, and in how many parts it sums these up."""
        spec, problem, units, bias_dtype = self._given
        features = problem.features
        shapes = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 32, 2)]
        if is_small(spec) and not (features.masked or features.left or features.right or bias_dtype == "float32"):
            # More of these take more registers than there are.
            shapes = [Shape(2, 128, 2)]
        tiling = fitting(
            problem,
            bias_dtype,
            shapes,
            spec.kv_len,
            lambda tiling: tiling.stages * pair_bytes(tiling) + tiling.rows * tiling.block * tiling.bias_item,
            d_bias=True,
        )
        own = prod(bias_sizes(problem)[0])
        tiles = own * -(-spec.q_len // tiling.rows) * -(-spec.kv_len // tiling.block)
        parts = parts_of_sums(tiles, problem.elements // own, units)
        return replace(tiling, in_parts=parts > 1), parts

    def _shared_bias_call(self, tiling: HopperTiling) -> HopperCall:
        spec, problem, _, _ = self._given
        assert spec.bias is not None
        own = prod(bias_sizes(problem)[0])
        key_tiles = -(-spec.kv_len // tiling.block)
        *batch, row, column = problem.strides.d_bias
        parts = Parts._make((self.bias_parts, prod(spec.bias), *of_batch(tuple(batch), 0), row, column))
        scalars: dict[str, Any] = {"key_tiles": key_tiles, "sharers": problem.elements // own, "parts": parts}
        added, times = ("bias", "mask", "d_bias"), key_tiles * self.bias_parts
        return self._call(hopper_bias_kernel, tiling, _OPERANDS, added, scalars, own, spec.q_len, times)

    def _bounds_of(self, function: Any, memory: Memory, device: int, like: Any, extras: Extras) -> Any:
        """The mask's bounds for a kernel, if it goes by them."""
        bounds = self._bounds.get(function)
        return bounds and bounds(memory, device, like, extras.mask)

    def _run_keys(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, dk, dv, extras = arrays
        bounds = self._bounds_of(hopper_keys_kernel, memory, device, q, extras)
        given = (q, k, v, d_out, dk, dv, extras.bias, extras.mask, bounds, padded)
        queued = bool(self._hopper_keys)
        for call in self._hopper_keys:
            own = given if call is self._hopper_keys[-1] else (q, k, d_out, dv, padded)
            queued = queued and call(memory, device, *own)
        if not queued:
            super()._run_keys(memory, device, padded, *arrays)

    def _run_queries(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, dq, d_bias, extras = arrays
        bounds = self._bounds_of(hopper_queries_kernel, memory, device, q, extras)
        written = self._rooms(memory, device, d_bias)
        given = (q, k, v, d_out, dq, extras.bias, extras.mask, written, bounds, padded)
        if self._hopper_queries is None or not self._hopper_queries(memory, device, *given):
            super()._run_queries(memory, device, padded, *arrays)
        else:
            self._back(memory, device, written, d_bias)

    def _run_bias(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, d_bias, extras = arrays
        written = self._rooms(memory, device, d_bias)
        given = (q, k, v, d_out, extras.bias, extras.mask, written, padded)
        if self._hopper_bias is None or not self._hopper_bias(memory, device, *given):
            super()._run_bias(memory, device, padded, *arrays)
        else:
            self._back(memory, device, written, d_bias)

    def _rooms(self, memory: Memory, device: int, d_bias: Any) -> Any:
        """Memory for the gradient of the bias where the hardware can write it, if it can't where that belongs."""
        if self._room is None:
            return d_bias
        arrays = {"d_bias": d_bias}
        # Zeros of what isn't seen have to be there, too.
        found = self._room.of(memory, device, arrays) if self.bias_starts_at_zero else self._room.rooms(memory, arrays)
        return found["d_bias"]

    def _back(self, memory: Memory, device: int, written: Any, d_bias: Any) -> None:
        if written is not d_bias:
            assert self._room is not None
            self._room.back(memory, device, {"d_bias": written}, {"d_bias": d_bias})
