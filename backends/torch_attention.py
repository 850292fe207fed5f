"""Attention by our Triton kernels on torch's tensors, with gradients of q, k, v, the bias and the sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from math import prod
from typing import Any

import torch

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch import fp32_precision
from einops_fast.backends.torch_memory import TorchMemory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import BackwardPlan, Gradients
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.problem import (
    Layout,
    contiguous_in_order,
    missing_axes,
    problem,
)
from einops_fast.backends.triton.attention.tilings import (
    BackwardTilings,
    Tiling,
    backward_tilings,
    forward_tilings,
)
from einops_fast.backends.triton.launch import DTYPES, accumulator, interpreted

__all__ = ["Differentiated", "backward", "forward", "second_order", "triton_attention", "unsupported"]

MEMORY = TorchMemory()

_MOST_FEATURES = 256

_MOST_PLANS = 4096

second_order: Callable[[AttentionSpec, AttentionInputs], tuple[Any, Any]] | None = None
"""An attention that torch can differentiate twice, for gradients of gradients; set it to have these."""

Differentiated = tuple[Any, Any, Any, Any, Any]
"""Gradients of q, k, v, the bias and the sinks; ``None`` for those that weren't asked for."""


def unsupported(spec: AttentionSpec) -> str | None:
    """Why the kernels can't compute this, in one sentence; ``None`` if they can."""
    if spec.dtype not in DTYPES:
        return f"the kernels compute on {', '.join(DTYPES)}, not {spec.dtype}"
    if spec.transforms:
        return "the kernels have no forward mode and no transforms of functions"
    for name, features in (("head_dim", spec.head_dim), ("v_head_dim", spec.v_head_dim)):
        if not 1 <= features <= _MOST_FEATURES:
            return f"the kernels take 1 to {_MOST_FEATURES} features, {name} is {features}"
    if spec.page_size and spec.gradients:
        return "the kernels have no gradients of a cache in pages"
    return None


def triton_attention(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    """``softmax(scale * q @ k.T + …) @ v`` for tensors in canonical order with any strides; nothing is copied.

    Differentiable in q, k, v, the bias and the sinks, through the result and through the logarithms.

    Args:
        spec: what to compute; see :func:`unsupported`.
        inputs: the tensors.

    Returns:
        The result ``(*batch, q_len, v_head_dim)``, contiguous in ``spec.order`` of its axes, and the logarithms of the
        rows' sums ``(*batch, q_len)``, float32 or, of float64, float64.

    Raises:
        NotImplementedError: from backward, where gradients are differentiated again.
    """
    arrays = _arrays(inputs)
    if torch.compiler.is_compiling() or type(inputs.q) not in (torch.Tensor, torch.nn.Parameter):
        # Imported here because it registers operators that are made of these functions.
        from einops_fast.backends.torch_attention_ops import attention_forward, constants

        out, lse = attention_forward(*arrays, *constants(spec))
        return out, lse
    differentiable = (*arrays[:4], inputs.sinks)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in differentiable):
        out, lse = _Attention.apply(spec, *arrays)
        return out, lse
    return forward(spec, arrays)


Arrays = tuple[Any, ...]
"""q, k and v, then the other arrays in the order of :class:`Extras`."""


def _arrays(inputs: AttentionInputs) -> Arrays:
    return (
        inputs.q, inputs.k, inputs.v, inputs.bias, inputs.mask, inputs.alibi_slopes, inputs.sinks, inputs.q_segments,
        inputs.kv_segments, inputs.cu_seqlens_q, inputs.cu_seqlens_kv, inputs.cache_seqlens, inputs.block_table,
        inputs.seed,
    )  # fmt: skip


def _inputs(arrays: Arrays) -> AttentionInputs:
    return AttentionInputs(*arrays)


class _Attention(torch.autograd.Function):
    """What autograd sees. Without ``setup_context``, which takes longer."""

    @staticmethod
    def forward(ctx: Any, spec: AttentionSpec, *arrays: Any) -> tuple[Any, Any]:
        out, lse = forward(spec, arrays)
        ctx.spec = spec
        ctx.save_for_backward(*arrays, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        *arrays, out, lse = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[1 + at] for at in _DIFFERENTIABLE)
        if d_out is None and d_lse is None:
            return (None,) * (1 + len(arrays))
        if torch.is_grad_enabled():
            found = _Gradients.apply(ctx.spec, wanted, d_out, d_lse, out, lse, *arrays)
        else:
            found = backward(ctx.spec, tuple(arrays), out, lse, d_out, d_lse, wanted)
        gradients: list[Any] = [None] * (1 + len(arrays))
        for at, gradient in zip(_DIFFERENTIABLE, found, strict=True):
            gradients[1 + at] = gradient
        return tuple(gradients)


_DIFFERENTIABLE = (0, 1, 2, 3, 6)
"""Where q, k, v, the bias and the sinks are among the arrays."""


class _Gradients(torch.autograd.Function):
    """The gradients, to be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, spec: AttentionSpec, wanted: Sequence[bool], d_out: Any, d_lse: Any, out: Any, lse: Any, *arrays: Any
    ) -> Any:
        ctx.spec, ctx.wanted = spec, wanted
        ctx.save_for_backward(d_out, d_lse, *arrays)
        ctx.set_materialize_grads(False)
        return backward(spec, arrays, out, lse, d_out, d_lse, wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        d_out, d_lse, *arrays = ctx.saved_tensors
        again = differentiated_twice(ctx.spec, tuple(arrays), d_out, d_lse, ctx.wanted, gradients)
        return None, None, *again[:2], None, None, *again[2:]


def differentiated_twice(
    spec: AttentionSpec, arrays: Arrays, d_out: Any, d_lse: Any, wanted: Sequence[bool], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """Gradients of gradients, through :data:`second_order`: of ``d_out``, ``d_lse`` and each array."""
    if second_order is None or spec.dropout_p:
        raise NotImplementedError(
            "attention by the Triton kernels can't be differentiated twice: use attention_backend('math')"
        )
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() if at in _DIFFERENTIABLE and each is not None else each
                  for at, each in enumerate(arrays)]  # fmt: skip
        seeds = [None if each is None else each.detach().requires_grad_() for each in (d_out, d_lse)]
        results = second_order(spec, _inputs(tuple(leaves)))
        ways = [(result, seed) for result, seed in zip(results, seeds, strict=True) if seed is not None]
        of = [leaves[at] for at, is_wanted in zip(_DIFFERENTIABLE, wanted, strict=True) if is_wanted]
        first = torch.autograd.grad([way[0] for way in ways], of, [way[1] for way in ways], create_graph=True)
        back = [each for each, is_wanted in zip(gradients, wanted, strict=True) if is_wanted]
        pairs = [(each, seed) for each, seed in zip(first, back, strict=True) if seed is not None]
        inputs = [each for each in (*seeds, *leaves) if each is not None and each.requires_grad]
        found = iter(
            torch.autograd.grad([pair[0] for pair in pairs], inputs, [pair[1] for pair in pairs], allow_unused=True)
        )
    return tuple(
        next(found) if each is not None and each.requires_grad else None for each in (*seeds, *leaves)
    )


class _Prepared:
    """A plan, and the shapes and strides of what it writes to."""

    def __init__(self, plan: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.plan, self.shape, self.strides = plan, shape, strides


_forward_plans: dict[Any, _Prepared] = {}
_backward_plans: dict[Any, BackwardPlan] = {}


def forward(spec: AttentionSpec, arrays: Arrays) -> tuple[Any, Any]:
    """The result and the logarithms, without regard to gradients."""
    q, k, v, *others = arrays
    extras = _extras(others)
    key = (spec, q.device, *_key(arrays))
    prepared = _forward_plans.get(key)
    if prepared is None:
        if len(_forward_plans) >= _MOST_PLANS:
            _forward_plans.clear()
        prepared = _forward_plans[key] = _prepare(spec, arrays)
    shape = prepared.shape
    out = MEMORY.empty(q, shape, prepared.strides)
    lse = MEMORY.workspace(q, prod(shape[:-1]), accumulator(spec.dtype))
    if spec.varlen:
        # Tokens of no sequence.
        out.zero_()
        lse.fill_(float("-inf"))
    with _on(q):
        prepared.plan(MEMORY, MEMORY.device(q), q, k, v, extras, out, lse)
    return out, lse.view(shape[:-1])


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
    if d_out is None:
        d_out = torch.zeros_like(out)
    if d_lse is not None:
        d_lse = d_lse.contiguous()
    if not (out.numel() and k.numel()):
        found = [torch.zeros_like(each) if is_wanted else None
                 for each, is_wanted in zip((q, k, v, extras.bias, extras.sinks), wanted, strict=True)]  # fmt: skip
        return tuple(found)  # type: ignore[return-value]
    direct = of_bias and spec.bias == (*spec.batch, spec.q_len, spec.kv_len)
    into = Gradients()
    if of_q or direct:
        into.q = _gradient_array(spec, "q", q)
    if of_k or of_v:
        into.k, into.v = _gradient_array(spec, "k", k), _gradient_array(spec, "v", v)
    layouts = _layouts(arrays, out, lse)
    layouts["d_out"] = _layout(d_out)
    for name, array in (("dq", into.q), ("dk", into.k), ("dv", into.v)):
        if array is not None:
            layouts[name] = _layout(array)
    shape: tuple[int, ...] = ()
    if of_bias:
        shape = tuple(extras.bias.shape)
        strides = dense_strides(extras.bias) if direct else contiguous_in_order(shape, range(len(shape)))
        layouts["d_bias"] = (shape, strides)
    key = (spec, q.device, *_key(arrays), tuple(wanted), tuple(layouts.items()), d_lse is None)
    plan = _backward_plans.get(key)
    if plan is None:
        if len(_backward_plans) >= _MOST_PLANS:
            _backward_plans.clear()
        plan = _backward_plans[key] = _prepare_backward(spec, q, layouts)
    if direct:
        into.bias = MEMORY.empty(extras.bias, shape, layouts["d_bias"][1])
        if plan.bias_starts_at_zero:
            into.bias.zero_()
    elif of_bias:
        into.bias = MEMORY.workspace(q, plan.bias_parts * prod(shape), accumulator(spec.dtype))
    if spec.varlen:
        for array in (into.q, into.k, into.v):
            if array is not None:
                array.zero_()
    with _on(q):
        delta = plan(MEMORY, MEMORY.device(q), (q, k, v), (out, lse), (d_out, d_lse), extras, into)
    d_bias = into.bias
    if of_bias and not direct:
        d_bias = into.bias.view(plan.bias_parts, *shape).sum(0).to(extras.bias.dtype)
    d_sinks = _sinks_gradient(spec, extras, lse, delta.view(lse.shape)) if of_sinks else None
    return (
        _summed(spec, "q", into.q, q) if of_q else None,
        _summed(spec, "k", into.k, k) if of_k else None,
        _summed(spec, "v", into.v, v) if of_v else None,
        d_bias,
        d_sinks,
    )


def _on(array: Any) -> Any:
    """Makes the array's device the current one, if it isn't."""
    if array.is_cuda and MEMORY.current_device() != array.device.index:
        return MEMORY.on_device(array.device.index)
    return nullcontext()


def _extras(others: Sequence[Any]) -> Extras:
    bias, mask, slopes, sinks, q_segments, kv_segments, q_starts, kv_starts, cached, table, seed = others
    vectors = [None if each is None else each.contiguous() for each in (q_starts, kv_starts, cached)]
    return Extras(bias, mask, slopes, sinks, q_segments, kv_segments, *vectors, table, seed)


def _key(arrays: Arrays) -> list[Any]:
    """What a plan depends on apart from the spec."""
    first: list[Any] = [None if each is None else (each.shape, each.stride(), each.dtype) for each in arrays]
    first.append(fp32_precision())
    return first


def _layout(array: Any) -> Layout:
    return tuple(array.shape), tuple(array.stride())


def _layouts(arrays: Arrays, out: Any, lse: Any) -> dict[str, Layout]:
    names = ("q", "k", "v", "bias", "mask", "slopes", "sinks", "q_segments", "kv_segments", "", "", "", "table", "")
    found = {name: _layout(array) for name, array in zip(names, arrays, strict=True) if name and array is not None}
    return {**found, "out": _layout(out), "lse": _layout(lse)}


def result_layout(spec: AttentionSpec, rows: int) -> Layout:
    """Shape and strides of the result, in the order that was asked for."""
    batch = (1, *spec.batch[1:]) if spec.varlen else spec.batch
    shape = (*batch, rows, spec.v_head_dim)
    return shape, contiguous_in_order(shape, spec.order or range(len(shape)))


def _prepare(spec: AttentionSpec, arrays: Arrays) -> _Prepared:
    q = arrays[0]
    shape, strides = result_layout(spec, q.shape[-2])
    out = torch.empty(0, dtype=q.dtype, device="meta").new_empty_strided(shape, strides)
    layouts = _layouts(arrays, out, out[..., 0].contiguous())
    layouts["out"], layouts["lse"] = (shape, strides), (shape[:-1], contiguous_in_order(shape[:-1], range(len(shape) - 1)))
    found = problem(spec, layouts, fp32_precision(), _upcast(spec))
    tiling = forward_candidates(spec, found, q.device)[0]
    return _Prepared(ForwardPlan(spec, found, q.shape[-2], tiling), shape, strides)


def forward_candidates(spec: AttentionSpec, found: Any, device: Any) -> list[Tiling]:
    """Tilings of the forward kernel on this device, the first one the default."""
    return forward_tilings(spec, found, *_device(device))


def backward_candidates(spec: AttentionSpec, found: Any, device: Any) -> list[BackwardTilings]:
    """The same of the backward kernels."""
    return backward_tilings(spec, found, _device(device)[0])


def _prepare_backward(spec: AttentionSpec, q: Any, layouts: dict[str, Layout]) -> BackwardPlan:
    found = problem(spec, layouts, fp32_precision(), _upcast(spec))
    return BackwardPlan(spec, found, q.shape[-2], backward_candidates(spec, found, q.device)[0])


def _upcast(spec: AttentionSpec) -> bool:
    return interpreted() and spec.dtype == "bfloat16"


@lru_cache(maxsize=64)
def _device(device: Any) -> tuple[tuple[int, int], int]:
    """Compute capability and number of processors; of the interpreter, those of a large GPU."""
    if device.type != "cuda":
        return (9, 0), 132
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)


def dense_strides(array: Any) -> tuple[int, ...]:
    """Strides of an array of the same shape, without gaps and in the same order of axes."""
    strides = array.stride()
    return contiguous_in_order(array.shape, sorted(range(array.dim()), key=lambda axis: -int(strides[axis])))


def _gradient_array(spec: AttentionSpec, name: str, operand: Any) -> Any:
    """Where a kernel writes the gradient of an operand: with all batch axes that it doesn't sum over itself."""
    missing = missing_axes(spec, name)
    if not missing:
        return MEMORY.empty(operand, tuple(operand.shape), dense_strides(operand))
    shape = tuple(spec.batch[at] if at in missing else size for at, size in enumerate(operand.shape))
    return MEMORY.workspace(operand, prod(shape), accumulator(spec.dtype)).view(shape)


def _summed(spec: AttentionSpec, name: str, gradient: Any, operand: Any) -> Any:
    missing = missing_axes(spec, name)
    return gradient.sum(missing, keepdim=True).to(operand.dtype) if missing else gradient


def _sinks_gradient(spec: AttentionSpec, extras: Extras, lse: Any, delta: Any) -> Any:
    """A sink is a key without a value: the gradient of its score is its weight times ``-delta``."""
    sinks = extras.sinks
    rows = sinks[..., None]
    if spec.varlen and sinks.shape[0] > 1:
        tokens = torch.arange(lse.shape[-1], device=lse.device)
        sequence = torch.bucketize(tokens, extras.q_starts[1:].long(), right=True).clamp_max(sinks.shape[0] - 1)
        rows = sinks[sequence].movedim(0, -1)[None]
    weights = torch.where(lse == float("-inf"), 0.0, torch.exp(rows - lse))
    gradient = -(weights * delta)
    if spec.varlen and sinks.shape[0] > 1:
        by_sequence = torch.zeros((sinks.shape[0], lse.shape[-1]), dtype=gradient.dtype, device=lse.device)
        by_sequence[sequence, tokens] = (tokens < extras.q_starts[-1]).to(gradient.dtype)
        gradient = torch.einsum("...t,nt->n...", gradient[0], by_sequence)
    else:
        gradient = gradient.sum(-1)
    axes = [at for at, size in enumerate(sinks.shape) if size == 1 != gradient.shape[at]]
    return (gradient.sum(axes, keepdim=True) if axes else gradient).to(sinks.dtype)
