"""Blocks of GPT-2 and Llama: what comes between attention and feed-forward layer, dropout, sum and norm, in one."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.nn.injection.attention import GPTAttention
from einops_fast.nn.injection.conditions import (
    OTHER_VERSION,
    is_plain,
    is_plain_norm,
    is_plain_rms_norm,
    needs_original,
    observed,
)
from einops_fast.nn.injection.native_code import unchanged
from einops_fast.nn.injection.replacement import Replacement, is_fused


class _Block(Replacement):
    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        """A block of an older version has other arguments, and returns tuples."""
        names = [*inspect.signature(type(module).forward).parameters]
        wanted = [*inspect.signature(cls.fused).parameters][:-1]
        ours = names[: len(wanted)] == wanted
        return None if ours else OTHER_VERSION


class GPTBlock(_Block):
    """GPT-2's block."""

    does = "ops.dropout_add_layer_norm after attention"

    @classmethod
    def unfit(cls, module: Any) -> str | None:
        """It asks its attention for what comes before the dropout."""
        kept = not is_fused(module.attn, GPTAttention)
        return super().unfit(module) or ("its attention isn't replaced" if kept else None)

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


class LlamaBlock(_Block):
    """Llama's block."""

    does = "sum and norm after attention in one"

    def fused(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = False,
        position_embeddings: Any = None,
        **options: Any,
    ) -> Any:
        """The block's result."""
        norm = self.post_attention_layernorm
        if not is_plain_rms_norm(norm) or norm.weight.dtype != hidden_states.dtype:
            return NotImplemented
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states), attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache, position_embeddings=position_embeddings, **options,
        )  # fmt: skip
        normalised, summed = ops.dropout_add_layer_norm(
            attended, hidden_states, norm.weight, None, 0.0, norm.variance_epsilon, rms=True
        )
        return summed + self.mlp(normalised)
