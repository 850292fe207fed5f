"""Attention in several spellings, each disturbed at one stage: programs that must stay as they are."""

from collections.abc import Callable
from typing import Any

import torch
from attention_spellings import SQUARE, B, H, M, Spelling

Step = Callable[[Any], Any]

MASK = torch.ones(M, M, dtype=torch.bool).tril()


# ---- spellings, which have a step done at each of their stages


def by_name(q, k, v, at):
    scores = at("scores", q @ k.mT / 2)
    return at("weights", scores.softmax(-1)) @ v


def by_hand(q, k, v, at):
    scores = at("scores", q @ k.mT / 2)
    largest = at("largest", scores.amax(-1, keepdim=True))
    weights = at("exponentials", torch.exp(scores - largest))
    return at("weights", weights / at("total", weights.sum(-1, keepdim=True))) @ v


def late(q, k, v, at):
    scores = at("scores", torch.einsum("bhid,bhjd->bhij", q, k) / 2)
    weights = at("exponentials", torch.exp(scores))
    total = at("total", weights.sum(-1, keepdim=True))
    return at("products", torch.einsum("bhij,bhje->bhie", weights, v)) / total


def by_logs(q, k, v, at):
    scores = at("scores", q @ k.mT / 2)
    log = at("log", scores.logsumexp(-1, keepdim=True))
    return at("weights", (scores - log).exp()) @ v


def batched(q, k, v, at):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    scores = torch.bmm(q * 0.5, k.mT)
    weights = at("weights", scores.softmax(-1).view(B, H, M, M))
    return torch.bmm(weights.flatten(0, 1), v).view(B, H, M, -1)


SPELLED = {function.__name__: function for function in (by_name, by_hand, late, by_logs, batched)}


def written(x):
    x = x.clone()
    x[..., 1] = 0.5
    return x


def without_gradient(x):
    with torch.no_grad():
        return x * 1.5


STEPS: dict[str, dict[str, Step]] = {
    "scores": {
        "detached": lambda x: x.detach(),
        "bounded": lambda x: x.clamp(-0.5, 0.5),
        "lower_triangle": lambda x: x.tril(),
        "zeros_for_a_mask": lambda x: x.masked_fill(~MASK, 0.0),
        "gated_alone": lambda x: x * MASK.float(),
        "little_for_a_mask": lambda x: torch.where(MASK, x, -3.0),
        "half_a_gate": lambda x: x * MASK.float() - 1e9 * (1 - MASK.float().mT),
        "squared": lambda x: x * x,
        "of_positions": lambda x: x * torch.arange(M),
        "written": written,
        "without_gradient": without_gradient,
        "added_to_another": lambda x: x + x.mT,
    },
    "weights": {
        "detached": lambda x: x.detach(),
        "lower_triangle": lambda x: x.tril(),
        "masked": lambda x: x.masked_fill(~MASK, 0.0),
        "gated": lambda x: x * MASK,
        "masked_by_more": lambda x: x.masked_fill(~MASK, 0.5),
        "transposed": lambda x: x.mT,
        "over_queries": lambda x: x / x.sum(-2, keepdim=True),
        "mixed_heads": lambda x: x.mean(1, keepdim=True).expand_as(x),
        "residual": lambda x: x + torch.eye(M),
        "written": written,
        "without_gradient": without_gradient,
    },
    "exponentials": {
        "shifted": lambda x: x + 1,
        "bounded": lambda x: x.clamp(max=2),
        "without_gradient": without_gradient,
    },
    "total": {
        "kept_from_zero": lambda x: x + 1e-2,
        "bounded": lambda x: x.clamp(min=3),
        "detached": lambda x: x.detach(),
        "of_other_rows": lambda x: x.flip(-2),
    },
    "largest": {
        "of_other_rows": lambda x: x.flip(-2),
        "doubled": lambda x: x * 2,
    },
    "products": {
        "shifted": lambda x: x + 1,
        "detached": lambda x: x.detach(),
        "of_other_rows": lambda x: x.flip(-2),
    },
    "log": {
        "shifted": lambda x: x + 1,
        "detached": lambda x: x.detach(),
        "of_other_rows": lambda x: x.flip(-2),
    },
}

_STAGES = {
    "by_name": ("scores", "weights"),
    "by_hand": ("exponentials", "total", "largest", "weights"),
    "late": ("scores", "exponentials", "total", "products"),
    "by_logs": ("log", "weights"),
    "batched": ("weights",),
}


def _disturbed(function: Any, stage: str, step: Step) -> Callable[..., Any]:
    return lambda q, k, v: function(q, k, v, lambda name, x: step(x) if name == stage else x)


def _with_a_result_more(function: Any, stage: str) -> Callable[..., Any]:
    def program(q: Any, k: Any, v: Any) -> Any:
        kept: dict[str, Any] = {}
        return function(q, k, v, lambda name, x: kept.setdefault(name, x)), kept[stage]

    return program


DISTURBED = {
    f"{name}-{stage}-{what}": Spelling(_disturbed(function, stage, step), SQUARE)
    for name, function in SPELLED.items()
    for stage in _STAGES[name]
    for what, step in STEPS[stage].items()
} | {
    f"{name}-{stage}-returned": Spelling(_with_a_result_more(function, stage), SQUARE)
    for name, function in SPELLED.items()
    for stage in _STAGES[name]
    if stage != "log"  # with scores known, softmax and logarithm are a result of ours
}
