"""Models of transformers with ``attn_implementation="einops_fast"`` compute what they compute with ``"eager"``."""

import copy
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers", minversion="5.0")

from einops_fast import EinsumError, nn  # noqa: E402

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
WIDE = {**SIZES, "intermediate_size": 24, "max_position_embeddings": 64}
GROUPED = {**WIDE, "num_key_value_heads": 2}
LAYERS = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GPT = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 4, **ENDS}
T5 = {"vocab_size": 23, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("ForCausalLM", GROUPED),
    "Mistral": ("ForCausalLM", {**GROUPED, "sliding_window": 4}),
    "Qwen3": ("ForCausalLM", {**GROUPED, "head_dim": 8}),
    "Gemma2": ("ForCausalLM", {**GROUPED, **LAYERS, "attn_logit_softcapping": 0.5}),
    "Gemma3": ("ForCausalLM", {**GROUPED, **LAYERS}),
    "GptOss": ("ForCausalLM", {**GROUPED, **LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "GPT2": ("LMHeadModel", GPT),
    "GPTNeoX": ("ForCausalLM", WIDE),
    "T5": ("ForConditionalGeneration", {**T5, **ENDS, "decoder_start_token_id": 0}),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("ForMaskedLM", WIDE),
    "ModernBert": ("ForMaskedLM", {**WIDE, "local_attention": 4}),
}


def build(family: str, way: str, **more: Any) -> Any:
    nn.register_attention()
    head, sizes = {**DECODERS, **ENCODERS}[family]
    config = getattr(transformers, f"{family}{'Text' if family == 'Gemma3' else ''}Config")
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}{head}")
    model = made._from_config(config(**copy.deepcopy(sizes), **more), attn_implementation=way).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def both(family: str) -> tuple[Any, Any]:
    return build(family, "eager"), build(family, "einops_fast")


def tokens() -> Any:
    return torch.randint(3, 23, (3, 9), generator=torch.Generator().manual_seed(2))


def padding() -> Any:
    """Padding on the left of two sequences."""
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[0, :3] = mask[1, :1] = 0
    return mask


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def loss(model: Any, mask: Any) -> Any:
    # What a position of padding predicts is anything: the first token behind it.
    labels = tokens() if mask is None else tokens().masked_fill(mask.cumsum(1) < 2, -100)
    found = model(input_ids=tokens(), attention_mask=mask, labels=labels)
    found.loss.backward()
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_logits_and_gradients_are_those_of_eager_attention(family: str, padded: bool) -> None:
    expected, found = both(family)
    mask = padding() if padded else None
    native, ours = loss(expected, mask), loss(found, mask)
    seen = slice(None) if mask is None or family == "T5" else mask.bool()  # rows of padding are anything
    close(ours.logits[seen], native.logits[seen])
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    for name, parameter in found.named_parameters():
        close(parameter.grad, gradients[name])


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("SplinterModel", WIDE),
        (
            "PegasusXForConditionalGeneration",
            {"vocab_size": 23, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        ),
    ],
)
def test_masks_are_made_where_modules_do_not_say_that_they_are_causal(family: str, sizes: Any) -> None:
    """transformers lets none of these use ``sdpa``: without a mask, it would take causality from the modules."""
    nn.register_attention()
    made = getattr(transformers, family)
    inputs = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if "d_model" in sizes else {})
    results = []
    for way in ("eager", "einops_fast"):
        torch.manual_seed(0)
        model = made._from_config(made.config_class(**sizes), attn_implementation=way).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        results.append(model(**inputs)[0])
    close(results[1], results[0])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generated_tokens_are_those_of_eager_attention(family: str, cache: str) -> None:
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "disable_compile": True}
    expected, found = [
        model.generate(input_ids=tokens(), attention_mask=padding(), cache_implementation=cache, **options)
        for model in both(family)
    ]
    assert expected.tolist() == found.tolist()


def test_dropout_is_for_training() -> None:
    model = build("Llama", "einops_fast", attention_dropout=0.5)
    assert model(tokens()).logits.equal(model(tokens()).logits)
    model.train()
    assert not model(tokens()).logits.equal(model(tokens()).logits)


@pytest.mark.parametrize("mask", [None, padding()], ids=["causal", "padded"])
def test_a_model_is_compiled_as_one_graph(mask: Any) -> None:
    expected, found = both("Llama")
    compiled = torch.compile(found, backend="aot_eager", fullgraph=True)
    seen = slice(None) if mask is None else mask.bool()
    options = {"input_ids": tokens(), "attention_mask": mask}
    close(compiled(**options).logits[seen], expected(**options).logits[seen])


def test_a_causal_mask_is_not_made() -> None:
    nn.register_attention()
    from transformers.masking_utils import create_causal_mask

    config, inputs = build("Llama", "einops_fast").config, torch.zeros(3, 9, 16)
    assert create_causal_mask(config, inputs, torch.ones(3, 9), past_key_values=None) is None
    assert create_causal_mask(config, inputs, padding(), past_key_values=None).shape == (3, 1, 9, 9)


def test_weights_are_refused() -> None:
    with pytest.raises(EinsumError, match="output_attentions can't be True"):
        build("Llama", "einops_fast")(tokens(), output_attentions=True)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [("Bloom", {"vocab_size": 23, "hidden_size": 16, "n_layer": 2, "n_head": 4}), ("RemBert", WIDE)],
)
def test_models_with_attention_of_their_own_are_refused(family: str, sizes: Any) -> None:
    """They would add masks of booleans to their scores, as numbers."""
    nn.register_attention()
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="einops_fast")
    with pytest.raises(Exception, match=r"EinsumError: .* has attention of its own"):
        torch.compile(model, backend="aot_eager")(tokens())
    with pytest.raises(EinsumError, match="attention of its own"):
        model(tokens())
