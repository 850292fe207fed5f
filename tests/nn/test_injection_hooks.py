"""Hooks, parametrizations and forwards of a program's own on parts that a replaced module looks past."""

import copy
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)

pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("triton")
from injected_models import KINDS, build, close, counted, other, results_of_logits, tokens, transformers

from einops_fast import nn

PRUNE = import_module("torch.nn.utils.prune")

# Parts that a replaced module looks past, by the model.
PARTS = [
    ("bert", "bert.encoder.layer.0.intermediate.dense"),
    ("bert", "bert.encoder.layer.0.intermediate.intermediate_act_fn"),
    ("bert", "bert.encoder.layer.0.output.LayerNorm"),
    ("bert", "bert.encoder.layer.0.output.dropout"),
    ("gpt2", "transformer.h.0.attn"),
    ("gpt2", "transformer.h.0.attn.resid_dropout"),
    ("gpt2", "transformer.h.0.ln_2"),
    ("gpt2", "transformer.h.0.mlp.c_fc"),
    ("gpt2", "transformer.h.0.mlp.act"),
    ("llama", "model.layers.0.mlp.gate_proj"),
    ("llama", "model.layers.0.mlp.act_fn"),
]


class Doubled(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return 2 * weight


def of_another_class(part: Any) -> None:
    """As adapters do it."""
    part.__class__ = type("Adapted", (type(part),), {"forward": other(type(part).forward)})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "forward hook": lambda part: part.register_forward_hook(other(lambda module, args, found: found)),
    "pre-hook": lambda part: part.register_forward_pre_hook(lambda module, args: (1.25 * args[0], *args[1:])),
    "backward hook": lambda part: part.register_full_backward_hook(lambda module, into, out: (2 * into[0], *into[1:])),
    "backward pre-hook": lambda part: part.register_full_backward_pre_hook(lambda module, out: (2 * out[0], *out[1:])),
    "forward": lambda part: setattr(part, "forward", other(part.forward)),
    "another class": of_another_class,
    "parametrized": lambda part: torch.nn.utils.parametrize.register_parametrization(part, "weight", Doubled()),
    "weight norm": lambda part: torch.nn.utils.weight_norm(part),
    "pruned": lambda part: PRUNE.l1_unstructured(part, "weight", 0.5),
}


@pytest.mark.parametrize(("change", "first"), [*[(each, False) for each in CHANGES], ("forward hook", True)])
@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_parts_that_are_looked_past(kind: str, name: str, change: str, first: bool) -> None:
    found, expected = build(kind, "sdpa", torch.float32), build(kind, "sdpa", torch.float32)
    part = expected.get_submodule(name)
    if change in ("parametrized", "weight norm", "pruned") and not hasattr(part, "weight"):
        pytest.skip("has no weight")
    if name.endswith(".attn") and "pre-hook" in change:
        pytest.skip("its input comes by name")
    if not first:
        nn.optimize(found)
    for model in (found, expected):
        CHANGES[change](model.get_submodule(name))
    if first:
        nn.optimize(found)
    ours = outcome(found)
    close(ours, outcome(expected), torch.float32)


def outcome(model: Any) -> list[Any]:
    found = model(input_ids=tokens(), labels=tokens(), use_cache=False)
    grads = torch.autograd.grad(found.loss, [each for each in model.parameters() if each.is_leaf])
    return [found.logits, *grads]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_all_modules(kind: str, first: bool) -> None:
    def calls(model: Any) -> list[tuple[str, Any]]:
        names = {module: name for name, module in model.named_modules()}
        seen: list[tuple[str, Any]] = []
        handles = [
            register_module_forward_pre_hook(lambda module, args: seen.append(("before", names.get(module)))),
            register_module_forward_hook(lambda module, args, out: seen.append(("after", names.get(module)))),
            register_module_full_backward_hook(lambda module, into, out: seen.append(("back", names.get(module)))),
        ]
        try:
            if first:
                nn.optimize(model)
            model(input_ids=tokens(), labels=tokens()).loss.backward()
        finally:
            for handle in handles:
                handle.remove()
        return seen

    found, expected = build(kind), build(kind)
    with mock.patch.object(nn, "optimize"):
        wanted = calls(expected)
    if not first:
        nn.optimize(found)
    assert calls(found) == wanted
    with counted() as ours:  # afterwards they are fused again
        results_of_logits(found)
    assert ours.call_count == 2


COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda model: model,
    "copied": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
}

AROUND = (".layer.0", "layer.0.attention", "h.0", "layers.0")
"""Layers, and ``BertAttention`` around ``BertSelfAttention``."""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("where", "made"), [("everywhere", "itself"), ("attention", "itself"), *[("around", name) for name in COPIES]]
)
@pytest.mark.parametrize("kind", [*KINDS, "vit"])
def test_hooks_see_weights(kind: str, where: str, made: str, first: bool) -> None:
    if kind == "vit":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4)).eval()
        model.config._attn_implementation = "eager"
        inputs = {"pixel_values": torch.randn(1, 3, 8, 8)}
    else:
        model, inputs = build(kind, "eager"), {"input_ids": tokens()}

    def seen(model: Any) -> list[Any]:
        found: list[Any] = []

        def hook(module: Any, args: Any, out: Any) -> None:
            if where == "around" or (type(module).__name__.endswith("Attention") and isinstance(out, tuple)):
                found.append(out)

        if where == "everywhere":
            handles = [register_module_forward_hook(hook)]
        else:
            ends = AROUND if where == "around" else ("attention", "self", "attn")
            hooked = [module for name, module in model.named_modules() if name.endswith(ends)]
            handles = [module.register_forward_hook(hook) for module in hooked]
        if first:
            nn.optimize(model)
        with torch.no_grad():
            model(**inputs)
        for handle in handles:
            handle.remove()
        return found

    with mock.patch.object(nn, "optimize"):
        wanted = seen(model)
    assert wanted
    if not first:
        nn.optimize(model)
    model = COPIES[made](model)
    close(seen(model), wanted)
    if kind != "vit":
        with counted() as ours:  # afterwards they are fused again
            results_of_logits(model)
        assert ours.call_count == 2
    nn.restore(model)
    assert not any("hooks_around" in vars(module) for module in model.modules())
