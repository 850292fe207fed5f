"""Models of transformers, made from their configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from einops_fast.profiles.programs.models import MODELS, Program, Sizes

__all__ = ["MODELS"]


class Called(nn.Module):
    """A model, and how its batches are put to it: what it returns is a loss, hidden states or what comes next."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *batch: Tensor) -> Tensor:
        return self.call(self.model, *batch)


class LowRank(nn.Module):
    """A linear layer that is frozen, with an update of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T @ self.up.T) * 2.0


def _configured(family: str, task: str, sizes: Sizes, **others: Any) -> Any:
    """Return a model; dropout would give each way other numbers."""
    import transformers

    width, layers, heads = (sizes[name] for name in ("width", "layers", "heads"))
    general = {
        "vocab_size": sizes["words"], "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**{**general, **others})
    return getattr(transformers, f"{family}{task}")(config)


def _trained(model: nn.Module, first: str = "input_ids") -> nn.Module:
    return Called(model, lambda model, read, labels: model(**{first: read}, labels=labels).loss)


def _labelled(model: nn.Module, sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    words = torch.randint(1, sizes["words"], (sizes["batch"], sizes["length"]), device=device)
    return Program(_trained(model.to(device, dtype)), [(words, words.clone())])


def _bert(task: str, sizes: Sizes) -> Any:
    inner = {"intermediate_size": 4 * sizes["width"], "max_position_embeddings": sizes["length"]}
    return _configured("Bert", task, sizes, **inner)


def _gpt2(task: str, sizes: Sizes) -> Any:
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return _configured("GPT2", task, sizes, n_positions=sizes["length"], use_cache=False, **dropout)


def bert(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    return _labelled(_bert("ForMaskedLM", sizes), sizes, device, dtype)


def gpt2(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    return _labelled(_gpt2("LMHeadModel", sizes), sizes, device, dtype)


def _part(model: Callable[[str, Sizes], Any], path: str, sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    made = model("Model", {**sizes, "layers": 1, "words": 8})
    shape = (sizes["batch"], sizes["length"], sizes["width"])
    hidden, cotangent = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))

    def call(part: nn.Module, hidden: Tensor) -> Tensor:
        returned = part(hidden)
        return returned[0] if isinstance(returned, tuple) else returned

    part = Called(made.get_submodule(path), call).to(device, dtype)
    return Program(part, [(hidden.requires_grad_(),)], cotangent)


def _llama(sizes: Sizes) -> Any:
    inner = {"intermediate_size": sizes["width"] * 11 // 4, "num_key_value_heads": max(sizes["heads"] // 4, 1)}
    return _configured("Llama", "ForCausalLM", sizes, use_cache=False, **inner)


def llama(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    return _labelled(_llama(sizes), sizes, device, dtype)


def llama_low_rank(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    model = _llama(sizes).requires_grad_(requires_grad=False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LowRank(getattr(layer.self_attn, name)))
    return _labelled(model, sizes, device, dtype)


def llama_prefill(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    words = torch.randint(sizes["words"], (sizes["batch"], sizes["length"]), device=device)
    model = _llama(sizes).eval().to(device, dtype)
    return Program(
        Called(model, lambda model, words: model(input_ids=words, use_cache=False).logits[:, -1]), [(words,)]
    )


def gemma2(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    heads = {"head_dim": sizes["width"] // sizes["heads"], "num_key_value_heads": sizes["heads"] // 2}
    inner = {"intermediate_size": 4 * sizes["width"], "attn_implementation": "eager", "use_cache": False}
    return _labelled(_configured("Gemma2", "ForCausalLM", sizes, **heads, **inner), sizes, device, dtype)


def t5(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    named = {"d_model": sizes["width"], "d_kv": sizes["width"] // sizes["heads"], "d_ff": 4 * sizes["width"]}
    counts = {"num_layers": sizes["layers"], "num_heads": sizes["heads"], "dropout_rate": 0.0, "use_cache": False}
    model = _configured("T5", "ForConditionalGeneration", sizes, decoder_start_token_id=0, **named, **counts)
    return _labelled(model, sizes, device, dtype)


def whisper(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    width, layers, heads, length = (sizes[name] for name in ("width", "layers", "heads", "length"))
    counts: dict[str, Any] = {"d_model": width, "max_source_positions": length, "max_target_positions": length}
    for side in ("encoder", "decoder"):
        counts |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * width}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = _configured("Whisper", "ForConditionalGeneration", sizes, use_cache=False, **counts, **special)
    sound = torch.randn(sizes["batch"], 80, 2 * length, device=device, dtype=dtype)
    words = torch.randint(3, sizes["words"], (sizes["batch"], min(length, 256)), device=device)
    return Program(_trained(model.to(device, dtype), "input_features"), [(sound, words)])


def vit(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    inner = {"intermediate_size": 4 * sizes["width"], "image_size": sizes["side"], "num_labels": 1000}
    model = _configured("ViT", "ForImageClassification", sizes, **inner)
    images = torch.randn(sizes["batch"], 3, sizes["side"], sizes["side"], device=device, dtype=dtype)
    labels = torch.randint(1000, (sizes["batch"],), device=device)
    return Program(_trained(model.to(device, dtype), "pixel_values"), [(images, labels)])


MODELS |= {each.__name__: each for each in (bert, gpt2, llama, llama_low_rank, llama_prefill, gemma2, t5, whisper, vit)}
MODELS |= {
    "bert_layer": partial(_part, _bert, "encoder.layer.0"),
    "bert_attention": partial(_part, _bert, "encoder.layer.0.attention.self"),
    "gpt2_block": partial(_part, _gpt2, "h.0"),
    "gpt_attention": partial(_part, _gpt2, "h.0.attn"),
}
