"""``activation(x @ weight.T + bias)`` of torch's tensors: one kernel, or the library's product and one behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch import backend as engine
from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import MEMORY, Layout, Operator, autocasted, by_kernel, dtype_name
from einops_fast.backends.torch.ops.activation import (
    activation_by_kernel,
    activation_by_torch,
    activation_gradients,
    bias_activation,
)
from einops_fast.backends.torch.ops.begun import Calls, begins_with_library, begun
from einops_fast.backends.torch.types import PLAIN
from einops_fast.einsum import fast_einsum
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.tiers import Run
from einops_fast.runtime.tuning import current_mode

_FROM_RESULT = ("relu", "leaky_relu")
"""Activations whose slope is that at the result: nothing else has to be kept for it."""


def linear(x: Any, weight: Any, bias: Any, activation: str) -> Run:
    """Return what computes :func:`einops_fast.ops.linear` of ``x``, weight and bias."""
    given = (x, weight) if bias is None else (x, weight, bias)
    ours = by_kernel(given) and weight.numel() > 0
    tensors = autocasted(given) if ours else ()
    if not tensors or not _alike(tensors):
        return _by_torch(x, bias, activation)
    casted = any(one is not other for one, other in zip(tensors, given, strict=True))
    x, weight, *biases = tensors
    bias = biases[0] if biases else None
    if activation == "none" and begins_with_library():
        run = _by_torch(x, bias, activation)  # for plain products, there is nothing faster
    else:
        keeps = activation not in ("none", *_FROM_RESULT) and torch.is_grad_enabled()
        keeps = keeps and any(each.requires_grad for each in tensors)

        def library(x: Any, weight: Any, bias: Any) -> Any:
            return activation_by_torch(F.linear(x, weight, bias), None, activation)

        kernels = lambda x, weight, bias: linear_by_kernel(x, weight, bias, activation, keeps)[0]  # noqa: E731
        numbers = activation, keeps, weight.shape, weight.stride()
        run = begun(Calls("linear", library, kernels, (x, weight, bias), x.dim() - 1, numbers))
    return (lambda *arrays: run(*autocasted(arrays))) if casted else run


def _by_torch(x: Any, bias: Any, activation: str) -> Run:
    """Return the library's product, together with the bias, so that the sums are rounded once."""
    dtype = None if bias is None or bias.dtype == x.dtype else x.dtype
    if activation == "none" and dtype is None:
        return lambda x, weight, bias: F.linear(x, weight, bias)

    def run(x: Any, weight: Any, bias: Any) -> Any:
        found = F.linear(x, weight, bias if dtype is None else bias.to(dtype))
        return found if activation == "none" else bias_activation(found, None, activation, 0.0)(found, None)

    return run


def _alike(tensors: Sequence[Any]) -> bool:
    """Whether they are of one dtype, and nobody has overridden anything of them."""
    dtype = tensors[0].dtype
    for each in tensors:  # noqa: SIM110 - on the way of every call, and all() takes three times as long
        if each.dtype != dtype or type(each) not in PLAIN:
            return False
    return True


_IN_LIBRARY = {"relu": ("cpu", "cuda"), "gelu_tanh": ("cuda",)}
"""Activations that the library applies to its sums, and on which devices: on a CPU its GELU is the exact one."""


def _by_library(activation: str, keeps: bool, device: str) -> Callable[..., Any]:
    """The product by the library, with the bias in its epilogue, and the activation there or behind it."""

    def in_one(x: Any, weight: Any, bias: Any = None) -> Any:
        gelu = activation == "gelu_tanh"
        if bias is None or (gelu and x.dtype == torch.float64):  # of the library's GELU, 10 digits are right
            return in_turn(x, weight, bias)
        flat = x.reshape(-1, x.shape[-1])
        found = torch._addmm_activation(bias, flat, weight.t(), use_gelu=gelu)
        return found.view(*x.shape[:-1], weight.shape[0])

    def in_turn(x: Any, weight: Any, bias: Any = None) -> Any:
        rank = x.dim()
        if rank == 2 or (rank == 3 and x.is_contiguous()):
            before = F.linear(x, weight, bias)
        else:  # torch would add the bias in a kernel of its own
            before = F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], weight.shape[0])
        found = before if activation == "none" else activation_by_kernel.compute(before, None, None, activation, 0.0)
        return (found, before) if keeps else found

    return in_one if device in _IN_LIBRARY.get(activation, ()) and not keeps else in_turn


@lru_cache(maxsize=4096)
def _way(
    x: Layout, weight: Layout, bias_stride: int | None, device: torch.device, activation: str, keeps: bool,
    precision: str, mode: str,
) -> Callable[..., Any]:  # fmt: skip
    """Return what runs calls on tensors of this kind: kernels beside the library for a product of matrices."""
    library = _by_library(activation, keeps, device.type)
    rank, name = len(x[0]), dtype_name(x[2])
    leading = ascii_letters[: rank - 1]
    kernels = engine.kernel_dtypes(device) & {name}
    if not kernels:
        return library
    from einops_fast.backends.triton.contraction.choice import Choice, chosen_run
    from einops_fast.backends.triton.contraction.problems import multiplies_matrices

    on = gpu_ceilings(MEMORY.device_name(device.index or 0))
    target = Target("torch", str(device), on, kernels=kernels, in_order=True, drops_expanded=False)
    operands = [Operand(tuple(shape), strides, name) for shape, strides, _ in (x, weight)]
    subscripts = parse(f"{leading}Y,ZY->{leading}Z", (rank, 2))
    (step, *others) = make_plan(subscripts, operands, target, Numerics(name, name)).steps
    if others or not isinstance(step, Fused) or not multiplies_matrices(step):
        return library
    bias = None if bias_stride is None else (0,) * (rank - 1) + (bias_stride,)
    step = step.replace(epilogue=Epilogue(activation, bias, keeps))
    return chosen_run(Choice(step, library, MEMORY, precision, mode))


def _compute(x: Any, weight: Any, bias: Any, activation: str, keeps: bool) -> tuple[Any, Any]:
    mode = current_mode()
    # Whole calls are what is measured while nothing waits.
    layouts = [(each.shape, each.stride(), each.dtype) for each in (x, weight)]
    stride = None if bias is None else bias.stride(0)
    precision = engine.fp32_precision()
    run = _way(*layouts, stride, x.device, activation, keeps, precision, "never" if mode == "auto" else mode)
    found = run(x, weight) if bias is None else run(x, weight, bias)
    return found if keeps else (found, None)


def _shapes(x: Any, weight: Any, bias: Any, activation: str, keeps: bool) -> tuple[Any, Any]:
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty(shape), x.new_empty(shape) if keeps else None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.activation, keeps = inputs
    found, before = output
    kept = before if keeps else None if ctx.activation == "none" else found
    ctx.save_for_backward(x, weight, bias, kept)
    if before is not None:
        ctx.mark_non_differentiable(before)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Any, *others: Any) -> tuple[Any, ...]:
    x, weight, bias, kept = ctx.saved_tensors
    of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
    if d_out is None:
        return None, None, None
    if torch.is_grad_enabled():
        wanted = of_x, of_weight, of_bias

        def again(*tensors: Any) -> Any:
            return activation_by_torch(F.linear(*tensors), None, ctx.activation)

        return gradients_by_torch(again, (x, weight, bias), wanted, d_out)
    d_bias = None
    if kept is not None:
        # The bias is in what is kept already; its gradient is made on the way.
        d_out, d_bias = activation_gradients(kept, None, None, d_out, ctx.activation, 0.0, of_bias)
    elif of_bias:
        d_bias = d_out.sum_to_size(bias.shape)  # no axis to sum over of one row, where `sum` would take all
    return (
        torch.matmul(d_out, weight) if of_x else None,
        _weight_gradient(d_out, x) if of_weight else None,
        d_bias if of_bias else None,
    )


def _weight_gradient(d_out: Any, x: Any) -> Any:
    if d_out.is_contiguous() and x.is_contiguous():
        return torch.mm(d_out.view(-1, d_out.shape[-1]).t(), x.view(-1, x.shape[-1]))
    return fast_einsum("...n,...k->nk", d_out, x)


linear_by_kernel = Operator(
    "linear(Tensor x, Tensor weight, Tensor? bias, str activation, bool keeps) -> (Tensor, Tensor)",
    _compute,
    _shapes,
    _setup,
    _backward,
    seen=1,
    flops=lambda x, weight, *others: 2 * x.numel() * weight.shape[0],
)
