"""Models of which programs have replaced functions or wrapped modules, before or after `nn.optimize`."""

import functools
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0")
pytest.importorskip("triton")
from injected_models import KINDS, build, close, counted, other, results, results_of_logits, tokens

from einops_fast import EinsumError, nn, patched
from einops_fast.nn.injection.replacement import Replacement

BERT, GPT2, LLAMA = (import_module(f"transformers.models.{kind}.modeling_{kind}") for kind in KINDS)
ACTIVATIONS = import_module("transformers.activations")
ATTENTIONS = import_module("transformers.modeling_utils").AttentionInterface._global_mapping
SDPA = import_module("transformers.integrations.sdpa_attention")
LOSSES = import_module("transformers.loss.loss_utils")
FUNCTIONAL = torch.nn.functional

# What programs replace: the model that runs it, its attention, where it is, and its name there.
REPLACED = [
    ("llama", "sdpa", LLAMA.LlamaMLP, "forward"),
    ("llama", "sdpa", LLAMA.LlamaRMSNorm, "forward"),
    ("llama", "sdpa", LLAMA.LlamaAttention, "forward"),
    ("llama", "sdpa", LLAMA, "apply_rotary_pos_emb"),
    ("llama", "sdpa", LLAMA, "rotate_half"),
    ("llama", "eager", LLAMA, "eager_attention_forward"),
    ("llama", "eager", LLAMA, "repeat_kv"),
    ("llama", "sdpa", SDPA, "sdpa_attention_forward"),
    ("llama", "sdpa", ATTENTIONS, "sdpa"),
    ("llama", "eager", ATTENTIONS, "eager"),
    ("llama", "sdpa", LOSSES.LOSS_MAPPING, "ForCausalLM"),
    ("llama", "sdpa", LOSSES, "fixed_cross_entropy"),
    ("llama", "sdpa", ACTIVATIONS.SiLUActivation, "forward"),
    ("gpt2", "sdpa", GPT2.GPT2Attention, "forward"),
    ("gpt2", "sdpa", GPT2.GPT2MLP, "forward"),
    ("gpt2", "sdpa", GPT2.GPT2Block, "forward"),
    ("gpt2", "sdpa", GPT2.Conv1D, "forward"),
    ("gpt2", "eager", GPT2, "eager_attention_forward"),
    ("gpt2", "sdpa", ACTIVATIONS.NewGELUActivation, "forward"),
    ("bert", "sdpa", BERT.BertSelfAttention, "forward"),
    ("bert", "sdpa", BERT.BertSelfOutput, "forward"),
    ("bert", "sdpa", BERT.BertIntermediate, "forward"),
    ("bert", "sdpa", torch.nn.Linear, "forward"),
    ("bert", "sdpa", torch.nn.LayerNorm, "forward"),
    ("bert", "sdpa", torch.nn.Dropout, "forward"),
    *[("bert", "sdpa", getattr(torch.nn, kind), "__call__") for kind in ("Module", "Linear", "LayerNorm", "Dropout")],
    ("bert", "sdpa", FUNCTIONAL, "linear"),
    ("bert", "sdpa", FUNCTIONAL, "layer_norm"),
    ("bert", "sdpa", FUNCTIONAL, "scaled_dot_product_attention"),
]


def replacing(holder: Any, name: str, wrapped: bool = True) -> Any:
    """The block in which something in a module, a class or a dictionary is replaced."""
    if isinstance(holder, dict):
        own = holder.get(name, LLAMA.eager_attention_forward)
        return mock.patch.dict(holder, {name: other(own, wrapped)})
    return mock.patch.object(holder, name, other(getattr(holder, name), wrapped))


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("kind", "way", "holder", "name"), REPLACED)
def test_functions_that_programs_replace(
    kind: str, way: str, holder: Any, name: str, first: bool, wrapped: bool
) -> None:
    model = build(kind, way, torch.float32)
    native = results(model)
    if not first:
        nn.optimize(model)
    with replacing(holder, name, wrapped):
        if first:
            report = nn.optimize(model)
            said = any("own" in row.reason or "came with" in row.reason for row in report.kept)
            assert said == (name != "__call__")  # calls are looked at as they come
        found = results(model)
        nn.restore(model)
        expected = results(model)
    close(found, expected, torch.float32)
    # Models take `sdpa_attention_forward` from a table, where it still is.
    assert torch.equal(native[1], expected[1]) == (name == "sdpa_attention_forward")
    assert nn.optimize(model).replaced
    close(results(model), native, torch.float32)


def test_functions_replaced_after_compilation() -> None:
    model = build("llama", "sdpa", torch.float32, num_hidden_layers=1)
    nn.optimize(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    native = compiled(input_ids=tokens()).logits
    with replacing(LLAMA, "apply_rotary_pos_emb"):
        close(compiled(input_ids=tokens()).logits, model(input_ids=tokens()).logits, torch.float32)
    with replacing(LLAMA.LlamaMLP, "forward"):
        found = compiled(input_ids=tokens()).logits
        close(found, model(input_ids=tokens()).logits, torch.float32)
        assert not torch.equal(found, native)


def test_own_patch_replaces_nothing() -> None:
    model = build("llama", "sdpa", torch.float32)
    for first in (True, False):
        if not first:
            nn.optimize(model)
        with patched("torch.sdpa"):
            replaced = nn.optimize(model).replaced if first else ()
            with counted() as ours:
                model(input_ids=tokens())
        assert ours.call_count == 2
        assert bool(replaced) == first
        nn.restore(model)


def test_subclasses_of_a_programs_own() -> None:
    class LlamaMLP(LLAMA.LlamaMLP):
        def forward(self, x: Any) -> Any:
            return x

    with mock.patch.object(LLAMA, "LlamaMLP", LlamaMLP):
        model = build("llama", "sdpa", torch.float32)
    expected = results_of_logits(model)
    reasons = {row.kind: row.reason for row in nn.optimize(model).kept}
    assert reasons["LlamaMLP"] == "not transformers' class of this name"
    close(results_of_logits(model), expected, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_classes(kind: str) -> None:
    model = build(kind)
    named = {name: type(module) for name, module in model.named_modules()}
    shown = repr(model)
    report = nn.optimize(model)
    for name, module in model.named_modules():
        for which in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(type(module), which) == getattr(named[name], which)
        assert isinstance(module, named[name])
    assert all(
        f"now={row.now!r}" in repr(model.get_submodule(row.name))
        for row in report.replaced
        if row.name != "loss_function"
    )
    assert len(pickle.loads(pickle.dumps(model)).state_dict()) == len(model.state_dict())
    nn.restore(model)
    assert repr(model) == shown


# How a module is wrapped: each takes it and returns how to call what was wrapped.
def hooked(module: Any) -> None:
    """As accelerate does it."""
    module._old_forward = module.forward
    module.forward = functools.update_wrapper(
        functools.partial(lambda module, *args, **kwargs: module._old_forward(*args, **kwargs), module),
        module._old_forward,
    )


def decorated(module: Any) -> None:
    module.forward = functools.wraps(module.forward)(lambda *a, own=module.forward, **k: own(*a, **k))


def class_bound(module: Any) -> None:
    module.forward = functools.partial(type(module).forward, module)


def compiled_in_place(module: Any) -> None:
    module.compile(backend="eager")


def compiled_forward(module: Any) -> None:
    module.forward = torch.compile(module.forward, backend="eager")


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        *((kind, wrap) for kind in KINDS for wrap in (hooked, decorated, class_bound)),
        ("llama", compiled_in_place),  # to compile takes long
        ("gpt2", compiled_forward),
    ],
)
def test_restored_behind_wrappers(kind: str, wrap: Callable[[Any], None]) -> None:
    few = {"num_hidden_layers": 1} if "compiled" in wrap.__name__ else {}
    model = build(kind, "eager", torch.float32, **few)
    expected = model(input_ids=tokens(), output_attentions=True)
    count = len(nn.optimize(model).replaced)
    torch.compiler.reset()
    for module in model.modules():
        if isinstance(module, Replacement):
            wrap(module)
    close(results_of_logits(model), expected.logits, torch.float32)
    assert nn.restore(model) == count
    with mock.patch("einops_fast.ops.self_attention.attention", side_effect=AssertionError):
        close(results_of_logits(model), expected.logits, torch.float32)
        found = model(input_ids=tokens(), output_attentions=True)
    close(found.attentions, expected.attentions, torch.float32)


def test_restored_behind_modules() -> None:
    """Adapters and compiled modules stand in the place of a replaced one, which is inside."""

    class Adapted(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.base(*args, **kwargs)

    model = build("llama", "sdpa", torch.float32)
    expected = results_of_logits(model)
    count = len(nn.optimize(model).replaced)
    layer = model.model.layers[0]
    layer.mlp, layer.input_layernorm = Adapted(layer.mlp), torch.compile(layer.input_layernorm, backend="eager")
    layer.post_attention_layernorm = Adapted(layer.post_attention_layernorm)
    layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    close(results_of_logits(model), expected, torch.float32)
    assert nn.restore(model) == count
    assert not any(isinstance(module, Replacement) for module in model.modules())
    close(results_of_logits(model), expected, torch.float32)


def test_restore_refuses_as_a_whole() -> None:
    model = build("llama", "sdpa", torch.float32)
    nn.optimize(model)
    classes = [type(module) for module in model.modules()]
    norm = model.model.norm
    own = type(norm)
    norm.__class__ = type("Sharded", (own,), {})
    with pytest.raises(EinsumError, match=r"model\.norm got another class since"):
        nn.restore(model)
    norm.__class__ = own
    with (
        mock.patch.object(own, "forward", other(own.forward)),
        pytest.raises(EinsumError, match="another forward on its class"),
    ):
        nn.restore(model)
    assert [type(module) for module in model.modules()] == classes
    assert nn.restore(model)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_traced(kind: str) -> None:
    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build(kind, "eager", torch.float32, num_hidden_layers=1)

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, use_cache=False).logits

    model = Logits().eval().requires_grad_(False)
    ids = tokens()
    expected = model(ids)
    nn.optimize(model)
    traced = torch.jit.trace(model, (ids,), check_trace=False)
    close(traced(ids.flip(0)), expected.flip(0), torch.float32)


def test_traced_symbolically() -> None:
    """torch's own modules stay leaves, others are gone through, and none of ours is called with a proxy."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = build("bert", "sdpa", torch.float32).bert.encoder.layer[0]
            self.norm, self.act = torch.nn.LayerNorm(16), torch.nn.Softmax(-1)
            self.up, self.down = layer.intermediate, layer.output
            self.gate = build("llama", "sdpa", torch.float32).model.layers[0].mlp
            self.norms = build("llama", "sdpa", torch.float32).model.norm
            self.mlp = build("gpt2", "sdpa", torch.float32).transformer.h[0].mlp

        def forward(self, x: Any) -> Any:
            x = self.down(self.up(self.norm(x)), self.act(x))
            return self.mlp(self.norms(self.gate(x)))

    model, x = Block().eval(), torch.randn(2, 3, 16)
    native = torch.fx.symbolic_trace(model)
    assert len(nn.optimize(model).replaced) >= 8
    traced = torch.fx.symbolic_trace(model)
    assert [(node.op, node.target) for node in traced.graph.nodes] == [
        (node.op, node.target) for node in native.graph.nodes
    ]
    torch.testing.assert_close(traced(x), model(x))
    torch.testing.assert_close(torch.fx.experimental.proxy_tensor.make_fx(model)(x)(x), model(x))
