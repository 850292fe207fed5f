"""`GPTAttention`: with the weights of GPT-2's in transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from einops_fast import ops
from einops_fast.nn.heads import GPT, attend_by_parts, check_features, head_dim_of, refuse
from einops_fast.ops.checks import check_values


class Conv1D(nn.Module):
    """A linear layer with the weight as GPT-2 has it: (in_features, out_features).

    Example:
        >>> import torch
        >>> from einops_fast.nn import Conv1D
        >>> Conv1D(8, 4)(torch.zeros(2, 4)).shape
        torch.Size([2, 8])
    """

    def __init__(self, out_features: int, in_features: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        found: Tensor = ops.linear(x, self.weight.t(), self.bias)
        return found


class GPTAttention(nn.Module):
    """Self-attention with one projection, ``c_attn``, and one of the result, ``c_proj``, as GPT-2's in transformers.

    Its state is that of transformers' ``GPT2Attention``, and so is what it takes and returns. Queries, keys and values
    are views of the projection.

    Args:
        hidden_size: features of the input and the result.
        num_attention_heads: number of heads.
        attn_pdrop, resid_pdrop: probabilities of dropping weights, and elements of the result, while training.
        is_causal: whether keys after the query are hidden where there is no mask.
        scaling: of the products; ``head_dim ** -0.5`` if ``None``.
        layer_idx: the number that a cache knows this layer by.
        device, dtype: of the parameters.

    Raises:
        ShapeError: ``hidden_size`` is no multiple of ``num_attention_heads``.

    Example:
        >>> import torch
        >>> from einops_fast.nn import GPTAttention
        >>> found, _ = GPTAttention(hidden_size=32, num_attention_heads=4)(torch.zeros(2, 5, 32))
        >>> found.shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        attn_pdrop: float = 0.1,
        resid_pdrop: float = 0.1,
        is_causal: bool = True,
        scaling: float | None = None,
        layer_idx: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_values(attn_pdrop=attn_pdrop, resid_pdrop=resid_pdrop)
        if scaling is not None:
            check_values(scaling=scaling)
        self.num_heads = num_attention_heads
        self.head_dim = head_dim_of(hidden_size, num_attention_heads)
        self.scaling = self.head_dim**-0.5 if scaling is None else scaling
        self.c_attn = Conv1D(3 * hidden_size, hidden_size, device=device, dtype=dtype)
        self.c_proj = Conv1D(hidden_size, hidden_size, device=device, dtype=dtype)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_pdrop = resid_pdrop
        self.is_causal, self.layer_idx = is_causal, layer_idx

    @classmethod
    def from_config(cls, config: Any, layer_idx: int | None = None) -> GPTAttention:
        """The module for a configuration of transformers, or any object with these attributes."""
        scaling = (config.hidden_size // config.num_attention_heads) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scaling /= (layer_idx or 0) + 1
        return cls(
            config.hidden_size, config.num_attention_heads, config.attn_pdrop, config.resid_pdrop, scaling=scaling,
            layer_idx=layer_idx,
        )  # fmt: skip

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attention of ``hidden_states`` to itself.

        Args:
            hidden_states: (batch, length, hidden_size), the result likewise.
            past_key_values: a cache of transformers.
            attention_mask: broadcastable to (batch, heads, length, length): boolean, True where a key is
                seen, or added.
            options: ignored, but for those that ask for something else.

        Returns:
            The result, and ``None`` in place of the weights.
        """
        refuse(options)
        check_features("hidden_states", hidden_states, self.num_heads * self.head_dim)
        found = attend_by_parts(self, GPT, hidden_states, attention_mask, past_key_values, self.is_causal)
        dropped: Tensor = ops.dropout_bias_activation(found, None, "none", self.resid_pdrop, training=self.training)
        return dropped, None
