"""`layer_norm`, `rms_norm`, and `dropout_add_layer_norm`, which makes what it normalises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from einops_fast.annotations import ArrayT
from einops_fast.attention.options import count
from einops_fast.errors import EinsumError, ShapeError
from einops_fast.ops.axes import axis_of
from einops_fast.ops.checks import check_broadcast, check_sizes, check_values
from einops_fast.ops.dispatch import computed, function_for
from einops_fast.vocabulary import respelled


def layer_norm(
    input: ArrayT,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    dim: int | str | None = None,
    pattern: str | None = None,
    **unknown: NoReturn,
) -> ArrayT:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` along one axis, or along the last axes.

    After Ba, Kiros and Hinton (2016), https://arxiv.org/abs/1607.06450. On a GPU one kernel reads ``input`` with
    whatever strides it has; statistics are kept in float32 at least. Gradients of weight and bias are sums in a fixed
    order.

    Args:
        input: any shape; floating-point.
        normalized_shape: the sizes of the last axes, if these are several, as in torch. Several that don't lie in
            memory like one go to torch's own function.
        weight, bias: one number per element of a row, each may be left out.
        eps: added to the variance.
        dim: instead of ``normalized_shape`` the axis, as a number or as a name in ``pattern``; the last one without.
        pattern: names of all axes: ``'b c t'``.

    Returns:
        An array of the same shape and memory order; under autocast in float32.

    Raises:
        SubscriptsError, ShapeError: there is no such axis, or the weight or the bias doesn't fit.
        EinsumError: the options don't go together.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> ops.layer_norm(np.array([[1.0, 3.0]]), bias=np.array([0.0, 1.0])).round(3).tolist()
        [[-1.0, 2.0]]
        >>> ops.layer_norm(np.ones((2, 3, 4)), weight=np.ones(3), dim='c', pattern='b c t').shape
        (2, 3, 4)
    """
    if unknown:
        return respelled(layer_norm, unknown, locals())
    return computed(_read_norm, (input, weight, bias), True, normalized_shape, eps, dim, pattern)


def rms_norm(
    input: ArrayT,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Any = None,
    eps: float | None = None,
    *,
    bias: Any = None,
    dim: int | str | None = None,
    pattern: str | None = None,
    **unknown: NoReturn,
) -> ArrayT:
    """``x / sqrt(mean(x * x) + eps) * weight + bias``: :func:`layer_norm` without the mean, with the same arguments.

    After Zhang and Sennrich (2019), https://arxiv.org/abs/1910.07467.

    Args:
        input, normalized_shape, weight, bias, dim, pattern: as for :func:`layer_norm`.
        eps: added to the mean of the squares; if ``None`` the machine epsilon of the type that is computed in.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> ops.rms_norm(np.array([[3.0, 4.0]]), weight=np.array([5.0, 5.0])).round(3).tolist()
        [[4.243, 5.657]]
    """
    if unknown:
        return respelled(rms_norm, unknown, locals())
    return computed(_read_norm, (input, weight, bias), False, normalized_shape, eps, dim, pattern)


def dropout_add_layer_norm(
    input: ArrayT,
    residual: Any = None,
    weight: Any = None,
    bias: Any = None,
    p: float = 0.0,
    eps: float = 1e-5,
    *,
    training: bool = True,
    rms: bool = False,
    dim: int | str | None = None,
    pattern: str | None = None,
    **unknown: NoReturn,
) -> tuple[ArrayT, ArrayT]:
    """``h = dropout(input) + residual``, normalised: the pair ``(layer_norm(h), h)``, for tensors of torch.

    On a GPU it is one kernel forward and one backward. What was dropped isn't kept: it is drawn again by Philox (Salmon
    et al., 2011, https://doi.org/10.1145/2063384.2063405) from a seed, which torch's generator gives.

    Args:
        input: any shape; floating-point.
        residual: broadcastable to ``input``; may be wider than it, float32 say. Zeros if ``None``.
        weight, bias, eps, dim, pattern: as for :func:`layer_norm`.
        p: probability of dropping an element of ``input``. With 0 nothing is drawn, with 1 all are dropped.
        training: False for no dropout.
        rms: normalise as :func:`rms_norm`.

    Returns:
        The norm, and the sum ``h`` in the wider of the dtypes of ``input`` and ``residual``.

    Raises:
        EinsumError: a size, an axis or an option is wrong.
        OperandError: it isn't a tensor of torch.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> normalised, summed = ops.dropout_add_layer_norm(torch.ones(2, 4), torch.arange(4.0), p=0.1, training=False)
        >>> summed[0].tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    if unknown:
        return respelled(dropout_add_layer_norm, unknown, locals())
    arrays = input, residual, weight, bias
    found: tuple[ArrayT, ArrayT] = computed(_read_dropout_add_norm, arrays, p, eps, training, rms, dim, pattern)
    return found


def _read_dropout_add_norm(
    array: Any, residual: Any, weight: Any, bias: Any, p: float, eps: float, training: bool, rms: bool, dim: Any,
    pattern: str | None,
) -> Callable[..., Any]:  # fmt: skip
    """Check the arguments of :func:`dropout_add_layer_norm`, and return what computes such arrays."""
    function = function_for(
        "dropout_add_norm", array, "dropout_add_layer_norm", residual=residual, weight=weight, bias=bias
    )
    check_values(p=p, eps=eps, training=training, rms=rms)
    axis = axis_of(dim, pattern, len(array.shape))
    check_sizes("input", array.shape, (axis,), weight=weight, bias=bias)
    check_broadcast("residual", residual, "input", array.shape)
    return function(array, residual, weight, bias, axis, p if training else 0.0, eps, not rms)


def _read_norm(
    array: Any, weight: Any, bias: Any, centred: bool, normalized_shape: Any, eps: float | None, dim: Any,
    pattern: str | None,
) -> Callable[..., Any]:  # fmt: skip
    """Check the arguments of :func:`layer_norm` or :func:`rms_norm`, and return what computes such arrays."""
    function = function_for("norm", array, "layer_norm" if centred else "rms_norm", weight=weight, bias=bias)
    if eps is not None:
        check_values(eps=eps)
    shape = array.shape
    if normalized_shape is None:
        axes: Sequence[int] = (axis_of(dim, pattern, len(shape)),)
    else:
        if dim is not None or pattern is not None:
            raise EinsumError("normalized_shape and dim or pattern can't be given together")
        axes = _last_axes(normalized_shape, shape)
    check_sizes("input", shape, axes, weight=weight, bias=bias)
    return function(array, weight, bias, axes[0], len(axes), eps, centred)


def last_sizes(normalized_shape: Any) -> tuple[int, ...]:
    """``normalized_shape`` as numbers of Python's; EinsumError if it isn't made of sizes."""
    try:
        given = tuple(normalized_shape)
    except TypeError:  # of one number, whatever it is
        given = (normalized_shape,)
    return tuple([count("normalized_shape", each, "sizes of the last axes", 0) for each in given])


def _last_axes(normalized_shape: Any, shape: tuple[int, ...]) -> Sequence[int]:
    """The axes that have these sizes."""
    sizes = last_sizes(normalized_shape)
    first = len(shape) - len(sizes)
    if not sizes or first < 0:
        raise ShapeError(f"normalized_shape {sizes} isn't the end of the input's shape {tuple(shape)}")
    for at, size in enumerate(sizes):
        if size != shape[first + at]:
            raise ShapeError(
                f"normalized_shape {sizes} has size {size} in axis {at}, but axis {first + at} of input of shape "
                f"{tuple(shape)} has size {shape[first + at]}"
            )
    return range(first, len(shape))
