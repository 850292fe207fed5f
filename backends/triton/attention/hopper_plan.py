"""Where Hopper's own kernels of attention can be used, with what tiles, and their launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import BackwardPlan
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper import hopper_kernel
from einops_fast.backends.triton.attention.hopper_backward import hopper_keys_kernel, hopper_queries_kernel
from einops_fast.backends.triton.attention.hopper_call import BATCH_AXES, ITEM, HopperCall, Layouts
from einops_fast.backends.triton.attention.hopper_tiles import GROUP_ROWS, HopperTiling
from einops_fast.backends.triton.attention.problem import Problem, missing_axes
from einops_fast.backends.triton.attention.tilings import FEW_QUERIES, BackwardTilings
from einops_fast.backends.triton.launch import ALIGNMENT, interpreted
from einops_fast.backends.triton.memory import Memory

__all__ = ["HopperBackwardPlan", "HopperForwardPlan", "suits_hopper", "suits_hopper_backward"]

_MOST_FEATURES = 128

_LONG = 1024
"""Queries from which on a tile of three warp groups pays."""


def suits_hopper(
    spec: AttentionSpec, problem: Problem, capability: tuple[int, int], arrays: Sequence[str] = ("q", "k", "v", "out")
) -> bool:
    """Whether the kernels can be used.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        capability: compute capability of the device.
        arrays: that the hardware has to copy, by the names of :class:`Strides`.
    """
    features = problem.features
    if interpreted() or capability[0] != 9 or spec.dtype not in ("float16", "bfloat16") or spec.scale <= 0:
        return False
    if features.biased or features.alibi or features.sinks or features.irregular or features.dropout:
        return False
    if spec.varlen or spec.cache or spec.page_size or spec.q_len <= FEW_QUERIES or not spec.kv_len:
        return False
    if features.axes > BATCH_AXES or max(spec.head_dim, spec.v_head_dim) > _MOST_FEATURES:
        return False
    return all(_copyable(getattr(problem.strides, name)) for name in arrays)


def suits_hopper_backward(spec: AttentionSpec, problem: Problem, capability: tuple[int, int]) -> bool:
    """Whether the backward kernels can be used; see :func:`suits_hopper`."""
    if any(missing_axes(spec, name) for name in ("q", "k", "v")):
        return False
    wanted = [name for name in ("dq", "dk", "dv") if getattr(problem.strides, name) is not None]
    return suits_hopper(spec, problem, capability, ("q", "k", "v", "d_out", *wanted))


def _copyable(strides: tuple[int, ...]) -> bool:
    """Whether the hardware can count through an array's axes."""
    *others, features = strides
    return features == 1 and all(stride >= 0 and stride * ITEM % ALIGNMENT == 0 for stride in others) and others[-1] > 0


def _tiling(problem: Problem, groups: int, block: int, length: int, stages: int) -> HopperTiling:
    """A tiling whose blocks are no longer than ``length`` asks for."""
    features, strides = problem.features, problem.strides
    missing = BATCH_AXES - features.axes
    has = [(*(False,) * missing, *(stride != 0 for stride in own[:-2])) for own in (strides.q, strides.k, strides.v)]
    return HopperTiling(
        groups,
        min(block, _power(length)),
        stages,
        _power(features.head_dim),
        _power(features.v_head_dim),
        tuple(has),
        features.left,
        features.right,
        features.softcap,
        problem.share > 1,
        alternating=features.right,
    )


def _power(extent: int) -> int:
    return max(16, 1 << (extent - 1).bit_length())


def forward_shape(spec: AttentionSpec) -> tuple[int, int, int]:
    """Warp groups, keys of a block, and stages of the forward kernel."""
    if max(spec.head_dim, spec.v_head_dim) > 64:
        return 2, 128, 2
    return (2, 128, 4) if spec.q_len < _LONG else (3, 128, 3)


class HopperForwardPlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        units: multiprocessors of the device.
        other: the same by another kernel, for arrays at odd addresses.
    """

    def __init__(self, spec: AttentionSpec, problem: Problem, units: int, other: ForwardPlan) -> None:
        self._other = other
        groups, block, stages = forward_shape(spec)
        tiling = _tiling(problem, groups, block, spec.kv_len, stages)
        layouts = Layouts(spec, problem, tiling)
        described = {
            "q_desc": layouts("q", GROUP_ROWS),
            "k_desc": layouts("k", tiling.block),
            "v_desc": layouts("v", tiling.block),
            "out_desc": layouts("out", GROUP_ROWS),
        }
        numbers = layouts.numbers(problem.elements, spec.q_len, units)
        programs = layouts.programs(problem.elements, spec.q_len, units)
        self.kernel = HopperCall(hopper_kernel, tiling, described, spec.dtype, ("lse",), {}, numbers, programs)

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        if not self.kernel(memory, device, (q, k, v, out), (lse,)):
            self._other(memory, device, q, k, v, extras, out, lse)


class HopperBackwardPlan(BackwardPlan):
    """A backward call; see :class:`BackwardPlan`, whose kernels are for arrays at odd addresses.

    Args:
        units: multiprocessors of the device.
    """

    def __init__(self, spec: AttentionSpec, problem: Problem, rows: int, tilings: BackwardTilings, units: int) -> None:
        super().__init__(spec, problem, rows, tilings)
        small = max(spec.head_dim, spec.v_head_dim) <= 64
        given = {"q_desc": "q", "k_desc": "k", "v_desc": "v", "d_out_desc": "d_out"}

        def call(
            function: Any, tiling: HopperTiling, made: Mapping[str, str], elements: int, length: int, own: bool
        ) -> HopperCall:
            layouts = Layouts(spec, problem, tiling)
            # Tiles are of keys or of queries, blocks of the others.
            described = {
                name: layouts(array, GROUP_ROWS if (array in ("k", "v", "dk", "dv")) == own else tiling.block)
                for name, array in {**given, **made}.items()
            }
            return HopperCall(
                function,
                tiling,
                described,
                spec.dtype,
                ("lse", "delta"),
                {"scale": spec.scale},
                layouts.numbers(elements, length, units),
                layouts.programs(elements, length, units),
            )

        if problem.strides.dk is not None:
            tiling = _tiling(problem, 2, 64, spec.q_len, 4 if small else 2)
            self._hopper_keys = call(
                hopper_keys_kernel, tiling, {"dk_desc": "dk", "dv_desc": "dv"},
                problem.elements // problem.share, spec.kv_len, True,
            )  # fmt: skip
        if problem.strides.dq is not None:
            tiling = _tiling(problem, 2, 128 if small else 64, spec.kv_len, 3)
            self._hopper_queries = call(
                hopper_queries_kernel, tiling, {"dq_desc": "dq"}, problem.elements, spec.q_len, False
            )

    def _run_keys(self, memory: Memory, device: int, *arrays: Any) -> None:
        q, k, v, d_out, lse, delta, dk, dv, _ = arrays
        if not self._hopper_keys(memory, device, (q, k, v, d_out, dk, dv), (lse, delta)):
            super()._run_keys(memory, device, *arrays)

    def _run_queries(self, memory: Memory, device: int, *arrays: Any) -> None:
        q, k, v, d_out, lse, delta, dq, _, _ = arrays
        if not self._hopper_queries(memory, device, (q, k, v, d_out, dq), (lse, delta)):
            super()._run_queries(memory, device, *arrays)
