"""`dropout_bias_activation`, `bias_gelu`, and `linear` with an activation."""

from __future__ import annotations

from typing import Any

from einops_fast.errors import EinsumError, ShapeError
from einops_fast.ops.dispatch import function_for
from einops_fast.ops.norm import check_probability

__all__ = ["ACTIVATIONS", "bias_gelu", "check_activation", "dropout_bias_activation", "linear"]

ACTIVATIONS = (
    "none", "relu", "leaky_relu", "gelu", "gelu_tanh", "squared_relu", "smelu", "star_relu", "silu"
)  # fmt: skip
"""Names of the activations."""


def dropout_bias_activation(
    input: Any, bias: Any = None, activation: str = "none", p: float = 0.0, *, training: bool = True
) -> Any:
    """``dropout(activation(input + bias))``, for tensors of torch; on a GPU one kernel each way.

    Args:
        input: any shape and strides; floating-point.
        bias: one number per element of the last axis.
        activation: one of :data:`ACTIVATIONS`: ``gelu`` is the exact one (Hendrycks and Gimpel, 2016,
            https://arxiv.org/abs/1606.08415), ``gelu_tanh`` the approximation there, ``leaky_relu`` has slope 0.01,
            ``squared_relu`` is that of So et al. (2021, https://arxiv.org/abs/2109.08668), ``smelu`` that of Shamir et
            al. (2020, https://arxiv.org/abs/2010.09931) with beta 2, ``star_relu`` that of Yu et al. (2022,
            https://arxiv.org/abs/2210.13452) with 0.8944 and -0.4472, ``silu`` is ``x * sigmoid(x)``.
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
    function, input = function_for("bias_activation", input, bias=bias)
    _check(activation, bias, input.shape[-1] if len(input.shape) else None)
    check_probability(p)
    return function(input, bias, activation, p if training else 0.0)


def bias_gelu(input: Any, bias: Any = None, *, approximate: str = "none") -> Any:
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
    if approximate not in ("none", "tanh"):
        raise EinsumError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return dropout_bias_activation(input, bias, "gelu" if approximate == "none" else "gelu_tanh")


def linear(input: Any, weight: Any, bias: Any = None, *, activation: str = "none") -> Any:
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
        OperandError: they aren't tensors of torch.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> ops.linear(torch.ones(1, 3), torch.ones(2, 3), torch.tensor([0.0, -5.0]), activation='relu').tolist()
        [[3.0, 0.0]]
    """
    function, input = function_for("linear", input, weight=weight, bias=bias)
    if len(weight.shape) != 2 or not len(input.shape) or weight.shape[1] != input.shape[-1]:
        raise ShapeError(
            f"weight has shape {tuple(weight.shape)}, input {tuple(input.shape)}: the last axes have to be of one size"
        )
    _check(activation, bias, weight.shape[0])
    return function(input, weight, bias, activation)


def check_activation(activation: str) -> None:
    """Raise EinsumError unless there is an activation of this name."""
    if activation not in ACTIVATIONS:
        raise EinsumError(f"activation {activation!r} isn't one of {', '.join(ACTIVATIONS)}")


def _check(activation: str, bias: Any, size: int | None) -> None:
    check_activation(activation)
    if size is None:
        raise ShapeError("input has no axis")
    if bias is not None and bias.shape != (size,):
        raise ShapeError(f"bias has shape {tuple(bias.shape)}, but the last axis has size {size}")
