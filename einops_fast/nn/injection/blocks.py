"""Blocks of GPT-2: what comes between attention and feed-forward layer, dropout, sum and norm, in one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.nn.injection.attention import GPTAttention
from einops_fast.nn.injection.conditions import (
    called_otherwise,
    is_plain,
    is_plain_norm,
    needs_original,
    observed,
)
from einops_fast.nn.injection.native_code import unchanged
from einops_fast.nn.injection.replacement import Replacement, is_fused


class GPTBlock(Replacement):
    """GPT-2's block."""

    does = "ops.dropout_add_layer_norm after attention"

    @classmethod
    def unfit(cls, module: Any) -> str | None:
        """A block of an older version has other arguments, and returns tuples; this asks for what is before dropout."""
        unfused = None if is_fused(module.attn, GPTAttention) else "its attention isn't replaced"
        return called_otherwise(module, cls.fused) or unfused

    def fused(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        use_cache: Any = False,
        **options: Any,
    ) -> Any:
        """The block's result."""
        attention, norm = self.attn, self.ln_2
        dropout: Any = getattr(attention, "resid_dropout", None)
        if (
            encoder_hidden_states is not None
            or not is_fused(attention, GPTAttention)
            or observed(attention)
            or not unchanged(attention.original)
            or not is_plain(dropout, nn.Dropout)
            or not is_plain_norm(norm)
            or needs_original(attention, hidden_states, attention_mask, options)
        ):
            return NotImplemented
        attended = attention.project(self.ln_1(hidden_states), attention_mask, past_key_values, options)
        normalised, summed = ops.dropout_add_layer_norm(
            attended, hidden_states, norm.weight, norm.bias, dropout.p, norm.eps, training=dropout.training
        )
        return summed + self.mlp(normalised)
