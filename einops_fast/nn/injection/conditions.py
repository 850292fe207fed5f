"""When a replaced module may do its work in the new way: looked at anew in each call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from einops_fast.attention.torch_state import hides_values
from einops_fast.backends.torch.types import PLAIN, may_read_values
from einops_fast.nn.injection.native_code import foreign_code, unchanged
from einops_fast.nn.injection.replacement import Replacement, original_class

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


# Of all modules: torch fills these, and never replaces them.
_GLOBAL_HOOKS = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)

# By a mask on a GPU: its version, the layers that got the answer, and the answer.
_answers: Any = WeakIdKeyDictionary()


def called_otherwise(module: nn.Module, fused: Callable[..., Any]) -> str | None:
    """Why a module can't be replaced whose ``forward`` has other arguments than ``fused``, more options aside."""
    names, wanted = ([*signature(each).parameters] for each in (type(module).forward, fused))
    return None if names[: len(wanted) - 1] == wanted[:-1] else OTHER_VERSION


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
        or any(_GLOBAL_HOOKS)
        or (not torch.compiler.is_compiling() and type(module).__call__ is not nn.Module._wrapped_call_impl)
    )


def is_plain(module: Any, kind: type[nn.Module] | str) -> bool:
    """Whether its weights may be used instead of calling it: it is of this very class (a name: of transformers')."""
    return _is_of(module, kind) and not observed(module) and unchanged(original_class(module))


def _is_of(module: Any, kind: type[nn.Module] | str) -> bool:
    if not isinstance(module, nn.Module):
        return False
    found = original_class(module)
    return found.__name__ == kind and of_transformers(found) if isinstance(kind, str) else found is kind


def unlike(module: nn.Module, part: str, kind: type[nn.Module] | str) -> str | None:
    """Why the weights of a part can't be used instead of calling it, hooks aside: they may come and go."""
    found: Any = getattr(module, part, None)
    if not _is_of(found, kind):
        return f"its {part} is of type {type(found).__name__}"
    return foreign_code(original_class(found))


def is_plain_norm(module: Any) -> bool:
    """Whether it is torch's layer norm along the last axis, with nothing about it."""
    return is_plain(module, nn.LayerNorm) and len(module.normalized_shape) == 1


def activation_name(function: Any) -> str | None:
    """The name of an activation in :data:`einops_fast.ops.checks.ACTIVATIONS`; ``None`` if it has none."""
    kind = type(function)
    if not isinstance(function, nn.Module) or not unchanged(kind):
        return None
    if kind is nn.GELU:
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    if not (kind in (nn.ReLU, nn.SiLU) or of_transformers(kind)):
        return None
    # Some activations of transformers keep the function that they call: torch's, or one of their own.
    act = function.__dict__.get("act")
    act = getattr(act, "func", getattr(act, "__func__", act))
    if act is not None and act is not torch._C._nn.gelu and act not in vars(kind).values():
        return None
    return _ACTIVATIONS.get(kind.__name__)


def activation_of(function: Any) -> str | None:
    """The same, but ``None`` also where the activation has to be called."""
    return None if not isinstance(function, nn.Module) or observed(function) else activation_name(function)


def needs_original(module: Any, hidden_states: Tensor, mask: Any, options: dict[str, Any]) -> bool:
    """Whether a call of attention is for the module's own ``forward``.

    It is where weights are asked for, or hooks see them, where keys come from elsewhere, where a mask of lowest numbers
    may leave a query no key (its gradients, or float16 results, depend on how that ``forward`` rounds), and where
    attention is done by another function than transformers' own ``eager`` or ``sdpa``, which may have its own masks.
    """
    config = getattr(module, "config", None)
    return bool(
        attends_otherwise(module)
        or not (mask is None or (isinstance(mask, Tensor) and mask.dim() == 4))
        or (mask is not None and _is_decided_by_rounding(module, hidden_states, mask))
        or options.get("encoder_hidden_states") is not None
        or options.get("head_mask") is not None
        or options.get("position_bias") is not None
        or options.get("output_attentions")
        or getattr(config, "output_attentions", False)
        or _weights_collected(module)
        or (getattr(config, "_attn_implementation", "eager") == "eager" and _weights_hooked(module))
    )


def attends_otherwise(module: Any) -> bool:
    """Whether an attention module of transformers calls another function than its ``eager`` or ``sdpa`` attention."""
    kind = module.original if isinstance(module, Replacement) else type(module)  # also of classes derived since
    registered = getattr(sys.modules[kind.__module__], "ALL_ATTENTION_FUNCTIONS", None)
    if registered is None:  # it calls none
        return False
    chosen = getattr(module.config, "_attn_implementation", None)
    if chosen == "eager":
        return "eager" in registered
    known = sys.modules["transformers.integrations.sdpa_attention"].sdpa_attention_forward
    return chosen != "sdpa" or registered["sdpa"] is not known or not unchanged(known)


def _weights_hooked(module: Any) -> bool:
    """Whether hooks, other than transformers' own, are called with what ``eager`` attention returns."""
    return bool(_GLOBAL_HOOKS[0]) or any(
        getattr(hook, "__module__", None) != "transformers.utils.output_capturing"
        for hooks in (module._forward_hooks, *module.hooks_around)
        for hook in hooks.values()
    )


def _is_decided_by_rounding(module: Any, hidden_states: Tensor, mask: Tensor) -> bool:
    """Whether rounding may decide what a query without any key gives. The query of a step of generation has one."""
    if mask.dtype == torch.bool or hidden_states.shape[1] == 1:
        return False
    differentiable = (hidden_states, mask, *module.parameters()) if torch.is_grad_enabled() else ()
    matters = mask.dtype == torch.float16 or any(each.requires_grad for each in differentiable)
    return matters and _may_hide_all_keys(mask, module.layer_idx)


def _may_hide_all_keys(mask: Tensor, layer: int | None) -> bool:
    """Return whether a mask of numbers may give some query the lowest number for every key.

    Rounding makes the scores of such a query one number, and decides its gradients. In a traced graph, where values
    can't be read, every mask of numbers may do so. On a GPU, to read waits for it: all layers of a model that get the
    same mask wait once, in each forward.
    """
    if may_read_values(mask):
        return _hides_all_keys(mask)
    if type(mask) not in PLAIN or not mask.is_cuda or hides_values(mask):
        return True
    if layer is None or mask.is_inference():
        return _hides_all_keys(mask)
    version, layers, answer = _answers.get(mask, (None, set(), True))
    if version != mask._version or layer in layers:  # another forward, before which the mask may have changed
        layers, answer = set(), _hides_all_keys(mask)
    layers.add(layer)
    _answers[mask] = mask._version, layers, answer
    return bool(answer)


def _hides_all_keys(mask: Tensor) -> bool:
    return bool((mask.detach() <= torch.finfo(mask.dtype).min).all(-1).any())


def _weights_collected(module: Any) -> bool:
    """Whether transformers' hooks collect weights in this call: it doesn't tell all modules that it does."""
    known = module.collector
    if known is None or not any((module._forward_hooks, *module.hooks_around)):
        return False
    if torch.compiler.is_compiling():  # which can't follow `get` of what isn't set there
        return bool(known.compiling) and _holds_weights(known.global_var)
    return _holds_weights(known.get())


def _holds_weights(collected: Any) -> bool:
    return any(name.endswith("attentions") for name in collected or ())


def collector() -> Any:
    """Where transformers says what its hooks collect; ``None`` in versions that have no such thing."""
    return getattr(sys.modules.get("transformers.utils.output_capturing"), "_active_collector", None)
