"""Layers as torch has them, by the fused functions: norms, softmax, losses, an activation with its layer, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from einops_fast import ops
from einops_fast.attention.options import count
from einops_fast.errors import EinsumError, ShapeError
from einops_fast.nn.heads import check_features
from einops_fast.ops.axes import check_axis
from einops_fast.ops.checks import check_activation, check_values
from einops_fast.ops.cross_entropy import check_options as check_loss
from einops_fast.ops.norm import last_sizes
from einops_fast.ops.softmax import check_dtype, check_options


class LayerNorm(nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` by :func:`einops_fast.ops.layer_norm`: the same arguments and the same state.

    Raises:
        EinsumError: ``normalized_shape`` isn't made of sizes, or ``eps`` is no number.

    Example:
        >>> import torch
        >>> from einops_fast.nn import LayerNorm
        >>> norm = LayerNorm(4, bias=False)
        >>> norm.load_state_dict(torch.nn.LayerNorm(4, bias=False).state_dict())
        <All keys matched successfully>
        >>> norm(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_values(eps=eps, elementwise_affine=elementwise_affine, bias=bias)
        super().__init__(last_sizes(normalized_shape), eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The norm over the last axes."""
        found: Tensor = ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return found


class RMSNorm(nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` by :func:`einops_fast.ops.rms_norm`: the same arguments and the same state.

    Raises:
        EinsumError: as :class:`LayerNorm`.

    Example:
        >>> import torch
        >>> from einops_fast.nn import RMSNorm
        >>> RMSNorm(4, eps=1e-6)(torch.ones(1, 4)).round().tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_values(eps=0.0 if eps is None else eps, elementwise_affine=elementwise_affine)
        super().__init__(last_sizes(normalized_shape), eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm over the last axes."""
        found: Tensor = ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return found


class DropoutAddLayerNorm(LayerNorm):
    """``layer_norm(dropout(x) + residual)`` by :func:`einops_fast.ops.dropout_add_layer_norm`.

    Its state is that of the :class:`torch.nn.LayerNorm` in it.

    Args:
        normalized_shape: the size of the last axis.
        p: probability of dropping an element while training.
        prenorm: return the sum, too, which is the next residual.
        options: what else :class:`LayerNorm` takes: ``eps``, ``elementwise_affine``, ``bias``, …

    Raises:
        ShapeError: ``normalized_shape`` has several axes, or isn't the input's.
        EinsumError: base of it; as :class:`LayerNorm`; ``p`` isn't a probability.

    Example:
        >>> import torch
        >>> from einops_fast.nn import DropoutAddLayerNorm
        >>> norm = DropoutAddLayerNorm(4, p=0.1, prenorm=True).eval()
        >>> normalised, summed = norm(torch.ones(2, 4), torch.ones(2, 4))
        >>> summed[0].tolist()
        [2.0, 2.0, 2.0, 2.0]
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], p: float = 0.1, prenorm: bool = False, **options: Any
    ) -> None:
        super().__init__(normalized_shape, **options)
        if len(self.normalized_shape) != 1:
            raise ShapeError(f"normalized_shape is the size of the last axis, not {self.normalized_shape}")
        check_values(p=p)
        self.p, self.prenorm = p, prenorm

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        """The norm, and with ``prenorm`` the sum."""
        check_features("input", input, *self.normalized_shape)
        found, summed = ops.dropout_add_layer_norm(
            input, residual, self.weight, self.bias, self.p, self.eps, training=self.training
        )
        return (found, summed) if self.prenorm else found

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, p={self.p}, prenorm={self.prenorm}"


class _WithOptions(nn.Module):
    def __init__(
        self,
        dim: Any = None,
        *,
        pattern: str | None = None,
        causal: bool | str = False,
        temperature: float = 1.0,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim)
        check_axis(dim, pattern)
        check_options(causal, temperature)
        check_dtype(dtype)
        self.options = {"pattern": pattern, "causal": causal, "temperature": temperature, "dtype": dtype}


def _dim(module: nn.Module, input: Tensor) -> Any:
    """The axis that a module was given; without one, torch's module takes the last axis of two at most."""
    dim, options = cast(Any, module.dim), cast(dict[str, Any], module.options)
    if dim is None and options.get("pattern") is None and input.dim() > 2:
        raise ShapeError(
            f"{type(module).__name__} has no dim, which an input of {input.dim()} axes needs: torch's module would "
            f"take axis {0 if input.dim() == 3 else 1}, the function softmax the last one"
        )
    return dim


class Softmax(_WithOptions, nn.Softmax):
    """:class:`torch.nn.Softmax` by :func:`einops_fast.ops.softmax`.

    Args:
        dim: the axis, as a number or as a name in ``pattern``; if ``None``, the last one. Inputs of more than two axes
            need it, or a ``pattern``: without, torch's module would take another axis.
        pattern, causal, temperature, dtype: as for the function, for every call.

    Raises:
        SubscriptsError, ShapeError: ``dim`` or ``pattern`` is wrong, as far as can be told without an input.
        EinsumError: another option is wrong.
        ShapeError: from the call, where ``dim`` is missing.

    Example:
        >>> import torch
        >>> from einops_fast.nn import Softmax
        >>> Softmax(dim=-1, causal=True)(torch.zeros(2, 2)).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.softmax(input, _dim(self, input), mask=mask, **self.options)
        return found


class LogSoftmax(_WithOptions, nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax` by :func:`einops_fast.ops.log_softmax`; the arguments are those of :class:`Softmax`.

    Example:
        >>> import torch
        >>> from einops_fast.nn import LogSoftmax
        >>> LogSoftmax(dim=-1)(torch.zeros(1, 1)).tolist()
        [[0.0]]
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logarithm of the softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.log_softmax(input, _dim(self, input), mask=mask, **self.options)
        return found


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """:class:`torch.nn.CrossEntropyLoss` by :func:`einops_fast.ops.cross_entropy`, with classes where torch has them.

    Args:
        weight, size_average, ignore_index, reduce, reduction, label_smoothing: as torch's class takes them.
        z_loss: factor of the square of the logarithm of the sum.

    Raises:
        EinsumError: an option is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import CrossEntropyLoss
        >>> CrossEntropyLoss(label_smoothing=0.1)(torch.zeros(2, 4, 3), torch.zeros(2, 3, dtype=torch.long))
        tensor(1.3863)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        check_loss(ignore_index, self.reduction, label_smoothing, z_loss)
        self.z_loss = z_loss

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of (classes,), (rows, classes) or (rows, classes, ...)."""
        reduction: Any = self.reduction
        found: Tensor = ops.cross_entropy(
            input, target, self.weight, self.ignore_index, reduction, self.label_smoothing, z_loss=self.z_loss,
            dim=min(input.dim() - 1, 1),
        )  # fmt: skip
        return found


class FusedLinear(nn.Linear):
    """:class:`torch.nn.Linear` and an activation, by :func:`einops_fast.ops.linear`; its state is that of the layer.

    Args:
        in_features, out_features, bias, device, dtype: those of torch's class.
        activation: as for :func:`einops_fast.ops.dropout_bias_activation`.

    Raises:
        EinsumError: there is no such activation, or a number of features is none.

    Example:
        >>> import torch
        >>> from einops_fast.nn import FusedLinear
        >>> FusedLinear(4, 8, activation='gelu')(torch.zeros(2, 4)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str = "none",
    ) -> None:
        check_activation(activation)
        check_values(bias=bias)
        in_features = count("in_features", in_features, "a number of features", 0)
        out_features = count("out_features", out_features, "a number of features", 0)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, activation={self.activation!r}"

    def forward(self, input: Tensor) -> Tensor:
        """The activation of the layer's result: (..., in_features) to (..., out_features)."""
        found: Tensor = ops.linear(input, self.weight, self.bias, activation=self.activation)
        return found


class FusedDropoutBias(nn.Module):
    """``dropout(activation(x + bias))`` by :func:`einops_fast.ops.dropout_bias_activation`: one kernel each way.

    The arguments and the state are those of xFormers' module of this name.

    Args:
        p: probability of dropping an element while training.
        bias_shape: size of the bias, which is that of the last axis; ``None`` for no bias.
        activation: one of :data:`einops_fast.ops.checks.ACTIVATIONS`; ``None`` for none.
        device, dtype: of the bias.

    Raises:
        EinsumError: an argument is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import FusedDropoutBias
        >>> FusedDropoutBias(0.1, bias_shape=2, activation='relu').eval()(torch.tensor([[-1.0, 3.0]])).tolist()
        [[0.0, 3.0]]
    """

    def __init__(
        self,
        p: float,
        bias_shape: int | Sequence[int] | None,
        activation: str | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_values(p=p)
        self.activation = activation or "none"
        check_activation(self.activation)
        if isinstance(bias_shape, Sequence):
            if len(bias_shape) != 1:
                raise EinsumError(f"the bias has one axis, that of the features; not shape {tuple(bias_shape)}")
            bias_shape = bias_shape[0]
        self.p = float(p)
        self.bias = None
        if bias_shape is not None:
            features = count("bias_shape", bias_shape, "a number of features", 0)
            self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.init_weights()

    def init_weights(self) -> None:
        """Set the bias to zeros."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as ``x``."""
        found: Tensor = ops.dropout_bias_activation(x, self.bias, self.activation, self.p, training=self.training)
        return found

    def extra_repr(self) -> str:
        """The arguments."""
        shape = None if self.bias is None else self.bias.shape[0]
        return f"p={self.p}, bias_shape={shape}, activation={self.activation!r}"
