"""Small models of transformers, their inputs and their results."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

transformers: Any = pytest.importorskip("transformers", minversion="5.0")


from ops_problems import DEVICE  # noqa: E402

from einops_fast import attention  # noqa: E402

KINDS = ("bert", "gpt2", "llama")

SIZES = {"vocab_size": 23, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}


def build(kind: str, way: str = "sdpa", dtype: Any = torch.float64, **more: Any) -> Any:
    """A small language model, in evaluation."""
    torch.manual_seed(0)
    config: Any
    if kind == "bert":
        config = transformers.BertConfig(**SIZES | more, hidden_size=16, intermediate_size=24)
        made = transformers.BertLMHeadModel if more.get("is_decoder") else transformers.BertForMaskedLM
    elif kind == "gpt2":
        config = transformers.GPT2Config(**SIZES | more, n_embd=16, bos_token_id=1, eos_token_id=2)
        made = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(
            **SIZES | more, hidden_size=16, intermediate_size=24, num_key_value_heads=2, tie_word_embeddings=True
        )
        made = transformers.LlamaForCausalLM
    config._attn_implementation = way
    model = made(config).to(DEVICE, dtype).eval()
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name.lower() or "ln_" in name:  # zeros and ones hide mistakes
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def tokens() -> Any:
    return torch.randint(3, 23, (3, 7), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def results(model: Any, mask: Any = None, **options: Any) -> list[Any]:
    """Logits, loss and all gradients."""
    model.zero_grad()
    found = model(input_ids=tokens(), attention_mask=mask, labels=tokens(), **options)
    found.loss.backward()
    return [found.logits.detach(), found.loss.detach(), *(each.grad.clone() for each in model.parameters())]


def close(found: Any, expected: Any, dtype: Any = torch.float64) -> None:
    # transformers' losses, norms and rotary positions are computed in float32 also for float64.
    tolerance = 1e-6 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def counted() -> Any:
    """Where calls of our attention are counted."""
    return mock.patch("einops_fast.ops.self_attention.attention", wraps=attention)


def other(function: Callable[..., Any], wrapped: bool = True) -> Callable[..., Any]:
    """A function with other results than one that returns a tensor, a tuple, or what has logits and a loss."""

    def scaled(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if isinstance(found, tuple):
            return tuple([each if each is None else 1.25 * each for each in found])
        return 1.25 * found if isinstance(found, torch.Tensor) else found

    return functools.wraps(function)(scaled) if wrapped else scaled


def results_of_logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=tokens()).logits
