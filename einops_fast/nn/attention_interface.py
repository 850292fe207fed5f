"""`register_attention`: our attention by its name in transformers, ``attn_implementation="einops_fast"``."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from einops_fast.errors import EinsumError
from einops_fast.nn.heads import refuse, what_is_seen
from einops_fast.ops.self_attention import attention_or_zeros

_NAME = "einops_fast"
_PATTERN = "b h i d, b g j d, b g j e -> b i h e"


def register_attention() -> None:
    """Make our attention known to transformers (4.57 or newer) by name, ``attn_implementation="einops_fast"``.

    Models that call transformers' ``AttentionInterface`` then attend by :func:`einops_fast.attention`, with the masks,
    caches and gradients of ``sdpa`` attention, and also with soft caps (Gemma 2), sinks (gpt-oss) and position biases
    (T5). Modules stay as they are; :func:`einops_fast.nn.optimize` replaces those that it knows.

    Raises:
        ImportError: transformers isn't installed.
        EinsumError: from a call that asks for the weights, ``output_attentions=True``, or of a model that has attention
            of its own, as BLOOM and RemBERT have.
        KeyError: transformers', with our name, where a model is made that takes its attention from a list of its own:
            Bark, Data2Vec, Falcon, GIT, GPT-J, GPT-Neo, SAM, SuperGlue. Leave out ``attn_implementation`` there;
            :func:`einops_fast.nn.optimize` replaces the attention of BLOOM, GPT-J and GPT-Neo.

    Example:
        >>> from transformers import AutoModelForCausalLM, LlamaConfig
        >>> from einops_fast import nn
        >>> nn.register_attention()
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="einops_fast")
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _mask)


def _mask(*sizes: Any, **options: Any) -> Tensor | None:
    """Return the mask that ``sdpa`` attention gets: booleans, or none where causality says it all."""
    from transformers.masking_utils import sdpa_mask

    config: Any = options.get("config")
    if not _says_causality(config.__class__):
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    found: Tensor | None = sdpa_mask(*sizes, **options)
    return found


def _says_causality(config: type) -> bool:
    """Whether modules of models of this configuration say right what no mask means.

    They do where transformers lets them use ``sdpa``, and in decoders without cross attention that it doesn't.

    Raises:
        EinsumError: the models attend by themselves, and would add booleans as numbers.
    """
    if config not in _known:
        beside = f"{config.__module__.rpartition('.')[0]}.modeling_"
        homes = {name: vars(module) for name, module in sys.modules.items() if name.startswith(beside)}
        _known[config] = all(_module_says(config, name, {**names}) for name, names in homes.items())
    return _known[config]


def _module_says(config: type, name: str, names: dict[str, Any]) -> bool:
    classes = [each for each in names.values() if isinstance(each, type) and each.__module__ == name]
    models = [each for each in classes if getattr(each, "config_class", None) is config]
    attends = any("Attention" in each.__name__ and each.__bases__ == (nn.Module,) for each in classes)
    if models and attends and "ALL_ATTENTION_FUNCTIONS" not in names:
        raise EinsumError(
            f"{name} has attention of its own, which no attn_implementation replaces: leave out "
            f"attn_implementation={_NAME!r} for a model with a {config.__name__}"
        )
    supported = all(getattr(each, "_supports_sdpa", False) for each in models)
    return supported or "create_bidirectional_mask" not in names


_known: dict[type, bool] = {}
_says_causality._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention of (batch, heads, length, features) as (batch, length, heads, features)."""
    refuse({"output_attentions": options.get("output_attentions")})
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is not None and attention_mask.dim() < 4:
        attention_mask = attention_mask[(None,) * (4 - attention_mask.dim())]
    key, value, seen = what_is_seen(key, value, 2, query.shape[2], attention_mask, causal, position_bias)
    found: Tensor = attention_or_zeros(
        _PATTERN, query, key, value, float(dropout) if module.training else 0.0, sequence=("i", "j"),
        scale=scaling, softcap=float(softcap or 0.0), sinks=None if s_aux is None else ("h", s_aux), **seen,
    )  # fmt: skip
    return found, None
