"""Attention of GPT-J, GPT-Neo, BLOOM and T5 in transformers, replaced: results, gradients, caches and weights."""

import copy
import inspect
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
import torch
from injected_models import counted, other, transformers

from einops_fast import nn

ENDS = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPTJ": ("ForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "attn_pdrop": 0.0}),
    "GPTNeo": (
        "ForCausalLM",
        {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 3}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 32},
    ),
    "Bloom": ("ForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "T5": ("ForConditionalGeneration", T5),
}
EVERY = pytest.mark.parametrize("family", FAMILIES)

# Attention modules that are replaced: of T5, two of the encoder and two of the decoder.
LAYERS = {family: 4 if family == "T5" else 2 for family in FAMILIES}


pytestmark = pytest.mark.usefixtures("one_thread")


def build(family: str, dtype: Any = torch.float32, **more: Any) -> Any:
    head, sizes = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**ENDS, **copy.deepcopy(sizes) | more)
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}{head}")._from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(1)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made.to(dtype)


def both(family: str, **more: Any) -> tuple[Any, Any]:
    found = build(family, **more)
    report = nn.optimize(found)
    assert sum(row.kind.endswith("Attention") for row in report.replaced) == LAYERS[family]
    return build(family, **more), found


def tokens() -> Any:
    return torch.randint(3, 23, (3, 9), generator=torch.Generator().manual_seed(2))


def padding(left: bool) -> Any:
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[0, slice(3) if left else slice(6, None)] = 0
    return mask


def own_mask() -> Any:
    """Numbers to be added, the lowest for later keys."""
    numbers = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(3))
    return numbers + torch.full((9, 9), torch.finfo(torch.float32).min).triu(1)


MASKS = {"none": None, "right": padding(False), "left": padding(True), "own": own_mask()}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@EVERY
def test_logits_and_gradients(family: str, mask: Any) -> None:
    if mask is not None and mask.dim() == 4 and not family.startswith("GPT"):
        pytest.skip("it takes masks of two axes only")
    expected, found = both(family)
    results = []
    with counted() as calls:
        for model in (expected, found):
            made = model(input_ids=tokens(), attention_mask=mask, labels=tokens())
            made.loss.backward()
            results.append([made.logits, *(each.grad for each in model.parameters() if each.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    # Queries without any key, of padding on the left or beyond a window, are left to the original.
    kept = {"left": LAYERS[family] if family != "T5" else 0, "right": int(family == "GPTNeo")}
    way = next(name for name, each in MASKS.items() if each is mask)
    assert calls.call_count == LAYERS[family] - kept.get(way, 0)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@EVERY
def test_generated_tokens(family: str, cache: str) -> None:
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "disable_compile": True}
    options |= {"input_ids": tokens(), "attention_mask": padding(True), "cache_implementation": cache}
    expected, found = both(family)
    with counted() as calls:
        made = found.generate(**options)
    assert made.tolist() == expected.generate(**options).tolist()
    assert calls.call_count >= 2 * 6


@pytest.mark.parametrize("beams", [1, 2])
@EVERY
def test_a_prompt_in_parts(family: str, beams: int) -> None:
    """Several queries that face the last keys of a cache."""
    expected, found = both(family)
    options = {"max_new_tokens": 4, "do_sample": False, "num_beams": beams, "prefill_chunk_size": 4}
    if family == "T5":
        del options["prefill_chunk_size"]
    options["input_ids"] = tokens()
    assert found.generate(**options).tolist() == expected.generate(**options).tolist()


@EVERY
def test_weights_and_hooks_see_what_they_saw(family: str) -> None:
    expected, found = both(family)
    labels = {"labels": tokens()} if family == "T5" else {}
    name = "encoder_attentions" if family == "T5" else "attentions"
    for _ in range(2):
        weights = [model(tokens(), output_attentions=True, **labels)[name] for model in (expected, found)]
        assert len(weights[1]) == 2
        torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-5)
    seen: list[Any] = []
    for model in (expected, found):
        module = next(each for each in model.modules() if type(each).__name__.endswith("Attention"))
        module.register_forward_hook(lambda module, inputs, made: seen.append(made[-1]))
        model(tokens(), **labels)
    torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)


@EVERY
def test_one_graph(family: str) -> None:
    expected, found = both(family)
    options = {"input_ids": tokens(), "labels": tokens(), "use_cache": False}
    with torch.no_grad():
        made = torch.compile(found, backend="eager", fullgraph=True)(**options)
        torch.testing.assert_close(made.logits, expected(**options).logits, rtol=1e-5, atol=1e-5)


@EVERY
def test_weights_are_dropped_in_training(family: str) -> None:
    names = {"GPTJ": "attn_pdrop", "GPTNeo": "attention_dropout", "Bloom": "attention_dropout"}
    rest = {"GPTJ": ("embd_pdrop", "resid_pdrop"), "GPTNeo": ("embed_dropout", "resid_dropout")}
    if family == "T5":
        pytest.skip("one probability is for all of it")
    off = dict.fromkeys(rest.get(family, ("hidden_dropout",)), 0.0)
    _, found = both(family, **{names[family]: 0.5}, **off)
    assert found(tokens()).logits.equal(found(tokens()).logits)
    found.train()
    with counted() as calls:
        assert not found(tokens()).logits.equal(found(tokens()).logits)
    assert calls.call_args.kwargs["dropout_p"] == 0.5


def test_a_family_with_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    t5, mt5 = ({**vars(import_module(f"transformers.models.{name}.modeling_{name}"))} for name in ("t5", "mt5"))
    for part in ("Attention", "LayerNorm"):
        code, same = (inspect.getsource(each) for each in (t5[f"T5{part}"], mt5[f"MT5{part}"]))
        assert same.replace("MT5", "T5") == code
    monkeypatch.setitem(FAMILIES, "MT5", FAMILIES["T5"])
    kinds = [row.kind for row in nn.optimize(build("MT5")).replaced]
    assert kinds.count("MT5Attention") == 4
    assert "MT5LayerNorm" in kinds


@pytest.mark.parametrize("name", ["GPTJAttention._attn", "apply_rotary_pos_emb"])
def test_other_code_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = both("GPTJ")
    logits = expected(tokens()).logits
    home = import_module("transformers.models.gptj.modeling_gptj")
    monkeypatch.setattr(f"{home.__name__}.{name}", other(attrgetter(name)(home)))
    assert not logits.equal(expected(tokens()).logits)
    assert found(tokens()).logits.equal(expected(tokens()).logits)


def test_what_is_left_alone() -> None:
    rows = {row.name: row for row in nn.optimize(build("T5")).rows}
    assert rows["decoder.block.0.layer.1.EncDecAttention"].reason == "its keys come from another sequence"
    exact = build("Bloom", slow_but_exact=True)
    assert "added up in parts" in {row.kind: row.reason for row in nn.optimize(exact).rows}["BloomAttention"]
