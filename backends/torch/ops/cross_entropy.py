"""Cross entropy of torch's tensors: by our kernels on a GPU, else by torch's own function."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import Layout, by_kernel, result_dtype
from einops_fast.backends.torch.ops.begun import Calls, begun
from einops_fast.backends.torch.ops.row_operator import RowOperator, dense_layout
from einops_fast.errors import EinsumError
from einops_fast.planning.layout import contiguous_strides
from einops_fast.runtime.tiers import Run


class RowLoss(NamedTuple):
    """What a row's loss is; the fields are arguments of :func:`einops_fast.ops.cross_entropy`."""

    weight: Any
    ignore_index: int
    smoothing: float
    z_loss: float

    def has_kernels(self, x: Any, target: Any) -> bool:
        """Return whether kernels of ours make losses of such logits and targets."""
        weight = self.weight
        return not target.is_floating_point() and by_kernel([x, target] if weight is None else [x, target, weight])

    def of_rows(self, x: Any, target: Any, dim: int) -> Any:
        """Return the loss of each row, in float32 at least."""
        if not self.has_kernels(x, target):
            return self.by_torch(x, target, dim)
        return cross_entropy_by_kernel(x, target, self.weight, self.weights(), dim, *self[1:], False)[0]

    def by_torch(self, x: Any, target: Any, dim: int) -> Any:
        """Return the same by functions of torch, which can be differentiated again."""
        x, wide = self.widened(x)
        losses = wide.native(x, target, dim, "none")
        if self.z_loss:
            extra = self.z_loss * x.logsumexp(dim).square()
            if not target.is_floating_point():
                extra = torch.where(target.long() != self.ignore_index, extra, 0.0)
            losses = losses + extra
        return losses

    def native(self, x: Any, target: Any, dim: int, reduction: str) -> Any:
        """Return the loss by torch's own function, which has no z-loss."""
        if x.dim() > 1 and dim != 1:
            x = x.movedim(dim, 1)
            target = target.movedim(dim, 1) if target.is_floating_point() else target
        target = target.to(x.dtype) if target.is_floating_point() else target.long()
        return F.cross_entropy(
            x, target, self.weight, reduction=reduction, ignore_index=self.ignore_index, label_smoothing=self.smoothing
        )

    def widened(self, x: Any) -> tuple[Any, RowLoss]:
        """Return logits and weights in float32 at least."""
        wide = x if x.dtype == torch.float64 else x.float()
        return wide, self if self.weight is None else self._replace(weight=self.weight.to(wide.dtype))

    def weights(self) -> Any:
        """Return the sum of all weights, if label smoothing needs it."""
        return self.weight.double().sum() if self.weight is not None and self.smoothing else None

    def divisor(self, target: Any, dtype: Any) -> Any:
        """Return what the mean divides by: the weights of the rows that count."""
        target = target.long()  # what a small type is compared with may wrap, and not every type is an index
        counts = target != self.ignore_index
        if self.weight is None:
            return counts.sum(dtype=dtype)
        return torch.where(counts, self.weight.to(dtype)[torch.where(counts, target, 0)], 0.0).sum()


def cross_entropy(
    x: Any, target: Any, weight: Any, dim: int, ignore_index: int, smoothing: float, z_loss: float, reduction: str,
    inplace: bool = False,
) -> Run:  # fmt: skip
    """Return what computes :func:`einops_fast.ops.cross_entropy`, whose arguments these are, of the first three.

    ``dim`` isn't negative.
    """
    numbers = ignore_index, smoothing, z_loss
    loss = RowLoss(weight, *numbers)
    library = _by_torch(loss, x, target, dim, reduction)
    if loss.has_kernels(x, target):
        # What is traced has memory planned by the compiler.
        inside = inplace and not torch.compiler.is_compiling() and type(x) is torch.Tensor
        dtype = result_dtype(x)

        def kernels(x: Any, target: Any, weight: Any) -> Any:
            loss = RowLoss(weight, *numbers)
            losses = cross_entropy_by_kernel(x, target, weight, loss.weights(), dim, *numbers, inside)[0]
            # What is traced is brought together by the compiler.
            if reduction != "none" and target.is_contiguous() and not torch.compiler.is_compiling():
                mean = reduction == "mean"
                return reduced_by_kernel(losses, target, weight, x.shape[dim], ignore_index, mean, dtype)[0]
            divisor = loss.divisor(target, losses.dtype) if reduction == "mean" else None
            return reduced(losses, divisor, reduction).to(dtype)

        all_numbers = dim, *numbers, inside, reduction, dtype
        run = begun(Calls("cross_entropy", library, kernels, (x, target, weight), dim, all_numbers))
    else:
        run = library
    if not inplace:
        return run

    def checked(x: Any, target: Any, weight: Any) -> Any:
        _check_inplace(x)
        return run(x, target, weight)

    return checked


def _by_torch(loss: RowLoss, x: Any, target: Any, dim: int, reduction: str) -> Run:
    """Return the same by functions of torch."""
    dtype, numbers = result_dtype(x), loss[1:]
    same = x.dtype == dtype and (loss.weight is None or loss.weight.dtype == dtype)
    if not loss.z_loss and same and target.dtype == torch.int64 and (dim == 1 or x.dim() == 1):
        ignored, smoothing, _ = numbers
        return lambda x, target, weight: F.cross_entropy(
            x, target, weight, reduction=reduction, ignore_index=ignored, label_smoothing=smoothing
        )

    def run(x: Any, target: Any, weight: Any) -> Any:
        loss = RowLoss(weight, *numbers)
        if not loss.z_loss:
            if not same:
                x, loss = loss.widened(x)
            return loss.native(x, target, dim, reduction).to(dtype)
        losses = loss.by_torch(x, target, dim)
        divisor: Any = None
        if reduction == "mean":
            divisor = losses.numel() if target.is_floating_point() else loss.divisor(target, losses.dtype)
        return reduced(losses, divisor, reduction).to(dtype)

    return run


def reduced(losses: Any, divisor: Any, reduction: str) -> Any:
    """Return the losses of rows as ``reduction`` has them."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / divisor


def _check_inplace(x: Any) -> None:
    """Whether a gradient may be written over logits, as far as that can be seen before it is."""
    if x.requires_grad and x.is_leaf:
        raise EinsumError(
            "inplace_backward would write the gradient over logits that nothing has computed: they are a leaf, "
            "and its values belong to whoever made it"
        )
    at = next((at for at, size in enumerate(x.shape) if size > 1 and not x.stride(at)), None)
    if at is not None:
        raise EinsumError(f"inplace_backward needs memory for each logit, but axis {at} of the input is expanded")


def _layouts(x: Any, target: Any, *others: Any) -> tuple[Layout, Layout]:
    rows = tuple(target.shape)
    losses = rows, contiguous_strides(rows), torch.float64 if x.dtype == torch.float64 else torch.float32
    return losses, losses


def _gradient_layouts(x: Any, *arguments: Any) -> tuple[Layout]:
    return ((tuple(x.shape), x.stride(), x.dtype) if arguments[-1] else dense_layout(x),)


def write_gradient(x: Any, *arguments: Any) -> None:
    """Write the gradient of the logits ``x`` over them, from the other arguments of ``cross_entropy_gradient``."""
    _, run = cross_entropy_gradient.plan(x, *arguments, True)
    run(x, *arguments[:5], x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, target, weight, weights, *ctx.numbers, ctx.inplace = inputs
    ctx.save_for_backward(x, target, weight, weights, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_losses: Any, *others: Any) -> tuple[Any, ...]:
    x, target, weight, weights, logs = ctx.saved_tensors
    dx = None
    if d_losses is not None and ctx.needs_input_grad[0]:
        if torch.is_grad_enabled() and ctx.inplace:
            raise EinsumError("a gradient that is written over the logits can't be differentiated: no inplace_backward")
        if torch.is_grad_enabled():  # to be differentiated again, by torch's functions
            dim, *numbers = ctx.numbers
            loss = RowLoss(weight, *numbers)
            (dx,) = gradients_by_torch(lambda x: loss.by_torch(x, target, dim), (x,), (True,), d_losses)
        elif ctx.inplace:
            # Whoever kept the logits, this node included, finds at its own backward that they have changed.
            dx = x.detach()
            write_gradient(dx, target, weight, weights, logs, d_losses, *ctx.numbers)
            torch.autograd.graph.increment_version(x)
        else:
            dx = cross_entropy_gradient(x, target, weight, weights, logs, d_losses, *ctx.numbers, False)
    return dx, None, None, None


cross_entropy_gradient = RowOperator(
    "cross_entropy_gradient(Tensor x, Tensor target, Tensor? weight, Tensor? weights, Tensor logs, Tensor d_losses, "
    "int dim, int ignore_index, float smoothing, float z_loss, bool in_place) -> Tensor",
    "cross_entropy.cross_entropy_gradient",
    _gradient_layouts,
)

cross_entropy_by_kernel = RowOperator(
    "cross_entropy(Tensor x, Tensor target, Tensor? weight, Tensor? weights, int dim, int ignore_index, "
    "float smoothing, float z_loss, bool inplace) -> (Tensor, Tensor)",
    "cross_entropy.cross_entropy",
    _layouts,
    _setup,
    _backward,
    seen=1,
)


def _reduced_layouts(
    losses: Any, target: Any, weight: Any, classes: int, ignore_index: int, mean: bool, dtype: torch.dtype
) -> tuple[Layout, Layout]:
    return ((), (), dtype), ((), (), losses.dtype)


def _setup_reduced(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    losses, _, _, _, _, ctx.mean, _ = inputs
    ctx.shape, ctx.dtype = losses.shape, losses.dtype
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)


def _backward_reduced(ctx: Any, d_total: Any, *others: Any) -> tuple[Any, ...]:
    if d_total is None:
        return None, None, None
    (divisor,) = ctx.saved_tensors
    each = d_total.to(ctx.dtype)
    return (each / divisor if ctx.mean else each).expand(ctx.shape), None, None


reduced_by_kernel = RowOperator(
    "reduced_losses(Tensor losses, Tensor target, Tensor? weight, int classes, int ignore_index, bool mean, "
    "ScalarType dtype) -> (Tensor, Tensor)",
    "cross_entropy.reduced_losses",
    _reduced_layouts,
    _setup_reduced,
    _backward_reduced,
    seen=1,
)
