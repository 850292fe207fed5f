"""Attention of BERT, GPT-2 and Llama in transformers, on views of the projections and without a matrix of weights."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from einops_fast.nn.heads import BERT, GPT, LLAMA, Parts, attend_by_parts
from einops_fast.nn.injection.conditions import (
    OTHER_VERSION,
    attends_otherwise,
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
        return {"collector": collector()}

    def rotation(self, options: dict[str, Any]) -> Any:
        """Return what turns queries and keys by their positions, ``None`` for nothing."""
        return None

    def project(self, hidden_states: Tensor, mask: Tensor | None, cache: Any, options: dict[str, Any]) -> Tensor:
        """Return the result before its dropout."""
        position = options.get("cache_position")
        more = None if position is None else {"cache_position": position}  # what caches of older versions are told
        causal = _causal(self, options)
        return attend_by_parts(self, self.parts, hidden_states, mask, cache, causal, more, self.rotation(options))

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
    if module.config._attn_implementation == "eager":
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
    rotate: ClassVar[Any]

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        if not hasattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb"):
            return OTHER_VERSION
        return super().unfit(module)

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        rotate: Any = getattr(sys.modules[original.__module__], "apply_rotary_pos_emb", None)
        return {**super().members(original), "rotate": staticmethod(rotate)}

    def rotation(self, options: dict[str, Any]) -> Any:
        return lambda q, k: self.rotate(q, k, *options["position_embeddings"], unsqueeze_dim=2)
