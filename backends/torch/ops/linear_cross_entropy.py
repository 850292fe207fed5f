"""Cross entropy of a linear layer of torch's tensors, which never has all logits, unless there are few on a CPU.

Where the loss is one number, its gradients are made in the forward pass, while a chunk's logits are there, and backward
only scales them: of four products of matrices three are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import MEMORY, Operator, autocasted, by_kernel, result_dtype
from einops_fast.backends.torch.ops.cross_entropy import RowLoss, cross_entropy, reduced
from einops_fast.backends.torch.ops.logit_chunks import as_rows, chunk_rows, gradients_like, in_chunks, row_parts
from einops_fast.backends.torch.types import PLAIN, is_batched, is_followed, is_jit_tracing, may_read_values
from einops_fast.runtime.tiers import Run

_LITTLE = 1 << 20
"""Logits that are no more than this are made at once on a CPU: calling functions for chunks takes longer."""

_SMALL = 1 << 16
"""Inputs of no more elements are copied for torch's function, where their rows don't lie evenly: that takes no time."""

_graph_is_kept: Callable[[], bool] = getattr(
    getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", lambda: True
)
"""Whether what runs backward may do so again."""


def linear_cross_entropy(x: Any, linear_weight: Any, target: Any, bias: Any, weight: Any, *numbers: Any) -> Run:
    """Return what computes :func:`einops_fast.ops.linear_cross_entropy` of the tensors."""
    return lambda *arrays: _losses(*arrays, *numbers)


def _losses(
    x: Any, linear_weight: Any, target: Any, bias: Any, weight: Any, ignore_index: int, smoothing: float, z_loss: float,
    reduction: str, chunk: int | None,
) -> Any:  # fmt: skip
    """Return the loss."""
    dtype = result_dtype(x)
    rows, targets = as_rows(x), target.reshape(-1)
    loss = RowLoss(weight, ignore_index, smoothing, z_loss)
    bias = None if bias is None else bias.to(x.dtype)
    tensors = autocasted([rows, linear_weight, bias])
    few = chunk is None and targets.shape[0] * linear_weight.shape[0] <= _LITTLE
    easy = tensors[0].dim() == 2 or tensors[0].numel() <= _SMALL
    if few and easy and _by_torch(*tensors, targets, weight):
        logits = F.linear(tensors[0].flatten(0, -2), *tensors[1:])
        found = cross_entropy(logits, targets, weight, 1, *loss[1:], reduction)(logits, targets, weight)
    elif not _in_one(*tensors, targets, weight):
        found = _by_checkpoints(rows, linear_weight, bias, targets, loss, reduction, chunk or 0)
    else:
        found = losses_in_one(tensors, targets, loss, reduction, chunk or 0)
    found = found.to(dtype)
    return found.view(target.shape) if reduction == "none" else found


def losses_in_one(tensors: Sequence[Any], targets: Any, loss: RowLoss, reduction: str, chunk: int = 0) -> Any:
    """Return the loss of rows, matrix and bias by the operator, which makes gradients in the forward pass."""
    # float16 has no digits left for gradients that nobody has scaled up yet, as they are in the forward pass.
    keeps = torch.is_grad_enabled() and reduction != "none" and tensors[0].dtype != torch.float16
    if not torch.compiler.is_compiling() and is_jit_tracing():  # what is recorded is called with gradients or without
        keeps = False
    wanted = [keeps and each is not None and each.requires_grad for each in tensors]
    return linear_cross_entropy_in_one(*tensors, targets, *loss, reduction, chunk, *wanted)[0]


def _by_torch(*tensors: Any) -> bool:
    """Whether torch's own functions have all that is asked for, and no kernel of ours takes it."""
    given = [each for each in tensors if each is not None]
    return may_read_values(*given) and not by_kernel(given) and _in_one(*tensors)


def _in_one(*tensors: Any) -> bool:
    """Whether rows, matrix, bias, targets and weight are for the operator: plain, alike, with something in them."""
    given = [each for each in tensors if each is not None]
    x, matrix, bias, target, weight = tensors
    return (
        all(type(each) in PLAIN and each.layout == torch.strided and each.numel() > 0 for each in given)
        and all(each.device == x.device for each in given)
        and x.is_floating_point()
        and x.dtype == matrix.dtype == (x if bias is None else bias).dtype
        and not target.is_floating_point()
        and (weight is None or not weight.requires_grad)
        and not is_followed()
    )


def _by_checkpoints(x: Any, matrix: Any, bias: Any, target: Any, loss: RowLoss, reduction: str, chunk: int) -> Any:
    """By functions that have derivatives of any kind.

    A chunk's logits are made again for its gradients, but in transforms, which have no checkpoints: all are kept there.
    """

    def in_chunk(part: Any, matrix: Any, bias: Any, classes: Any) -> Any:
        logits = F.linear(part.flatten(0, -2), matrix, bias)
        return loss.of_rows(logits, classes, 1)

    again = partial(checkpoint, in_chunk, use_reentrant=False, preserve_rng_state=False)
    run = in_chunk if is_followed() else again
    if any(isinstance(size, torch.SymInt) for size in (*x.shape, *matrix.shape)):
        parts: Sequence[Any] = [x]  # to count chunks would make constants of symbols
    else:
        parts = row_parts(x, chunk or chunk_rows(x, matrix, gradients=False))
    of_parts = target.split([prod(each.shape[:-1]) for each in parts])
    losses = torch.cat([run(part, matrix, bias, classes) for part, classes in zip(parts, of_parts, strict=True)])
    divisor = loss.divisor(target, losses.dtype) if reduction == "mean" else None
    return reduced(losses, divisor, reduction)


def _shapes(x: Any, matrix: Any, bias: Any, target: Any, *numbers: Any) -> tuple[Any, ...]:
    *_, reduction, _, of_x, of_matrix, of_bias = numbers
    dtype = torch.promote_types(x.dtype, torch.float32)
    found = x.new_empty(target.shape if reduction == "none" else (), dtype=dtype)
    return found, *gradients_like(x, matrix, bias, (of_x, of_matrix, of_bias))


def _compute(x: Any, matrix: Any, bias: Any, target: Any, *numbers: Any) -> tuple[Any, ...]:
    *of_loss, reduction, chunk, of_x, of_matrix, of_bias = numbers
    wanted, loss = (of_x, of_matrix, of_bias), RowLoss(*of_loss)
    dtype = torch.promote_types(x.dtype, torch.float32)
    divisor = loss.divisor(target, dtype) if reduction == "mean" else None
    d_losses = None
    if any(wanted):
        d_losses = (x.new_ones((), dtype=dtype) if divisor is None else divisor.reciprocal()).expand(target.shape)
    size = chunk or chunk_rows(x, matrix, gradients=any(wanted))
    losses, gradients = in_chunks(x, matrix, bias, target, loss, size, d_losses, wanted)
    return reduced(losses, divisor, reduction), *gradients


def _gradient_shapes(x: Any, matrix: Any, bias: Any, *others: Any) -> tuple[Any, ...]:
    return gradients_like(x, matrix, bias, others[-3:])


def _compute_gradients(
    x: Any, matrix: Any, bias: Any, target: Any, weight: Any, d_losses: Any, *numbers: Any
) -> tuple[Any, ...]:
    *of_loss, chunk, of_x, of_matrix, of_bias = numbers
    size = chunk or chunk_rows(x, matrix, gradients=True)
    loss = RowLoss(weight, *of_loss)
    return in_chunks(x, matrix, bias, target, loss, size, d_losses, (of_x, of_matrix, of_bias))[1]


def _scale(x: Any, factor: Any, out: Any = None) -> Any:
    """Return ``x * factor`` in ``out``, which has the strides of ``x`` and may be ``x``, or in new memory."""
    out = torch.empty_like(x) if out is None else out
    if by_kernel([x, factor]):
        from einops_fast.backends.triton.device.scaling import scaling

        device = MEMORY.device(x)
        with MEMORY.on_device(device):
            scaling(x.numel(), out is x)(MEMORY, device, x, factor, out)
    elif out is not x or not may_read_values(factor) or factor != 1:
        torch.mul(x, factor.to(x.dtype), out=out)
    return out


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ignore_index, smoothing, z_loss, ctx.reduction, ctx.chunk, of_x, of_matrix, of_bias = inputs
    ctx.numbers = ignore_index, smoothing, z_loss
    ctx.kept = of_x or of_matrix or of_bias
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_loss: Any, *others: Any) -> tuple[Any, ...]:
    x, matrix, bias, target, weight, *kept = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    if d_loss is None:
        return (None,) * 5
    loss = RowLoss(weight, *ctx.numbers)
    found: Sequence[Any]
    if torch.is_grad_enabled():  # to be differentiated again

        def again(x: Any, matrix: Any, bias: Any) -> Any:
            return _by_checkpoints(x, matrix, bias, target, loss, ctx.reduction, ctx.chunk)

        found = gradients_by_torch(again, (x, matrix, bias), wanted, d_loss)
    elif ctx.kept:
        found = [_scaled(each, d_loss) if really else None for each, really in zip(kept, wanted, strict=True)]
    else:
        if ctx.reduction == "mean":
            d_loss = d_loss / loss.divisor(target, d_loss.dtype)
        made = linear_cross_entropy_gradients(
            x, matrix, bias, target, weight, d_loss.expand(target.shape), *ctx.numbers, ctx.chunk, *wanted
        )
        found = [each if really else None for each, really in zip(made, wanted, strict=True)]
    return (*found, None, None)


def _scaled(kept: Any, factor: Any) -> Any:
    """What the forward pass has kept, scaled: itself, if it isn't needed again."""
    if type(kept) is not torch.Tensor or torch.compiler.is_compiling() or is_batched(factor) or _graph_is_kept():
        return scaled(kept, factor)
    return _scale(kept, factor, kept)


scaled = Operator("scaled(Tensor x, Tensor factor) -> Tensor", _scale, lambda x, factor: torch.empty_like(x))


def _flops(x: Any, matrix: Any, *others: Any) -> int:
    """Count the product of logits, and one for each gradient of ``x`` and of the matrix."""
    count: int = 2 * x.numel() * matrix.shape[0] * (1 + sum(others[-3:-1]))
    return count


_NUMBERS = "int chunk, bool of_x, bool of_matrix, bool of_bias"

linear_cross_entropy_gradients = Operator(
    "linear_cross_entropy_gradients(Tensor x, Tensor matrix, Tensor? bias, Tensor target, Tensor? weight, "
    f"Tensor d_losses, int ignore_index, float smoothing, float z_loss, {_NUMBERS}) -> (Tensor, Tensor, Tensor)",
    _compute_gradients,
    _gradient_shapes,
    flops=_flops,
)

linear_cross_entropy_in_one = Operator(
    "linear_cross_entropy(Tensor x, Tensor matrix, Tensor? bias, Tensor target, Tensor? weight, int ignore_index, "
    f"float smoothing, float z_loss, str reduction, {_NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _compute,
    _shapes,
    _setup,
    _backward,
    flops=_flops,
)
