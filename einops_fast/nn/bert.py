"""`BertSelfAttention`: with the weights of BERT's in transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from einops_fast.nn.heads import BERT, attend_by_parts, check_features, head_dim_of, refuse
from einops_fast.ops.checks import check_values


class BertSelfAttention(nn.Module):
    """Self-attention with the projections ``query``, ``key`` and ``value`` of the class of this name in transformers.

    Its state is that class's, and so is what it takes and returns, so that it can stand in its place.

    Args:
        hidden_size: features of the input and the result.
        num_attention_heads: number of heads.
        attention_probs_dropout_prob: probability of dropping weights while training.
        is_causal: whether keys after the query are hidden where there is no mask.
        layer_idx: the number that a cache knows this layer by.
        device, dtype: of the parameters.

    Raises:
        ShapeError: ``hidden_size`` is no multiple of ``num_attention_heads``.

    Example:
        >>> import torch
        >>> from einops_fast.nn import BertSelfAttention
        >>> attend = BertSelfAttention(hidden_size=32, num_attention_heads=4)
        >>> found, _ = attend(torch.zeros(2, 5, 32), attention_mask=torch.ones(2, 1, 1, 5, dtype=torch.bool))
        >>> found.shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        attention_probs_dropout_prob: float = 0.1,
        is_causal: bool = False,
        layer_idx: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_values(attention_probs_dropout_prob=attention_probs_dropout_prob)
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = head_dim_of(hidden_size, num_attention_heads)
        self.scaling = self.attention_head_size**-0.5
        self.query = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.key = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.value = nn.Linear(hidden_size, hidden_size, device=device, dtype=dtype)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.is_causal, self.layer_idx = is_causal, layer_idx

    @classmethod
    def from_config(cls, config: Any, is_causal: bool = False, layer_idx: int | None = None) -> BertSelfAttention:
        """The module for a configuration of transformers, or any object with these attributes."""
        return cls(
            config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob, is_causal, layer_idx
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attention of ``hidden_states`` to itself.

        Args:
            hidden_states: (batch, length, hidden_size), the result likewise.
            attention_mask: broadcastable to (batch, heads, length, length): boolean, True where a key is
                seen, or added.
            past_key_values: a cache of transformers.
            options: ignored, but for those that ask for something else.

        Returns:
            The result, and ``None`` in place of the weights.
        """
        refuse(options)
        check_features("hidden_states", hidden_states, self.num_attention_heads * self.attention_head_size)
        return attend_by_parts(self, BERT, hidden_states, attention_mask, past_key_values, self.is_causal), None
