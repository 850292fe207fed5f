"""Running our attention kernels on torch's tensors: plans by spec and layouts, memory for what the kernels write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch import fp32_precision
from einops_fast.backends.torch_memory import TorchMemory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import BackwardPlan, Gradients, is_whole
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper_decode_plan import HopperDecodePlan, decode_tiling, suits_decode
from einops_fast.backends.triton.attention.hopper_plan import (
    HopperBackwardPlan,
    HopperForwardPlan,
    suits_hopper,
    suits_hopper_backward,
)
from einops_fast.backends.triton.attention.problem import Layout, Problem, contiguous_in_order, missing_axes, problem
from einops_fast.backends.triton.attention.tilings import (
    BackwardTilings,
    Tiling,
    backward_tilings,
    forward_tilings,
)
from einops_fast.backends.triton.launch import accumulator, interpreted
from einops_fast.layout import contiguous_strides

__all__ = [
    "Arrays",
    "Differentiated",
    "backward",
    "backward_candidates",
    "dense_strides",
    "forward",
    "forward_candidates",
    "result_layout",
]

MEMORY = TorchMemory()

_MOST_PLANS = 4096

_CACHED, _TABLE = 11, 12
"""Where the lengths of sequences and the block table are among the arrays."""

Arrays = tuple[Any, ...]
"""q, k and v, then the other arrays of :class:`~einops_fast.attention.spec.AttentionInputs`, in its order."""

Differentiated = tuple[Any, Any, Any, Any, Any]
"""Gradients of q, k, v, the bias and the sinks; ``None`` for those that weren't asked for."""


class _Forward:
    """A plan, and the shapes and strides of what it writes."""

    def __init__(self, spec: AttentionSpec, arrays: Arrays) -> None:
        q = arrays[0]
        rows = q.shape[-2]
        self.shape, self.strides = result_layout(spec, rows)
        logs = self.shape[:-1]
        self.lse = logs, contiguous_strides(logs), getattr(torch, accumulator(spec.dtype))
        found = problem(spec, _layouts(spec, arrays), _precision(spec), _upcast(spec))
        plan = ForwardPlan(spec, found, rows, forward_candidates(spec, found, q.device)[0])
        capability, units = _device(q.device)
        of_bias = _bias_dtype(arrays)
        self.run: ForwardPlan | HopperForwardPlan | HopperDecodePlan = plan
        if suits_hopper(spec, found, capability, of_bias):
            self.run = HopperForwardPlan(spec, found, units, plan, of_bias)
        elif suits_decode(spec, found, capability):
            dtypes = _dtype_of(arrays[_CACHED]), _dtype_of(arrays[_TABLE])
            self.run = HopperDecodePlan(spec, found, units, plan, dtypes, decode_tiling(spec, found))


class _Backward:
    """A plan, and the layouts of the gradients that it writes; of one that is to be summed, no strides."""

    def __init__(self, spec: AttentionSpec, arrays: Arrays, d_out: Any, wanted: Sequence[bool]) -> None:
        q, k, v, bias = arrays[:4]
        of_q, of_k, of_v, of_bias, _ = wanted
        self.sums = accumulator(spec.dtype)
        # The kernel for q writes the gradient of a bias with all axes, too.
        self.q = _gradient_layout(spec, "q", q) if of_q or (of_bias and is_whole(spec)) else None
        self.k, self.v = (
            _gradient_layout(spec, name, operand) if of_k or of_v else None for name, operand in (("k", k), ("v", v))
        )
        layouts = _layouts(spec, arrays)
        layouts["d_out"] = _layout(d_out)
        for name, layout in (("dq", self.q), ("dk", self.k), ("dv", self.v)):
            if layout is not None:
                shape, strides = layout
                layouts[name] = shape, strides or contiguous_in_order(shape, range(len(shape)))
        if of_bias:
            self.bias = tuple(bias.shape), dense_strides(bias)
            layouts["d_bias"] = self.bias
        found = problem(spec, layouts, _precision(spec), _upcast(spec))
        tilings = backward_candidates(spec, found, q.device)[0]
        capability, units = _device(q.device)
        rows, bias_dtype = q.shape[-2], _bias_dtype(arrays)
        if suits_hopper_backward(spec, found, capability, bias_dtype):
            self.run: BackwardPlan = HopperBackwardPlan(spec, found, rows, tilings, units, bias_dtype)
        else:
            self.run = BackwardPlan(spec, found, rows, tilings)
        self.missing = {name: missing_axes(spec, name) for name in ("q", "k", "v")}

    def array(self, layout: tuple[tuple[int, ...], tuple[int, ...] | None] | None, like: Any) -> Any:
        """Memory for a gradient."""
        if layout is None:
            return None
        shape, strides = layout
        if strides is None:
            return MEMORY.workspace(like, prod(shape), self.sums).view(shape)
        return MEMORY.empty(like, shape, strides)

    def bias_array(self, bias: Any) -> Any:
        """Memory for the gradient of the bias, or for the parts that it is the sum of."""
        shape, strides = self.bias
        if self.run.bias_parts > 1:
            elements = prod(shape)
            parts = MEMORY.workspace(bias, self.run.bias_parts * elements, self.sums)
            return parts.as_strided((self.run.bias_parts, *shape), (elements, *strides))
        found = MEMORY.empty(bias, shape, strides)
        return found.zero_() if self.run.bias_starts_at_zero else found

    def summed(self, name: str, gradient: Any, operand: Any) -> Any:
        """The gradient of an operand that lacks axes: the sum over them."""
        missing = self.missing[name]
        return gradient.sum(missing, keepdim=True).to(operand.dtype) if missing else gradient


_forward_plans: dict[Any, _Forward] = {}
_backward_plans: dict[Any, _Backward] = {}


def forward(spec: AttentionSpec, arrays: Arrays) -> tuple[Any, Any]:
    """The result and the logarithms, without regard to gradients."""
    q, k, v, *others = arrays
    key = (spec, *_key(spec, arrays))
    prepared = _forward_plans.get(key)
    if prepared is None:
        if len(_forward_plans) >= _MOST_PLANS:
            _forward_plans.clear()
        prepared = _forward_plans[key] = _Forward(spec, arrays)
    shape = prepared.shape
    out = MEMORY.empty(q, shape, prepared.strides)
    rows, strides, dtype = prepared.lse
    lse = MEMORY.empty(q, rows, strides, dtype=dtype)
    if spec.varlen:
        # Tokens of no sequence.
        out.zero_()
        lse.fill_(float("-inf"))
    device = MEMORY.device(q)
    if MEMORY.current_device() == device:
        prepared.run(MEMORY, device, q, k, v, _extras(others), out, lse)
    else:
        with MEMORY.on_device(device):
            prepared.run(MEMORY, device, q, k, v, _extras(others), out, lse)
    return out, lse


def backward(
    spec: AttentionSpec, arrays: Arrays, out: Any, lse: Any, d_out: Any, d_lse: Any, wanted: Sequence[bool]
) -> Differentiated:
    """Gradients of q, k, v, the bias and the sinks, each as its operand lies in memory.

    Args:
        spec: what was computed.
        arrays: of what.
        out, lse: with what result.
        d_out, d_lse: gradients of these; either may be ``None``.
        wanted: of which of the five there are to be gradients.
    """
    q, k, v, *others = arrays
    extras = _extras(others)
    of_q, of_k, of_v, of_bias, of_sinks = wanted
    if not (out.numel() and k.numel()):
        # Sinks alone may have been seen: only the logarithms depend on these.
        d_sinks = None
        if of_sinks:
            d_sinks = _sinks_gradient(spec, extras, lse, torch.zeros_like(lse) if d_lse is None else -d_lse)
        none = [torch.zeros_like(each) if is_wanted else None
                for each, is_wanted in zip((q, k, v, extras.bias), wanted, strict=False)]  # fmt: skip
        return none[0], none[1], none[2], none[3], d_sinks
    d_out = torch.zeros_like(out) if d_out is None else d_out.resolve_neg()
    if d_lse is not None:
        d_lse = d_lse.resolve_neg().contiguous()
    key = (spec, d_out.stride(), d_lse is None, *wanted, *_key(spec, arrays))
    prepared = _backward_plans.get(key)
    if prepared is None:
        if len(_backward_plans) >= _MOST_PLANS:
            _backward_plans.clear()
        prepared = _backward_plans[key] = _Backward(spec, arrays, d_out, wanted)
    plan = prepared.run
    into = Gradients(prepared.array(prepared.q, q), prepared.array(prepared.k, k), prepared.array(prepared.v, v))
    if of_bias:
        into.bias = prepared.bias_array(extras.bias)
    if spec.varlen:
        for array in (into.q, into.k, into.v):
            if array is not None:
                array.zero_()
    device = MEMORY.device(q)
    if MEMORY.current_device() == device:
        delta = plan(MEMORY, device, (q, k, v), (out, lse), (d_out, d_lse), extras, into)
    else:
        with MEMORY.on_device(device):
            delta = plan(MEMORY, device, (q, k, v), (out, lse), (d_out, d_lse), extras, into)
    d_bias = into.bias
    if of_bias and plan.bias_parts > 1:
        d_bias = d_bias.sum(0).to(extras.bias.dtype)
    return (
        prepared.summed("q", into.q, q) if of_q else None,
        prepared.summed("k", into.k, k) if of_k else None,
        prepared.summed("v", into.v, v) if of_v else None,
        d_bias,
        _sinks_gradient(spec, extras, lse, delta.view(lse.shape)) if of_sinks else None,
    )


def result_layout(spec: AttentionSpec, rows: int) -> Layout:
    """Shape and strides of the result, in the order that was asked for."""
    batch = (1, *spec.batch[1:]) if spec.varlen else spec.batch
    shape = (*batch, rows, spec.v_head_dim)
    return shape, contiguous_in_order(shape, spec.order or range(len(shape)))


def forward_candidates(spec: AttentionSpec, found: Problem, device: Any) -> list[Tiling]:
    """Tilings of the forward kernel on this device, the first one the default."""
    return forward_tilings(spec, found, *_device(device))


def backward_candidates(spec: AttentionSpec, found: Problem, device: Any) -> list[BackwardTilings]:
    """The same of the backward kernels."""
    return backward_tilings(spec, found, _device(device)[0])


@lru_cache(maxsize=64)
def _device(device: Any) -> tuple[tuple[int, int], int]:
    """Compute capability and number of processors; of the interpreter, those of a large GPU."""
    if device.type != "cuda":
        return (9, 0), 132
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)


def _bias_dtype(arrays: Arrays) -> str:
    """Of the bias, if there is one."""
    return _dtype_of(arrays[3])


def _dtype_of(array: Any) -> str:
    return "" if array is None else str(array.dtype).removeprefix("torch.")


def _precision(spec: AttentionSpec) -> str:
    """How products may be made."""
    return fp32_precision() if spec.dtype == "float32" else "ieee"


def _upcast(spec: AttentionSpec) -> bool:
    return interpreted() and spec.dtype == "bfloat16"


def _extras(others: Sequence[Any]) -> Extras:
    bias, mask, slopes, sinks, q_segments, kv_segments, q_starts, kv_starts, cached, table, seed = others
    return Extras(
        bias, mask, slopes, sinks, q_segments, kv_segments,
        None if q_starts is None else q_starts.contiguous(),
        None if kv_starts is None else kv_starts.contiguous(),
        None if cached is None else cached.contiguous(),
        table, seed,
    )  # fmt: skip


def _key(spec: AttentionSpec, arrays: Arrays) -> tuple[Any, ...]:
    """What a plan depends on apart from the spec, which has most shapes."""
    q, k, v, *others = arrays
    return (
        q.get_device(), _precision(spec), q.shape, q.stride(), k.shape, k.stride(), v.stride(),
        *[None if each is None else (each.shape, each.stride(), each.dtype) for each in others],
    )  # fmt: skip


def _layout(array: Any) -> Layout:
    return tuple(array.shape), tuple(array.stride())


_NAMES = ("q", "k", "v", "bias", "mask", "slopes", "sinks", "q_segments", "kv_segments", "", "", "", "table", "")
"""The arrays as :class:`Strides` calls them; without a name, those that are always contiguous."""


def _layouts(spec: AttentionSpec, arrays: Arrays) -> dict[str, Layout]:
    found = {name: _layout(array) for name, array in zip(_NAMES, arrays, strict=True) if name and array is not None}
    found["out"] = shape, _ = result_layout(spec, arrays[0].shape[-2])
    found["lse"] = shape[:-1], contiguous_in_order(shape[:-1], range(len(shape) - 1))
    return found


def dense_strides(array: Any) -> tuple[int, ...]:
    """Strides of an array of the same shape, without gaps and in the same order of axes."""
    strides = array.stride()
    return contiguous_in_order(array.shape, sorted(range(array.dim()), key=lambda axis: -int(strides[axis])))


def _gradient_layout(spec: AttentionSpec, name: str, operand: Any) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Of what a kernel writes: it has all batch axes that the kernel doesn't sum over itself."""
    missing = missing_axes(spec, name)
    if not missing:
        return tuple(operand.shape), dense_strides(operand)
    return tuple(spec.batch[at] if at in missing else size for at, size in enumerate(operand.shape)), None


def _sinks_gradient(spec: AttentionSpec, extras: Extras, lse: Any, delta: Any) -> Any:
    """A sink is a key without a value: the gradient of its score is its weight times ``-delta``."""
    sinks = extras.sinks
    by_sequence = spec.varlen and sinks.shape[0] > 1
    rows = sinks[..., None]
    if by_sequence:
        tokens = torch.arange(lse.shape[-1], device=lse.device)
        sequence = torch.bucketize(tokens, extras.q_starts[1:].long(), right=True).clamp_max(sinks.shape[0] - 1)
        rows = sinks[sequence].movedim(0, -1)[None]
    gradient = -delta * torch.where(lse == float("-inf"), 0.0, torch.exp(rows - lse))
    if by_sequence:
        # Sequence by token, for a sum whose order is always the same.
        belongs = torch.zeros((sinks.shape[0], lse.shape[-1]), dtype=gradient.dtype, device=lse.device)
        belongs[sequence, tokens] = (tokens < extras.q_starts[-1]).to(gradient.dtype)
        gradient = torch.einsum("...t,nt->n...", gradient[0], belongs)
    else:
        gradient = gradient.sum(-1)
    axes = [at for at, size in enumerate(sinks.shape) if size == 1 != gradient.shape[at]]
    return (gradient.sum(axes, keepdim=True) if axes else gradient).to(sinks.dtype)
