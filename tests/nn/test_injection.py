"""Fused modules in the place of those of BERT, GPT-2 and Llama in transformers."""

import ast
import copy
import doctest
import inspect
import pickle
import re
import sys
import textwrap
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from injected_models import KINDS, build, close, counted, results, tokens
from ops_problems import DEVICE
from python_process import ROOT
from torch_operands import whole

from einops_fast import EinsumError, nn
from einops_fast.nn.injection.conditions import BERT_FAMILY, LLAMA_FAMILY
from einops_fast.nn.injection.loss import causal_lm_loss
from einops_fast.nn.injection.replacement import Replacement

# How many modules are replaced in each.
COUNTS = {"bert": 6 + 7 + 2 * 4, "gpt2": 5 + 7 + 2 * 3 + 1, "llama": 5 + 2 * 2 + 1}


pytestmark = pytest.mark.usefixtures("one_thread")


def padded(left: bool = False) -> Any:
    mask = torch.ones(3, 7, dtype=torch.long, device=DEVICE)
    mask[1, slice(2) if left else slice(4, 7)] = 0
    return mask


def attends(model: Any) -> dict[str, Any]:
    return {name: each for name, each in model.named_modules() if re.search(r"\.(self|attn|self_attn)$", name)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_same_results(kind: str, way: str) -> None:
    dtype = torch.float32 if kind == "llama" else torch.float64  # eager Llama takes float64's lowest number for -inf
    model = build(kind, way, dtype)
    own = torch.zeros(3, 1, 7, 7, dtype=dtype, device=DEVICE).uniform_(-1, 1)  # numbers that aren't a mask at all
    masks = [None, torch.ones_like(padded()), padded(), padded(left=True), own]
    expected = [results(model, mask) for mask in masks]
    assert len(nn.optimize(model).replaced) == COUNTS[kind]
    with counted() as ours:
        # Of these, one may be left to the original.
        found = [results(model, mask) for mask in [*masks[:3], own]]
    assert ours.call_count == 4 * 2
    found.insert(3, results(model, masks[3]))
    for theirs, ours in zip(expected, found, strict=True):
        close(ours, theirs, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_restore(kind: str) -> None:
    model = build(kind)
    before = {name: (id(module), type(module), {**module.__dict__}) for name, module in model.named_modules()}
    state = {name: each.data_ptr() for name, each in model.state_dict().items()}
    nn.optimize(model)
    assert {name: each.data_ptr() for name, each in model.state_dict().items()} == state
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(isinstance(module, before[name][1]) for name, module in model.named_modules())
    model.load_state_dict(build(kind).state_dict())
    assert nn.restore(model) == COUNTS[kind]
    after = {name: (id(module), type(module), {**module.__dict__}) for name, module in model.named_modules()}
    assert after == before
    assert nn.restore(model) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_copies(kind: str) -> None:
    model = build(kind)
    nn.optimize(model)
    expected = results(model, padded())
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(module) for module in made.modules()] == [type(module) for module in model.modules()]
        torch.testing.assert_close(results(made, padded()), expected, rtol=0, atol=0)
        assert nn.restore(made) == COUNTS[kind]
        assert not any(isinstance(module, Replacement) for module in made.modules())


@pytest.mark.parametrize("way", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_generation(kind: str, way: str) -> None:
    model = build(kind, way, torch.float32, **({"is_decoder": True} if kind == "bert" else {}))
    prompt = {"input_ids": tokens()[:2, :4], "attention_mask": padded(left=True)[:2, :4]}
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    caches = ("dynamic", "static") if way == "sdpa" and kind != "bert" else ("dynamic",)
    expected = [model.generate(**prompt, **options, cache_implementation=cache) for cache in caches]
    nn.optimize(model)
    with counted() as ours:
        found = [model.generate(**prompt, **options, cache_implementation=cache) for cache in caches]
    assert ours.call_count >= 8 * len(caches)  # two layers, four steps with a cache
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_when_asked_for(kind: str) -> None:
    model = build(kind, "eager", torch.float32)
    expected = model(input_ids=tokens(), output_attentions=True).attentions
    nn.optimize(model)
    for _ in range(2):
        found = model(input_ids=tokens(), output_attentions=True).attentions
        assert len(found) == 2
        torch.testing.assert_close(found, expected)
        assert model(input_ids=tokens()).attentions is None
    # The hooks that transformers has put in stay, without any effect.
    with counted() as ours:
        model(input_ids=tokens())
    assert ours.call_count == 2
    model.config.output_attentions = True
    torch.testing.assert_close(model(input_ids=tokens()).attentions, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout(kind: str) -> None:
    names = {
        "bert": ("attention_probs_dropout_prob", "hidden_dropout_prob"),
        "gpt2": ("attn_pdrop", "resid_pdrop", "embd_pdrop"),
        "llama": ("attention_dropout",),
    }[kind]
    model = build(kind, "sdpa", torch.float32, **dict.fromkeys(names, 0.3)).train()
    ids = tokens()[:1].expand(1500, -1)

    def moments() -> tuple[Any, Any]:
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        return logits.mean(0), logits.std(0)

    mean, deviation = moments()
    nn.optimize(model)
    our_mean, our_deviation = moments()
    # All vary, but for the logit of padding, whose embedding is zeros.
    assert torch.equal(our_deviation > 0, deviation > 0)
    assert float((deviation > 0).float().mean()) > 0.9
    # Means of 1500 with this deviation, and deviations, by five of their own deviations.
    assert bool(((our_mean - mean).abs() <= 5 * (2 / 1500) ** 0.5 * deviation).all())
    assert bool(((our_deviation - deviation).abs() <= 0.25 * deviation).all())
    model.eval()
    found = model(input_ids=ids[:1]).logits
    nn.restore(model)
    torch.testing.assert_close(found, model(input_ids=ids[:1]).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_whole(kind: str) -> None:
    model = build(kind, "sdpa", torch.float32, num_hidden_layers=1)
    nn.optimize(model)
    arguments = {"input_ids": tokens(), "attention_mask": padded(), "labels": tokens(), "use_cache": False}
    expected = model(**arguments)
    found = whole(model, "eager")(**arguments)
    close([found.loss, found.logits], [expected.loss, expected.logits], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_loss(dtype: Any) -> None:
    theirs = import_module("transformers.loss.loss_utils").ForCausalLMLoss
    logits = torch.randn(3, 7, 23, device=DEVICE).to(dtype).requires_grad_()
    labels = tokens().masked_fill(padded() == 0, -100)
    options: Any
    for options in (
        {},
        {"num_items_in_batch": 5},
        {"num_items_in_batch": torch.tensor(5)},
        {"ignore_index": 4},
        {"shift_labels": labels.flip(1)},
    ):
        counted = labels.masked_fill(labels < 0, options.get("ignore_index", -100))
        losses = [function(logits, counted, 23, **options) for function in (causal_lm_loss, theirs)]
        found, expected = ([loss, *torch.autograd.grad(loss, logits)] for loss in losses)
        assert found[0].dtype == torch.float32
        torch.testing.assert_close(found, expected)


def test_report() -> None:
    model = build("gpt2", add_cross_attention=True)
    report = nn.optimize(model, exclude=["transformer.h.1", "*.ln_1"])
    rows = {row.name: row for row in report.rows}
    assert rows["transformer.h.0.attn"].now
    assert rows["transformer.h.0.ln_1"].reason == rows["transformer.h.1.attn.attn_dropout"].reason == "excluded"
    assert rows["transformer.h.0.crossattention"].reason == "its keys come from another sequence"
    assert rows["transformer.h.0.mlp.act"].reason == "part of what is replaced"
    assert rows["loss_function"].now == "ops.cross_entropy"
    assert {row.name for row in report.rows} == {*dict(model.named_modules()), "loss_function"}
    assert [*report.replaced, *report.kept] == sorted(report.rows, key=lambda row: not row.now)
    text = str(report)
    assert "GPT2Attention" in text
    assert "its keys come" in text
    with mock.patch.dict(sys.modules, {"rich.table": None}):
        assert re.search(r"transformer\.h\.\*\.mlp +GPT2MLP +1 +ops\.linear", str(report))
    again = nn.optimize(model, exclude=["transformer.h.1", "*.ln_1"])
    assert not again.replaced
    assert {row.reason for row in again.rows if rows[row.name].now} == {"is replaced already"}


def test_losses_in_the_report() -> None:
    def losses(model: Any, **which: Any) -> list[tuple[str, str, str, str]]:
        rows = [row for row in nn.optimize(model, **which).rows if row.name.endswith("loss_function")]
        nn.restore(model)
        return [(row.name, row.kind, row.now, row.reason) for row in rows]

    causal = ("loss_function", "ForCausalLMLoss")
    model = build("gpt2")
    assert losses(model, only="loss_function") == [(*causal, "ops.cross_entropy", "")]
    assert losses(model, exclude="*Loss") == losses(model, exclude="GPT2LMHeadModel") == [(*causal, "", "excluded")]
    assert losses(model, only="*.attn") == [(*causal, "", "not among `only`")]
    assert losses(torch.nn.Sequential(model)) == [("0.loss_function", causal[1], "ops.cross_entropy", "")]

    def own(logits: Any, labels: Any, **options: Any) -> Any:
        return logits.sum()

    model.loss_function = own
    assert losses(model) == [("loss_function", "own", "", "somebody has set it")]
    assert losses(build("bert"))[0][1:] == ("ForMaskedLMLoss", "", "it isn't that of a causal language model")


def test_only_some() -> None:
    model = build("bert")
    report = nn.optimize(model, only="bert.encoder.layer.1")
    assert {row.name[:20] for row in report.replaced} == {"bert.encoder.layer.1"}
    nn.restore(model)
    assert {row.kind for row in nn.optimize(model, only=["*Norm", "BertOutput"]).replaced} == {
        "LayerNorm",
        "BertOutput",
    }
    nn.restore(model)
    assert not nn.optimize(model, only="LayerNorm", exclude="*").replaced
    rows = {row.name: row for row in nn.optimize(build("gpt2"), exclude="GPT2Attention").rows}
    assert rows["transformer.h.0"].reason == "its attention isn't replaced"
    for arguments in ({"only": "Layernorm"}, {"exclude": ["BertOutput", "encoder.layer.*"]}):
        with pytest.raises(EinsumError, match="fits no module"):
            nn.optimize(model, **arguments)
    with pytest.raises(EinsumError, match=r"only takes names .* not <class"):
        nn.optimize(model, only=torch.nn.LayerNorm)
    assert not any(isinstance(module, Replacement) for module in model.modules())


def test_cross_attention() -> None:
    for kind in ("bert", "gpt2"):
        model = build(kind, add_cross_attention=True, **({"is_decoder": True} if kind == "bert" else {}))
        seen = torch.randn(3, 5, 16, dtype=torch.float64, device=DEVICE)
        expected = results(model, padded(), encoder_hidden_states=seen)
        nn.optimize(model)
        close(results(model, padded(), encoder_hidden_states=seen), expected)


def test_other_ways_of_attention() -> None:
    model = build("llama", "sdpa", torch.float32)
    nn.optimize(model)
    expected = model(input_ids=tokens(), attention_mask=padded()).logits
    calls = []

    def recorded(module: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(module)
        return transformers.AttentionInterface()["sdpa"](module, *arguments, **options)

    transformers.AttentionInterface.register("recorded", recorded)
    transformers.AttentionMaskInterface.register("recorded", transformers.AttentionMaskInterface()["sdpa"])
    model.set_attn_implementation("recorded")
    found = model(input_ids=tokens(), attention_mask=padded()).logits
    assert len(calls) == 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_modules_with_their_weights(way: str) -> None:
    x, mask = torch.randn(3, 7, 16, dtype=torch.float64, device=DEVICE), padded()[:, None, None].bool()
    for kind, made in (("bert", nn.BertSelfAttention), ("gpt2", nn.GPTAttention)):
        model = build(kind, way)
        theirs = next(iter(attends(model).values()))
        ours = made.from_config(model.config, layer_idx=0).double().to(DEVICE).eval()
        ours.load_state_dict(theirs.state_dict())
        assert [*ours.state_dict()] == [*theirs.state_dict()]
        shown = mask if way == "sdpa" else torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        results = []
        for module in (ours, theirs):
            found = module(x, attention_mask=shown)[0]
            results.append([found, *torch.autograd.grad(found.sum(), [*module.parameters()])])
        close(*results)


def test_classes_of_the_family() -> None:
    """Those that repeat the code of BERT and Llama still do."""

    def code(kind: str, part: str, model: str) -> list[str]:
        found = import_module(f"transformers.models.{model}.modeling_{model}")
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(found, kind + part).forward))).body
        assert isinstance(function, ast.FunctionDef)
        for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
            call.keywords = [each for each in call.keywords if each.arg != "sliding_window"]
        return [*(each.arg for each in function.args.args), *map(ast.dump, function.body)]

    files = {"Camembert": "camembert", "Electra": "electra", "Ernie": "ernie", "XLMRoberta": "xlm_roberta"}
    for family, parts in (
        (BERT_FAMILY, ("Intermediate", "Output", "SelfAttention", "SelfOutput")),
        (LLAMA_FAMILY, ("Attention", "MLP", "RMSNorm")),
    ):
        first = "Bert" if family is BERT_FAMILY else "Llama"
        for kind in family:
            for part in parts:
                same = code(kind, part, files.get(kind, kind.lower())) == code(first, part, first.lower())
                assert same, kind + part


@pytest.mark.parametrize("name", ["tutorial/models.md", "reference/nn.md"])
def test_document(name: str) -> None:
    done = doctest.testfile(str(ROOT / "docs" / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted > 5
    assert done.failed == 0
