"""Where Hopper's own kernels of attention can be used, with what tiles, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import BackwardPlan
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper import hopper_kernel
from einops_fast.backends.triton.attention.hopper_bias_gradient import hopper_bias_kernel
from einops_fast.backends.triton.attention.hopper_call import BATCH_AXES, Array, HopperCall, Layouts, padded
from einops_fast.backends.triton.attention.hopper_keys_gradient import hopper_keys_kernel
from einops_fast.backends.triton.attention.hopper_queries_gradient import hopper_queries_kernel
from einops_fast.backends.triton.attention.hopper_tiles import (
    ITEM,
    OPERANDS,
    HopperTiling,
    own_bytes,
    pair_bytes,
    stage_bytes,
)
from einops_fast.backends.triton.attention.problem import Problem, missing_axes
from einops_fast.backends.triton.attention.tilings import FEW_QUERIES, BackwardTilings, shared_memory
from einops_fast.backends.triton.launch import ALIGNMENT, interpreted
from einops_fast.backends.triton.memory import Memory
from einops_fast.cost import ITEM_SIZES

__all__ = [
    "HopperBackwardPlan",
    "HopperForwardPlan",
    "copyable",
    "power",
    "suits_hopper",
    "suits_hopper_backward",
]

_MOST_FEATURES = 128

_FAR = 1 << 31
"""Strides of what the hardware doesn't copy are less than this."""

_BARRIERS = 1 << 10
"""Bytes of shared memory that aren't for tiles, amply."""

_LONG = 2048
"""Queries from which on a tile of three warp groups pays; with causality, of whose tiles more is hidden, four times."""


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
    if features.axes > BATCH_AXES or max(spec.head_dim, spec.v_head_dim) > _MOST_FEATURES:
        return False
    if not all(copyable(getattr(problem.strides, name), ITEM) for name in arrays):
        return False
    if features.bias is not None and bias_dtype not in ("float16", "bfloat16", "float32"):
        return False
    return _reachable(problem.strides.bias, features.bias, ITEM_SIZES.get(bias_dtype, 0)) and _reachable(
        problem.strides.mask, features.mask, 1
    )


def suits_hopper_backward(
    spec: AttentionSpec, problem: Problem, capability: tuple[int, int], bias_dtype: str = ""
) -> bool:
    """Whether the backward kernels can be used; see :func:`suits_hopper`."""
    if any(missing_axes(spec, name) for name in ("q", "k", "v")):
        return False
    wanted = [name for name in ("dq", "dk", "dv") if getattr(problem.strides, name) is not None]
    return suits_hopper(spec, problem, capability, bias_dtype, ("q", "k", "v", "d_out", *wanted))


def copyable(strides: tuple[int, ...], item: int) -> bool:
    """Whether the hardware can count through an array's axes."""
    *others, last = strides
    return last == 1 and all(stride >= 0 and stride * item % ALIGNMENT == 0 for stride in others) and others[-1] > 0


def _reachable(strides: tuple[int, ...] | None, along: tuple[bool, bool] | None, item: int) -> bool:
    """Whether the kernels can get at a bias or a mask, if there is one."""
    if strides is None or along is None:
        return True
    if along == (True, True):
        return copyable(strides, item)
    return all(abs(stride) < _FAR for stride in strides)


def _added(problem: Problem) -> bool:
    """Whether there is a bias or a mask, which takes registers."""
    return problem.features.bias is not None or problem.features.mask is not None


def _fitting(
    problem: Problem,
    bias_dtype: str,
    shapes: Sequence[tuple[int, ...]],
    length: int,
    size: Callable[[HopperTiling], int],
    **others: bool,
) -> HopperTiling:
    """The first tiling for which there is shared memory.

    Args:
        problem: what is computed.
        bias_dtype: of the bias.
        shapes: warp groups, block and stages of each; how many tiles of a program's own, if not one.
        length: that blocks divide among them; no block is longer than it asks for.
        size: bytes of shared memory that a tiling takes.
        others: fields of the tiling.
    """
    features, strides = problem.features, problem.strides
    missing = BATCH_AXES - features.axes

    def axes(name: str) -> tuple[bool, ...]:
        tail = strides.q if name == "out" or getattr(strides, name) is None else getattr(strides, name)
        return (*(False,) * missing, *(name == "out" or stride != 0 for stride in tail[:-2]))

    found = [
        HopperTiling(
            groups,
            min(block, power(length)),
            stages,
            power(features.head_dim),
            power(features.v_head_dim),
            tuple(axes(name) for name in OPERANDS),
            features.left,
            features.right,
            features.softcap,
            problem.share > 1,
            bias=features.bias,
            mask=features.mask,
            bias_item=ITEM_SIZES.get(bias_dtype, 0),
            own=own[0] if own else 1,
            **others,
        )
        for groups, block, stages, *own in shapes
    ]
    most = shared_memory((9, 0)) - _BARRIERS
    return next(tiling for tiling in found if tiling is found[-1] or size(tiling) <= most)


def _shared_bytes(tiling: HopperTiling) -> int:
    """Of two arrays' tiles, of all blocks, and of rows' numbers where blocks have queries."""
    rows = 2 * tiling.block * ITEM_SIZES["float32"] if tiling.turned else 0
    return int(own_bytes(tiling) + tiling.stages * (stage_bytes(tiling) + rows))


def _small(spec: AttentionSpec) -> bool:
    return max(spec.head_dim, spec.v_head_dim) <= 64


def power(extent: int) -> int:
    """The smallest tile that holds so many positions or features."""
    return max(16, 1 << (extent - 1).bit_length())


def _forward_shapes(spec: AttentionSpec, problem: Problem) -> list[tuple[int, ...]]:
    """Warp groups, keys of a block, stages, and tiles of its own of the forward kernel."""
    if not _small(spec):
        return [(2, 128, 2), (2, 64, 3), (2, 64, 2)]
    causal = problem.features.right
    if spec.q_len < _LONG * (4 if causal else 1) or _added(problem):
        return [(2, 128, 4, 2), (2, 128, 3, 2), (2, 128, 2, 2), (2, 128, 2), (2, 64, 2)]
    return [(3, 128, 3, 2 if causal else 1)]


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
        shapes = _forward_shapes(spec, problem)
        tiling = _fitting(problem, bias_dtype, shapes, spec.kv_len, _shared_bytes)
        layouts = Layouts(spec, problem, tiling, bias_dtype)
        arrays: dict[str, Array | None] = {f"{name}_desc": layouts(name) for name in ("q", "k", "v", "out")}
        arrays |= {"bias": layouts.added("bias"), "mask": layouts.added("mask"), "lse": Array("float32")}
        numbers = layouts.numbers(problem.elements, spec.q_len, units)
        programs = layouts.programs(problem.elements, spec.q_len, units)
        self.kernel = HopperCall(hopper_kernel, tiling, arrays, {}, numbers, programs)

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        if not self.kernel(memory, device, q, k, v, out, extras.bias, extras.mask, lse):
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
        strides = problem.strides
        writable = (
            strides.d_bias is not None
            and problem.features.bias == (True, True)
            and copyable(strides.d_bias, ITEM_SIZES[bias_dtype])
        )
        whole = self._direct and strides.d_bias is not None
        self._hopper_keys = self._keys_call() if strides.dk is not None else None
        self._hopper_queries: HopperCall | None = None
        if strides.dq is not None and (writable or not whole):
            self._hopper_queries = self._queries_call(whole)
        self._hopper_bias: HopperCall | None = None
        if self._bias is not None and writable and self.bias_parts == 1:
            self._hopper_bias = self._shared_bias_call()

    def _call(
        self,
        function: Any,
        tiling: HopperTiling,
        made: Sequence[str],
        scalars: Mapping[str, float],
        elements: int,
        length: int,
        times: int = 1,
    ) -> HopperCall:
        """A call of a kernel with so many tiles for each ``tiling.rows`` positions of an element."""
        spec, problem, units, bias_dtype = self._given
        layouts = Layouts(spec, problem, tiling, bias_dtype)
        arrays: dict[str, Array | None] = {f"{name}_desc": layouts(name) for name in ("q", "k", "v", "d_out", *made)}
        arrays |= {"bias": layouts.added("bias"), "mask": layouts.added("mask")}
        if not tiling.turned:
            arrays["d_bias"] = layouts.added("d_bias")
        arrays["rows"] = layouts.rows()
        numbers = layouts.numbers(elements, length, units)
        programs = layouts.programs(elements * times, length, units)
        return HopperCall(function, tiling, arrays, scalars, numbers, programs)

    def _keys_call(self) -> HopperCall:
        spec, problem, _, bias_dtype = self._given
        shapes = [(2, 64, 4, 2), (2, 64, 3, 2), (2, 64, 2, 2), (2, 64, 2), (2, 32, 2)][0 if _small(spec) else 2 :]
        tiling = _fitting(problem, bias_dtype, shapes, spec.q_len, _shared_bytes, turned=True)
        elements = problem.elements // problem.share
        return self._call(hopper_keys_kernel, tiling, ("dk", "dv"), {"scale": spec.scale}, elements, spec.kv_len)

    def _queries_call(self, d_bias: bool) -> HopperCall:
        spec, problem, _, bias_dtype = self._given
        shapes: list[tuple[int, ...]] = [(2, 64, 3), (2, 64, 2), (2, 32, 2)]
        if _small(spec):
            shapes = [(2, 64, 4), *shapes] if _added(problem) else [(2, 128, 3, 2)]
        tiling = _fitting(
            problem,
            bias_dtype,
            shapes,
            spec.kv_len,
            lambda tiling: _shared_bytes(tiling) + tiling.rows * tiling.head * ITEM,
            d_bias=d_bias,
        )
        scalars = {"scale": spec.scale}
        return self._call(hopper_queries_kernel, tiling, ("dq",), scalars, problem.elements, spec.q_len)

    def _shared_bias_call(self) -> HopperCall:
        spec, problem, _, bias_dtype = self._given
        features = problem.features
        shapes = [(2, 64, 3), (2, 64, 2), (2, 32, 2)]
        if _small(spec) and not (features.masked or features.left or features.right or bias_dtype == "float32"):
            # More of these take more registers than there are.
            shapes = [(2, 128, 2)]
        tiling = _fitting(
            problem,
            bias_dtype,
            shapes,
            spec.kv_len,
            lambda tiling: tiling.stages * pair_bytes(tiling) + tiling.rows * tiling.block * tiling.bias_item,
            d_bias=True,
        )
        own = prod(size for size, stride in zip(problem.sizes, problem.strides.d_bias, strict=False) if stride)
        key_tiles = -(-spec.kv_len // tiling.block)
        scalars = {"key_tiles": key_tiles, "sharers": problem.elements // own}
        return self._call(hopper_bias_kernel, tiling, (), scalars, own, spec.q_len, key_tiles)

    def _run_keys(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, dk, dv, extras = arrays
        given = (q, k, v, d_out, dk, dv, extras.bias, extras.mask, padded)
        if self._hopper_keys is None or not self._hopper_keys(memory, device, *given):
            super()._run_keys(memory, device, padded, *arrays)

    def _run_queries(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, dq, d_bias, extras = arrays
        given = (q, k, v, d_out, dq, extras.bias, extras.mask, d_bias, padded)
        if self._hopper_queries is None or not self._hopper_queries(memory, device, *given):
            super()._run_queries(memory, device, padded, *arrays)

    def _run_bias(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        q, k, v, d_out, _, _, d_bias, extras = arrays
        given = (q, k, v, d_out, extras.bias, extras.mask, d_bias, padded)
        if self._hopper_bias is None or not self._hopper_bias(memory, device, *given):
            super()._run_bias(memory, device, padded, *arrays)
