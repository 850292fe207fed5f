"""Attention of models of transformers, on views of the projections and without a matrix of weights."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from einops_fast.nn.heads import BERT, BLOOM, GPT, GPTJ, LLAMA, T5, Parts, attend_by_parts
from einops_fast.nn.injection.conditions import (
    OTHER_VERSION,
    attends_otherwise,
    called_otherwise,
    collector,
    needs_original,
    of_transformers,
)
from einops_fast.nn.injection.replacement import Replacement


class Attention(Replacement):
    """What the families have in common."""

    does = "attention on views, without weights"
    parts: ClassVar[Parts]
    collector: ClassVar[Any]
    rotate: ClassVar[Any]  # transformers' function for rotary positions, if its models have one
    # the dicts of forward hooks of the modules around it that return its weights
    hooks_around: tuple[dict[int, Any], ...] = ()

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        names = inspect.signature(type(module).forward).parameters
        known = {"hidden_states", "attention_mask", "past_key_values"} <= names.keys()
        if not known or not all(hasattr(module, name) for name in ("config", "is_causal", "layer_idx", "scaling")):
            return OTHER_VERSION
        if getattr(module, "position_embedding_type", None) not in (None, "absolute"):
            return "its scores depend on distances"
        if getattr(module, "is_cross_attention", False):
            return "its keys come from another sequence"
        chosen = getattr(module.config, "_attn_implementation", None)
        if chosen in ("eager", "sdpa") and attends_otherwise(module):
            return f"its {chosen} attention isn't transformers' own"
        return None

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        rotate: Any = getattr(sys.modules[original.__module__], "apply_rotary_pos_emb", None)
        return {"collector": collector(), "rotate": staticmethod(rotate)}

    def rotation(self, options: dict[str, Any]) -> Any:
        """Return what turns queries and keys by their positions, ``None`` for nothing."""
        return None

    def project(self, hidden_states: Tensor, mask: Tensor | None, cache: Any, options: dict[str, Any]) -> Tensor:
        """Return the result before its dropout."""
        position = options.get("cache_position")
        more = None if position is None else {"cache_position": position}  # what caches of older versions are told
        causal = _causal(self, options)
        rotate, bias = self.rotation(options), options.get("added_bias")
        return attend_by_parts(self, self.parts, hidden_states, mask, cache, causal, more, rotate, bias)

    def dropped(self, result: Tensor) -> Any:
        """Return the result after its dropout, if it has one."""
        return result

    def fused(
        self, hidden_states: Tensor, *args: Any, attention_mask: Any = None, past_key_values: Any = None, **options: Any
    ) -> Any:
        """Return what the class that was replaced returns, without weights."""
        if args or needs_original(self, hidden_states, attention_mask, options):
            return NotImplemented
        return self.dropped(self.project(hidden_states, attention_mask, past_key_values, options)), None


def _causal(module: Any, options: dict[str, Any]) -> bool:
    """What no mask means: in transformers' ``eager`` attention, that everything is seen."""
    if getattr(getattr(module, "config", None), "_attn_implementation", "eager") == "eager":
        return False
    told = options.get("is_causal")
    return bool(module.is_causal if told is None else told)


def show_hooks_around(modules: Iterable[nn.Module]) -> None:
    """Let each replaced attention see the hooks of modules of transformers that return its weights as theirs.

    The dict of a module's hooks is the same one for good, and stays shared where both are copied or pickled.
    """
    hooks: dict[nn.Module, list[dict[int, Any]]] = {}
    for outer in modules:
        if type(outer).__name__.endswith("Attention") and of_transformers(type(outer)):
            for inner in outer.children():
                if isinstance(inner, Attention):
                    hooks.setdefault(inner, []).append(outer._forward_hooks)
    for inner, around in hooks.items():
        vars(inner)["hooks_around"] = tuple(around)


class BertAttention(Attention):
    """BERT's."""

    parts = BERT


class GPTAttention(Attention):
    """GPT-2's."""

    parts = GPT

    def dropped(self, result: Tensor) -> Any:
        return self.resid_dropout(result)


class LlamaAttention(Attention):
    """Llama's, with rotary positions."""

    parts = LLAMA

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        if not hasattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb"):
            return OTHER_VERSION
        return super().unfit(module)

    def rotation(self, options: dict[str, Any]) -> Any:
        return lambda q, k: self.rotate(q, k, *options["position_embeddings"], unsqueeze_dim=2)


class _Alone(Attention):
    """Attention that calls none of transformers' functions, and is told of hidden keys in numbers."""

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        return called_otherwise(module, cls.fused)

    def attended(self, x: Tensor, mask: Any, cache: Any, weights: Any, options: dict[str, Any], **more: Any) -> Any:
        """Return what the class that was replaced returns, without weights."""
        options |= {"attention_mask": mask, "past_key_values": cache, "output_attentions": weights}
        return Attention.fused(self, x, **options, **more)


class GPTJAttention(_Alone):
    """GPT-J's, with some of the features turned by their positions."""

    parts = GPTJ
    scaling = property(lambda self: 1 / self.scale_attn)
    dropped = GPTAttention.dropped

    def rotation(self, options: dict[str, Any]) -> Any:
        positions, size = options["position_ids"], self.rotary_dim or self.head_dim
        angles = self.embed_positions.to(positions.device)[positions]

        def turned(x: Tensor) -> Tensor:
            sin, cos = angles.to(x.dtype).chunk(2, -1)
            return torch.cat([self.rotate(x[..., :size], sin, cos), x[..., size:]], -1)

        return lambda q, k: (turned(q), turned(k))

    def fused(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        layer_past: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        use_cache: Any = False,
        output_attentions: Any = False,
        **options: Any,
    ) -> Any:
        return self.attended(
            hidden_states, attention_mask, layer_past, output_attentions, options, position_ids=position_ids
        )


class GPTNeoAttention(_Alone):
    """GPT-Neo's, which hides later keys, and in local layers those before a window, whatever the mask says."""

    parts = GPTJ
    scaling = 1.0
    layer_idx = property(lambda self: self.layer_id)
    dropped = GPTAttention.dropped

    def fused(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        layer_past: Any = None,
        use_cache: Any = False,
        output_attentions: Any = False,
        **options: Any,
    ) -> Any:
        if not isinstance(attention_mask, Tensor) or attention_mask.dtype == torch.bool:
            return NotImplemented
        keys, lowest = attention_mask.shape[-1], torch.finfo(attention_mask.dtype).min
        hidden = ~self.bias[:, :, keys - hidden_states.shape[1] : keys, :keys]
        attention_mask = attention_mask + attention_mask.new_zeros(()).masked_fill(hidden, lowest)
        return self.attended(hidden_states, attention_mask, layer_past, output_attentions, options)


class BloomAttention(_Alone):
    """BLOOM's, with a bias of distances."""

    parts = BLOOM
    scaling = property(lambda self: self.inv_norm_factor)

    @classmethod
    def unfit(cls, module: Any) -> str | None:
        exact = getattr(module, "slow_but_exact", False)
        return super().unfit(module) or ("its projection is added up in parts" if exact else None)

    def fused(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Any,
        layer_past: Any = None,
        use_cache: Any = False,
        output_attentions: Any = False,
        **options: Any,
    ) -> Any:
        bias = alibi.reshape(-1, self.num_heads, 1, alibi.shape[-1])
        found = self.attended(hidden_states, attention_mask, layer_past, output_attentions, options, added_bias=bias)
        if found is NotImplemented:
            return found
        return residual + nn.functional.dropout(found[0], self.hidden_dropout, self.training), None


class T5Attention(_Alone):
    """T5's, with a bias of distances, which later layers get from the first."""

    parts = T5

    @classmethod
    def unfit(cls, module: Any) -> str | None:
        crossed = module.is_decoder and not getattr(module, "is_causal", True)
        return super().unfit(module) or ("its keys come from another sequence" if crossed else None)

    def fused(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        mask: Any = None,
        key_value_states: Any = None,
        position_bias: Any = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        if key_value_states is not None or (position_bias is None and not self.has_relative_attention_bias):
            return NotImplemented
        if position_bias is None:
            length = keys = hidden_states.shape[1]
            past = 0
            if past_key_values is not None:
                past = past_key_values.get_seq_length(self.layer_idx)
                keys, _ = past_key_values.get_mask_sizes(length, self.layer_idx)
            position_bias = self.compute_bias(length, keys, hidden_states.device, past)
        weights = options.pop("output_attentions", None)
        found = self.attended(hidden_states, mask, past_key_values, weights, options, added_bias=position_bias)
        return found if found is NotImplemented else (found[0], position_bias, None)
