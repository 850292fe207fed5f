"""`dropout_bias_activation`, `bias_gelu`, and `linear` with an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn

from einops_fast.annotations import ArrayT
from einops_fast.dtypes import dtype_name
from einops_fast.errors import OperandError, ShapeError
from einops_fast.ops.checks import check_activation, check_sizes, check_values, differ
from einops_fast.ops.dispatch import computed, function_for
from einops_fast.runtime.autocast import autocasts
from einops_fast.vocabulary import respelled


def dropout_bias_activation(
    input: ArrayT,
    bias: Any = None,
    activation: str = "none",
    p: float = 0.0,
    *,
    training: bool = True,
    **unknown: NoReturn,
) -> ArrayT:
    """``dropout(activation(input + bias))``, for tensors of torch; on a GPU one kernel each way.

    Args:
        input: any shape and strides; floating-point.
        bias: one number per element of the last axis.
        activation: ``gelu`` is the exact one (Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415),
            ``gelu_tanh`` the approximation there, ``leaky_relu`` has slope 0.01, ``squared_relu`` is that of So et al.
            (2021, https://arxiv.org/abs/2109.08668), ``smelu`` that of Shamir et al. (2020,
            https://arxiv.org/abs/2010.09931) with beta 2, ``star_relu`` that of Yu et al. (2022,
            https://arxiv.org/abs/2210.13452) with 0.8944 and -0.4472, ``silu`` is ``x * sigmoid(x)``; others are
            ``relu`` and ``none``.
        p: probability of dropping an element; see :func:`einops_fast.ops.dropout_add_layer_norm`.
        training: False for no dropout.

    Raises:
        EinsumError: a size or an option is wrong.
        OperandError: it isn't a tensor of torch.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> ops.dropout_bias_activation(torch.zeros(1, 2), torch.tensor([-1.0, 2.0]), 'squared_relu').tolist()
        [[0.0, 4.0]]
    """
    if unknown:
        return respelled(dropout_bias_activation, unknown, locals())
    return computed(_read_bias_activation, (input, bias), "dropout_bias_activation", activation, p, training)


def bias_gelu(
    input: ArrayT, bias: Any = None, *, approximate: Literal["none", "tanh"] = "none", **unknown: NoReturn
) -> ArrayT:
    """``gelu(input + bias)``, exact or, with ``approximate='tanh'``, approximated, as torch calls it.

    Args:
        input: (..., features), of any strides; floating-point.
        bias: (features,).
        approximate: ``'none'`` or ``'tanh'``.

    Raises:
        EinsumError: a size or ``approximate`` is wrong.
        OperandError: it isn't a tensor of torch.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> ops.bias_gelu(torch.zeros(1, 2), torch.ones(2)).round(decimals=3).tolist()
        [[0.8410000205039978, 0.8410000205039978]]
    """
    if unknown:
        return respelled(bias_gelu, unknown, locals())
    check_values(approximate=approximate)
    activation = "gelu" if approximate == "none" else "gelu_tanh"
    return computed(_read_bias_activation, (input, bias), "bias_gelu", activation, 0.0, False)


def linear(input: ArrayT, weight: Any, bias: Any = None, *, activation: str = "none", **unknown: NoReturn) -> ArrayT:
    """``activation(input @ weight.T + bias)``, for tensors of torch.

    On a GPU, bias and activation are in the epilogue of a kernel for the product, or in a kernel behind the library's
    product: whichever was measured to be faster, see :func:`einops_fast.autotune`.

    Args:
        input: (..., features), of any strides.
        weight: (results, features), of any strides.
        bias: (results,).
        activation: as for :func:`dropout_bias_activation`.

    Returns:
        (..., results).

    Raises:
        ShapeError: sizes don't fit.
        EinsumError: there is no such activation.
        OperandError: they aren't tensors of torch, or input and weight have two dtypes.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> ops.linear(torch.ones(1, 3), torch.ones(2, 3), torch.tensor([0.0, -5.0]), activation='relu').tolist()
        [[3.0, 0.0]]
    """
    if unknown:
        return respelled(linear, unknown, locals())
    return computed(read_linear, (input, weight, bias), activation)


def read_linear(
    array: Any, weight: Any, bias: Any, activation: str = "none", prefix: str = "", operator: str = "linear"
) -> Callable[..., Any]:
    """Check the arguments of :func:`linear`, and return what computes such arrays."""
    named = {f"{prefix}weight": weight, f"{prefix}bias": bias}
    function = function_for("linear", array, operator, (f"{prefix}weight",), **named)
    check_activation(activation)
    check_layer(f"{prefix}weight", weight, array)
    check_sizes(f"{prefix}weight", weight.shape, (0,), **{f"{prefix}bias": bias})
    return function(array, weight, bias, activation)


def check_layer(name: str, weight: Any, input: Any) -> None:
    """Raise ShapeError or OperandError unless an input can be multiplied by the weight of a layer of this name."""
    if not len(input.shape):
        raise ShapeError("input has no axis of features")
    features = input.shape[-1]
    if len(weight.shape) != 2:
        raise ShapeError(
            f"{name} has shape {tuple(weight.shape)}, but input of shape {tuple(input.shape)} needs two axes, "
            f"the second of size {features}"
        )
    if weight.shape[1] != features:
        raise ShapeError(differ(name, weight.shape, 1, "input", input.shape, len(input.shape) - 1))
    if weight.dtype == input.dtype:
        return
    kinds = dtype_name(weight.dtype), dtype_name(input.dtype)
    if "float64" in kinds or not autocasts(input):  # it leaves float64 as it is
        raise OperandError(f"{name} has dtype {kinds[0]}, input {kinds[1]}: convert one of them")


def _read_bias_activation(
    array: Any, bias: Any, operator: str, activation: str, p: float, training: bool
) -> Callable[..., Any]:
    """Check the arguments of :func:`dropout_bias_activation`, and return what computes such arrays."""
    function = function_for("bias_activation", array, operator, bias=bias)
    check_activation(activation)
    check_values(p=p, training=training)
    shape = array.shape
    if not len(shape):
        raise ShapeError("input has no axis")
    check_sizes("input", shape, (len(shape) - 1,), bias=bias)
    return function(array, bias, activation, p if training else 0.0)
