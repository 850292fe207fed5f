"""When a replaced module may do its work in the new way: looked at anew in each call."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from einops_fast.nn.injection.replacement import original_class
from einops_fast.nn.masks import may_hide_all_keys

__all__ = [
    "BERT_FAMILY",
    "LLAMA_FAMILY",
    "OTHER_VERSION",
    "activation_of",
    "collector",
    "is_plain",
    "is_plain_norm",
    "is_plain_rms_norm",
    "needs_original",
    "observed",
    "of_transformers",
]

OTHER_VERSION = "this version of transformers calls it otherwise"
"""Why a module of this name isn't replaced, if it isn't the one that is known."""

BERT_FAMILY = ("Bert", "Camembert", "Electra", "Ernie", "Roberta", "XLMRoberta")
"""How the names of transformers' classes begin whose code is BERT's."""

LLAMA_FAMILY = ("Llama", "Mistral", "Qwen2")
"""Those whose code is Llama's, but for what only other kinds of attention are told."""

_ACTIVATIONS = {
    "FastGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "ReLU": "relu",
    "ReLUSquaredActivation": "squared_relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
}


def of_transformers(kind: type) -> bool:
    """Whether a class is transformers' own."""
    return kind.__module__.partition(".")[0] == "transformers"


def observed(module: nn.Module) -> bool:
    """Whether calling a module does more than its class's ``forward``: so it has to be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def is_plain(module: Any, kind: type[nn.Module] | str) -> bool:
    """Whether its weights may be used instead of calling it: it is of this very class (a name: of transformers')."""
    if not isinstance(module, nn.Module) or observed(module):
        return False
    found = original_class(module)
    return found.__name__ == kind and of_transformers(found) if isinstance(kind, str) else found is kind


def is_plain_rms_norm(module: Any) -> bool:
    """Whether it is Llama's, with nothing about it."""
    return any(is_plain(module, f"{family}RMSNorm") for family in LLAMA_FAMILY)


def is_plain_norm(module: Any) -> bool:
    """Whether it is torch's layer norm along the last axis, with nothing about it."""
    return is_plain(module, nn.LayerNorm) and len(module.normalized_shape) == 1


def activation_of(function: Any) -> str | None:
    """The name of an activation in :data:`einops_fast.ops.activation.ACTIVATIONS`; ``None`` if it has none."""
    if not isinstance(function, nn.Module) or observed(function):
        return None
    kind = type(function)
    if kind is nn.GELU:
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    return _ACTIVATIONS.get(kind.__name__) if kind in (nn.ReLU, nn.SiLU) or of_transformers(kind) else None


def needs_original(module: Any, hidden_states: Tensor, mask: Any, options: dict[str, Any]) -> bool:
    """Whether a call of attention is for the module's own ``forward``.

    It is where weights are asked for, where keys come from elsewhere, where a mask of lowest numbers may leave a query
    no key (its gradients, and in float16 its result, depend on how that ``forward`` rounds), and where transformers is
    set to do attention in another way than ``eager`` or ``sdpa``, which has masks of its own.
    """
    config = module.config
    return bool(
        getattr(config, "_attn_implementation", None) not in ("eager", "sdpa")
        or not (mask is None or (isinstance(mask, Tensor) and mask.dim() == 4))
        or (mask is not None and _is_decided_by_rounding(module, hidden_states, mask))
        or options.get("encoder_hidden_states") is not None
        or options.get("head_mask") is not None
        or options.get("position_bias") is not None
        or options.get("output_attentions")
        or getattr(config, "output_attentions", False)
        or _weights_collected(module)
    )


def _is_decided_by_rounding(module: Any, hidden_states: Tensor, mask: Tensor) -> bool:
    """Whether rounding may decide what a query without any key gives. The query of a step of generation has one."""
    if mask.dtype == torch.bool or hidden_states.shape[1] == 1:
        return False
    differentiable = (hidden_states, mask, *module.parameters()) if torch.is_grad_enabled() else ()
    matters = mask.dtype == torch.float16 or any(each.requires_grad for each in differentiable)
    return matters and may_hide_all_keys(mask, module.layer_idx)


def _weights_collected(module: Any) -> bool:
    """Whether transformers' hooks collect weights in this call: it doesn't tell all modules that it does."""
    known = module.collector
    if not module._forward_hooks or known is None:
        return False
    if torch.compiler.is_compiling():  # which can't follow `get` of what isn't set there
        return bool(known.compiling) and _holds_weights(known.global_var)
    return _holds_weights(known.get())


def _holds_weights(collected: Any) -> bool:
    return any(name.endswith("attentions") for name in collected or ())


def collector() -> Any:
    """Where transformers says what its hooks collect; ``None`` in versions that have no such thing."""
    return getattr(sys.modules.get("transformers.utils.output_capturing"), "_active_collector", None)
