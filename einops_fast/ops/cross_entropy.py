"""`cross_entropy`, and `linear_cross_entropy`, which never has all logits if these are many."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from einops_fast.annotations import ArrayT, Reduction
from einops_fast.attention.options import count
from einops_fast.dtypes import dtype_name
from einops_fast.errors import EinsumError, OperandError
from einops_fast.ops.activation import check_layer
from einops_fast.ops.axes import axis_of, class_axis
from einops_fast.ops.checks import check_sizes, check_values
from einops_fast.ops.dispatch import computed, function_for
from einops_fast.vocabulary import respelled


def cross_entropy(
    input: ArrayT,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    dim: int | str | None = None,
    pattern: str | None = None,
    inplace_backward: bool = False,
    **unknown: NoReturn,
) -> ArrayT:
    """``-log(softmax(input)[target])``, as torch's function has it, with the classes along any axis.

    With ``lse = log(sum(exp(x)))``, weights ``w``, smoothing ``s`` and ``C`` classes, a row's loss is
    ``(1 - s) * w[t] * (lse - x[t]) + s / C * sum(w * (lse - x)) + z_loss * lse ** 2``. Label smoothing is after Szegedy
    et al. (2016), https://arxiv.org/abs/1512.00567, the z-loss after Chowdhery et al. (2022),
    https://arxiv.org/abs/2204.02311. On a GPU the forward kernel reads the logits once and keeps ``lse``; the backward
    kernel makes the gradient from the logits and ``lse``. Beside logits and gradient nothing of their size is made.

    Args:
        input: logits.
        target: integers, the numbers of the classes, in the shape of ``input`` without its axis of classes; or, of
            torch's tensors, probabilities in the shape of ``input``.
        weight: per class, what its rows count; the mean is then that of the weights.
        ignore_index: a target whose row doesn't count.
        reduction: ``'mean'``, ``'sum'`` or ``'none'``.
        label_smoothing: share of the target that is spread over all classes, from 0 to 1.
        z_loss: factor of the square of ``lse``; it isn't weighted.
        dim: the axis of the classes, as a number or as a name in ``pattern``. If ``None``, the last one or, as torch's
            function has it, axis 1: whichever the shape of ``target`` and the size of ``weight`` fit. Where both fit,
            as they do for probabilities of more than two axes, ``dim`` is needed.
        pattern: names of all axes: ``'batch class row column'``.
        inplace_backward: of torch's tensors on a GPU, backward writes the gradient over the logits, so that there is
            memory of their size once, not twice. They mustn't be needed any more by then: afterwards they hold the
            gradient. Whatever autograd has kept of them, for a second backward too, raises torch's ``RuntimeError``
            about a tensor "modified by an inplace operation"; code that only reads them can't be warned.
            ``torch.compile`` plans memory on its own, there and on a CPU it has no effect.

    Returns:
        The loss, in the dtype of ``input`` (under autocast float32); of ``'none'`` in the shape of ``target``. Where a
        target is no class there is an ``IndexError`` of NumPy's arrays and of torch's tensors on a CPU, and else NaN.
        Without any row that counts the mean is NaN, as in torch. What is in a row that doesn't count doesn't matter,
        except that on a CPU its own gradient is NaN where it holds NaN, as in torch.

    Raises:
        SubscriptsError, ShapeError: an axis or a size is wrong; without ``dim``, the classes could be along two axes.
        OperandError: the target is boolean; or the weight needs a gradient, which there is for probabilities only.
        EinsumError: an option is wrong; with ``inplace_backward``, the logits are a leaf or expanded, or, in backward,
            a gradient of the gradient is asked for.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> round(float(ops.cross_entropy(np.zeros((3, 4)), np.array([0, 1, -100]))), 4)
        1.3863
    """
    if unknown:
        return respelled(cross_entropy, unknown, locals())
    options = ignore_index, reduction, label_smoothing, z_loss
    return computed(_read, (input, target, weight), *options, dim, pattern, inplace_backward)


def _read(
    array: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float, z_loss: float,
    dim: int | str | None, pattern: str | None, inplace: bool,
) -> Callable[..., Any]:  # fmt: skip
    """Check the arguments of :func:`cross_entropy`, and return what computes such arrays."""
    function = function_for("cross_entropy", array, "cross_entropy", ("target",), target=target, weight=weight)
    shape = tuple(array.shape)
    ignore_index = check_options(ignore_index, reduction, label_smoothing, z_loss)
    check_values(inplace_backward=inplace)
    kind = dtype_name(target.dtype)
    if dim is None and len(shape) > 2:
        of_weight = None if weight is None else weight.shape
        axis = class_axis(pattern, shape, target.shape, of_weight, "float" in kind)
    else:
        axis = axis_of(dim, pattern, len(shape))
    if "float" in kind:
        check_sizes("input", shape, range(len(shape)), **{f"target (probabilities in {kind})": target})
    else:
        _check_classes(kind, weight)
        rows = [at for at in range(len(shape)) if at != axis]
        check_sizes(f"input (with classes along axis {axis})", shape, rows, target=target)
    check_sizes("input", shape, (axis,), weight=weight)
    return function(array, target, weight, axis, ignore_index, label_smoothing, z_loss, reduction, inplace)


def linear_cross_entropy(
    input: ArrayT,
    linear_weight: Any,
    target: Any,
    bias: Any = None,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    chunk: int | None = None,
    **unknown: NoReturn,
) -> ArrayT:
    """``cross_entropy(linear(input, linear_weight, bias), target)`` without all of the logits, for tensors of torch.

    Some rows at a time are multiplied, and their logits forgotten. Where a gradient is needed and the loss is one
    number, it is made in the same go, from the gradient of the logits that is written over them; backward only scales
    it. With ``reduction='none'``, and in float16, whose gradients have to be scaled up before they are rounded,
    backward makes logits again. Evaluate under ``torch.no_grad()``: no gradients are made there.

    Args:
        input: (..., features).
        linear_weight: (classes, features).
        target: (...), the numbers of the classes.
        bias: (classes,).
        weight, ignore_index, reduction, label_smoothing, z_loss: as for :func:`cross_entropy`.
        chunk: how many rows at a time. If ``None``, about as many as have 128 MiB of logits without gradients; with
            gradients, 256 MiB and half as much as the weight's has; on a CPU all, where that is at most 2**20 logits.

    Returns:
        The loss, in the dtype of ``input`` (under autocast float32); of ``'none'`` in the shape of ``target``.

    Raises:
        ShapeError: a size is wrong.
        OperandError: the target isn't made of integers, or the weight needs a gradient.
        EinsumError: an option is wrong.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> ops.linear_cross_entropy(torch.zeros(2, 5, 8), torch.ones(4, 8), torch.zeros(2, 5, dtype=torch.long))
        tensor(1.3863)
    """
    if unknown:
        return respelled(linear_cross_entropy, unknown, locals())
    arrays = input, linear_weight, target, bias, weight
    return computed(_read_linear, arrays, ignore_index, reduction, label_smoothing, z_loss, chunk)


def _read_linear(
    array: Any, linear_weight: Any, target: Any, bias: Any, weight: Any, ignore_index: int, reduction: str,
    label_smoothing: float, z_loss: float, chunk: int | None,
) -> Callable[..., Any]:  # fmt: skip
    """Check the arguments of :func:`linear_cross_entropy`, and return what computes such arrays."""
    function = function_for(
        "linear_cross_entropy", array, "linear_cross_entropy", ("linear_weight", "target"),
        linear_weight=linear_weight, target=target, bias=bias, weight=weight,
    )  # fmt: skip
    ignore_index = check_options(ignore_index, reduction, label_smoothing, z_loss)
    check_layer("linear_weight", linear_weight, array)
    check_sizes("input", array.shape, range(len(array.shape) - 1), target=target)
    _check_classes(dtype_name(target.dtype), weight)
    check_sizes("linear_weight", linear_weight.shape, (0,), bias=bias, weight=weight)
    if chunk is not None:
        chunk = count("chunk", chunk, "a number of rows")
    numbers = ignore_index, label_smoothing, z_loss, reduction, chunk
    return function(array, linear_weight, target, bias, weight, *numbers)


def _check_classes(kind: str, weight: Any) -> None:
    """Raise OperandError unless targets of this dtype can be numbers of classes, whose weights need no gradient."""
    if not kind.startswith(("int", "uint")):
        raise OperandError(f"target has numbers of classes, which are integers, not {kind}")
    if getattr(weight, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise OperandError("weight has no gradient here: detach it, or give the target as probabilities")


def check_options(ignore_index: Any, reduction: str, label_smoothing: float, z_loss: float) -> int:
    """Return ``ignore_index`` as a number of Python's; raise EinsumError if an option is wrong."""
    check_values(reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss)
    found = count("ignore_index", ignore_index, "the number of a class, or of none", None)
    if not -(2**63) <= found < 2**63:
        raise EinsumError(f"ignore_index is a number of 64 bits, not {found}")
    return found
