"""Norms, dropout, softmax, losses and the parts of feed-forward layers, by the fused layers."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.nn import layers
from einops_fast.nn.injection.conditions import (
    activation_name,
    activation_of,
    is_plain,
    is_plain_norm,
    of_transformers,
    unlike,
)
from einops_fast.nn.injection.native_code import foreign_code
from einops_fast.nn.injection.replacement import Replacement

OF_TORCH: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "ops.cross_entropy",
    nn.LayerNorm: "ops.layer_norm",
    nn.LogSoftmax: "ops.log_softmax",
    nn.RMSNorm: "ops.rms_norm",
    nn.Softmax: "ops.softmax",
}
"""What does the work of modules of torch that have a subclass of the same name in :mod:`einops_fast.nn.layers`."""


class Layer(Replacement):
    """One of these."""

    options: ClassVar[dict[str, Any]] = {}  # those that ours has beside torch's, of a softmax
    z_loss = 0.0  # the same, of a loss

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        return "it has no dim" if getattr(module, "dim", 0) is None else None

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        return {"does": OF_TORCH[original], "fused": getattr(layers, original.__name__).forward}


class LlamaNorm(Replacement):
    """Llama's RMS norm."""

    does = "ops.rms_norm"

    def fused(self, hidden_states: Tensor) -> Any:
        """The norm along the last axis."""
        if self.weight.dtype != hidden_states.dtype:  # whose product then has the wider dtype
            return NotImplemented
        return ops.rms_norm(hidden_states, None, self.weight, self.variance_epsilon)


class Dropout(Replacement):
    """torch's: what was dropped isn't kept."""

    does = "ops.dropout_bias_activation"

    def fused(self, input: Tensor) -> Any:
        """Zeros for some elements while training."""
        if not self.training or not self.p or self.inplace or not input.is_floating_point() or not input.dim():
            return NotImplemented
        return ops.dropout_bias_activation(input, None, "none", self.p)


class _Activated(Replacement):
    """A linear layer and its activation in one."""

    does = "ops.linear with the activation"
    act_name: ClassVar[str]  # the name of the activation
    layer_name: ClassVar[tuple[str, type[nn.Module] | str]]  # the name of the linear layer, and its class

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        activation = getattr(module, cls.act_name, None)
        if activation_name(activation) is not None:
            return unlike(module, *cls.layer_name)
        kind = type(activation)
        own = foreign_code(kind) if of_transformers(kind) else None
        return own or f"{kind.__name__} isn't one of the fused activations"

    def activated(self, x: Tensor) -> Any:
        """Return the activation of the layer's result, or ``NotImplemented``."""
        name, kind = self.layer_name
        activation, layer = activation_of(getattr(self, self.act_name)), getattr(self, name)
        if activation is None or not is_plain(layer, kind):
            return NotImplemented
        weight = layer.weight if kind is nn.Linear else layer.weight.t()
        return ops.linear(x, weight, layer.bias, activation=activation)


class BertIntermediate(_Activated):
    """BERT's linear layer and activation."""

    act_name, layer_name = "intermediate_act_fn", ("dense", nn.Linear)
    fused = _Activated.activated


class BertOutput(Replacement):
    """BERT's linear layer, dropout, sum and norm: all but the product in one."""

    does = "ops.dropout_add_layer_norm"

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        return unlike(module, "LayerNorm", nn.LayerNorm) or unlike(module, "dropout", nn.Dropout)

    def fused(self, hidden_states: Tensor, input_tensor: Tensor) -> Any:
        """The norm of the sum."""
        norm, dropout = self.LayerNorm, self.dropout
        if not is_plain_norm(norm) or not is_plain(dropout, nn.Dropout):
            return NotImplemented
        return ops.dropout_add_layer_norm(
            self.dense(hidden_states), input_tensor, norm.weight, norm.bias, dropout.p, norm.eps,
            training=dropout.training,
        )[0]  # fmt: skip


class GPTFeedForward(_Activated):
    """GPT-2's two linear layers, the activation with the first."""

    act_name, layer_name = "act", ("c_fc", "Conv1D")

    def fused(self, hidden_states: Tensor) -> Any:
        """The result after dropout."""
        inner = self.activated(hidden_states)
        return inner if inner is NotImplemented else self.dropout(self.c_proj(inner))


class LlamaFeedForward(_Activated):
    """Llama's gated layer: the activation with the gate's product."""

    does = "ops.linear with the activation of the gate"
    act_name, layer_name = "act_fn", ("gate_proj", nn.Linear)

    def fused(self, x: Tensor) -> Any:
        """(..., hidden_size) to the same."""
        gate = self.activated(x)
        return gate if gate is NotImplemented else self.down_proj(gate * self.up_proj(x))
