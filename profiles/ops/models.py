"""Hugging Face's modules as cases: its own code with plain and with fused attention, and after our ``optimize``.

Models of one layer are made from a configuration; nothing is downloaded. The module that is measured is called with
just what its model calls it with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.ops.cases import OpCase
from einops_fast.profiles.study import Task
from einops_fast.profiles.timing.measure import reason
from einops_fast.profiles.ways import Call, Inputs, Way

Function = Callable[..., Any]

# What Hugging Face's ``attn_implementation`` is, by way.
ATTENTION = {"native": "eager", "compile": "eager", "sdpa": "sdpa", "ours": None}

# What is measured of a model, by operator: what else a model does, making masks, say, it does once for all layers.
MODULES = {
    "bert_attention": "encoder.layer.0.attention.self",
    "gpt_attention": "h.0.attn",
    "bert_layer": "encoder.layer.0",
    "gpt2_block": "h.0",
}


@dataclass(frozen=True)
class ModuleWay(Way):
    """A way whose ``call`` takes the inputs, and makes a function of the hidden states and the module it is of.

    The first call makes them; the module's parameters have gradients, too.
    """

    made: list[tuple[Function, Any]] = field(default_factory=list)
    training: bool = True  # dropout is on

    def bind(self, given: Inputs) -> tuple[Call, tuple[Any, ...]]:
        if not self.made:
            self.made.append(self.call(given))
        [(function, module)] = self.made
        module.train(self.training)
        leaves = [parameter for _, parameter in sorted(module.named_parameters()) if parameter.requires_grad]
        return partial(function, *given.operands), (*given.operands, *leaves)


def model_way(name: str, task: Task) -> Way:
    """Return a way with a model of its own; all have the same parameters."""
    if name not in ATTENTION or (name == "compile" and not task.case.compiled):
        raise Unavailable(f"{name} has no modules")
    return ModuleWay(name, partial(_function_and_module, task, name), task.framework)


def model_reference(task: Task) -> Way:
    """Return Hugging Face's own code in float64, with plain attention and parameters that were rounded to the dtype."""
    make = partial(_function_and_module, task, "native", exactly=True)
    return ModuleWay("reference", make, task.framework, training=False)


def _function_and_module(task: Task, name: str, given: Inputs, *, exactly: bool = False) -> tuple[Function, Any]:
    """Return what is called with the hidden states, and whose parameters have gradients."""
    torch = task.framework.torch
    model = _model(task.case, torch, ATTENTION[name], given.operands[0].device).to(getattr(torch, task.dtype))
    if exactly:
        model.double()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.requires_grad_(False)
    if name == "ours":
        from einops_fast import nn

        nn.optimize(model)
    model.eval()
    part = model.get_submodule(MODULES[task.case.op])
    arguments, options = _called_with(part, partial(model, inputs_embeds=given.operands[0].detach()), torch)

    def call(hidden: Any) -> Any:
        found = part(hidden, *arguments, **options)
        return found[0] if isinstance(found, tuple) else found

    if name == "compile":
        return task.compiler.compiled(call, given.operands, fullgraph=False), part
    return call, part


def _called_with(part: Any, call: Callable[[], Any], torch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a module gets beside the hidden states."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = part.register_forward_pre_hook(
        lambda module, arguments, options: seen.append((arguments, options)), with_kwargs=True
    )
    with torch.no_grad():
        call()
    hook.remove()
    if not seen:
        raise Unavailable("the module isn't called any more: its layer is one function")
    [(arguments, options)] = seen
    return (arguments[1:], options) if arguments else ((), {k: v for k, v in options.items() if k != "hidden_states"})


def _model(case: OpCase, torch: Any, attention: str | None, device: Any) -> Any:
    """Return a model of one layer with random parameters, always the same."""
    try:
        transformers: Any = import_module("transformers")
        bert = transformers.BertConfig, transformers.BertModel
        gpt2 = transformers.GPT2Config, transformers.GPT2Model
    except Exception as error:  # of its own dependencies
        raise Unavailable(f"transformers can't be used: {reason(error)}") from None
    _, positions, features = case.shape
    common: dict[str, Any] = {"vocab_size": 8, "bos_token_id": 0, "eos_token_id": 0}
    if attention:
        common["attn_implementation"] = attention
    torch.manual_seed(0)
    with torch.device(device):
        if case.op.startswith("bert"):
            dropped = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), case.p)
            sizes = {"hidden_size": features, "num_attention_heads": case.heads, "intermediate_size": case.width or 8,
                     "num_hidden_layers": 1, "max_position_embeddings": positions}  # fmt: skip
            return bert[1](bert[0](**sizes, **dropped, **common), add_pooling_layer=False)
        dropped = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), case.p)
        sizes = {"n_embd": features, "n_head": case.heads, "n_inner": case.width or 8, "n_positions": positions}
        return gpt2[1](gpt2[0](n_layer=1, use_cache=False, **sizes, **dropped, **common))
