"""Calls of torch's own attention, and attention in loops, are replaced with the same values and gradients."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fused_programs
import pytest
import torch
import torch.nn.functional as F
from fused_programs import Graphs, random_operands

import einops_fast
from einops_fast.compiler import library_attention
from einops_fast.compiler.report import FusionLog

attend = torch.nn.functional.scaled_dot_product_attention
LEAST = torch.finfo(torch.float32).min


def packed(x: Any, w: Any) -> Any:
    q, k, v = (x @ w / 4).unflatten(-1, (4, 3, 8)).unbind(3)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return attend(q, k, v, is_causal=True).transpose(1, 2).reshape(*x.shape[:2], 32)


def square(q: Any, k: Any) -> Any:
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()


SELF, CROSS = [(2, 4, 6, 8)] * 3, [(2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 5)]
LONGER = [(2, 4, 9, 8), (2, 4, 6, 8), (2, 4, 6, 8)]
GROUPED, SHARED = [(2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8)], [(2, 4, 6, 8), (2, 1, 9, 8), (2, 1, 9, 8)]

# The function, the shapes of its operands, and what is in the pattern.
MADE: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "hides nothing": (lambda q, k, v: attend(q, k, v, torch.ones(6, 6, dtype=torch.bool)), SELF, "a b c d, a b e d"),
    "causal": (lambda q, k, v: attend(q, k, v, square(q, k)), SELF, "a b c d, a b e d"),
    "causal, other lengths": (lambda q, k, v: attend(q, k, v, square(q, k)), CROSS, "a b e f"),
    "added infinity": (lambda q, k, v: attend(q, k, v, torch.full((6, 6), -torch.inf).triu(1)), SELF, ""),
    "added number": (lambda q, k, v: attend(q, k, v, torch.full((6, 6), LEAST).triu(1)[None, None]), SELF, ""),
    "rows hidden by a number": (lambda q, k, v: attend(q, k, v, torch.full((9, 6), LEAST).tril(-1)), LONGER, ""),
    "rows hidden by infinity": (lambda q, k, v: attend(q, k, v, torch.full((9, 6), -torch.inf).tril(-1)), LONGER, ""),
    "heads that share keys": (
        lambda q, k, v: attend(q, k, v, torch.ones(6, 9, dtype=torch.bool), enable_gqa=True), GROUPED, "a b f e"
    ),
    "order of the result": (
        lambda q, k, v: attend(q, k, v, square(q, k)).transpose(1, 2).contiguous().view(2, 6, -1), SELF, "-> a c b f"),
}  # fmt: skip
GIVEN: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "plain": (attend, SELF, "a b c d, a b e d, a b e f -> a b c f"),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), CROSS, ""),
    "scaled": (lambda q, k, v: attend(q, k, v, scale=0.3), SELF, ""),
    "a mask": (lambda q, k, v, m: attend(q, k, v, m > 0), [*SELF, (2, 1, 6, 6)], ""),
    "rows without a key": (lambda q, k, v, m: attend(q, k, v, m > 1), [*SELF, (2, 4, 6, 6)], ""),
    "a bias": (lambda q, k, v, m: attend(q, k, v, attn_mask=m), [*SELF, (4, 6, 6)], ""),
    "a bias of keys": (attend, [*CROSS, (2, 1, 1, 9)], ""),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), GROUPED, "a b c d e, a b f e, a b f g"),
    "one head of keys": (lambda q, k, v: attend(q, k, v, enable_gqa=True), SHARED, "a e d, a e f"),
    "a batch for all": (attend, [SELF[0], (1, 4, 6, 8), (1, 4, 6, 8)], "b e d, b e f"),
    "three axes": (attend, [(2, 6, 8)] * 3, ""),
    "five axes": (attend, [(2, 3, 4, 6, 8)] * 3, ""),
    "packed": (packed, [(2, 6, 32), (32, 96)], "a b c d, a e c d, a e c f -> a b c f"),
}


def check(function: Callable[..., Any], shapes: list[Any], **options: Any) -> FusionLog:
    return fused_programs.check(function, random_operands(*shapes), **options)


@pytest.mark.parametrize("name", MADE)
def test_a_mask_that_is_made_in_the_program_is_replaced(name: str) -> None:
    function, shapes, pattern = MADE[name]
    log = check(function, shapes)
    assert [pattern in each.pattern for each in log.fused] == [True], str(log)
    assert not log.missed


@pytest.mark.parametrize("name", GIVEN)
def test_every_call_can_be_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_attention, "_is_faster", lambda q, k, mask: True)
    function, shapes, pattern = GIVEN[name]
    log = check(function, shapes)
    assert [pattern in each.pattern for each in log.fused] == [True], str(log)


@pytest.mark.parametrize("name", ["plain", "causal", "a mask", "a bias"])
def test_what_the_library_does_as_fast_is_left(name: str) -> None:
    function, shapes, _ = GIVEN[name]
    log = check(function, shapes)
    assert not log.fused
    assert not log.missed


@pytest.mark.parametrize(
    ("shape", "dtype", "mask", "capability", "faster"),
    [
        ((4, 16, 1024, 64), "bfloat16", False, (9, 0), True),
        ((4, 16, 1024, 64), "bfloat16", False, (8, 0), False),
        ((4, 16, 1024, 64), "bfloat16", True, (8, 0), True),
        ((4, 16, 1024, 64), "float32", False, (9, 0), False),
        ((4, 16, 1024, 80), "bfloat16", False, (9, 0), False),
        ((1, 4, 64, 64), "bfloat16", False, (9, 0), False),
    ],
)
def test_where_ours_is_faster(
    shape: Any, dtype: str, mask: bool, capability: Any, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    value: Any = SimpleNamespace(is_cuda=True, dtype=getattr(torch, dtype), shape=shape, device="cuda:0")
    assert library_attention._is_faster(value, value, value if mask else None) is faster


B, H, N, D = 2, 3, 6, 4

Program = Callable[..., Any]


def attended(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / 2).softmax(-1) @ v


def of_chunks(q: Any, k: Any, v: Any) -> Any:
    turns = zip(q.chunk(H, -1), k.split(D, -1), v.chunk(H, dim=2), strict=True)
    return torch.cat([attended(*turn) for turn in turns], dim=-1)


def of_heads(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (each.unflatten(-1, (H, D)) for each in (q, k, v))
    return torch.stack([attended(q[:, :, at], k.select(2, at), v[..., at, :]) for at in range(H)], dim=2).flatten(2)


def with_biases(q: Any, k: Any, v: Any) -> Any:
    bias = torch.arange(H * N * N, dtype=q.dtype).view(H, N, N).sin()
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    found = []
    for one, other, values, own in zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1), bias.unbind(), strict=True):
        scores = (one @ other.mT + own).masked_fill(~mask, float("-inf"))
        found.append(F.softmax(scores, -1) @ values)
    return torch.cat(found, -1)


def of_blocks(q: Any, k: Any, v: Any) -> Any:
    blocks = [slice(at, at + 3) for at in (0, 3)]
    return torch.cat([attended(q[:, block], k[:, block], v[:, block]) for block in blocks], dim=1)


@pytest.mark.parametrize("program", [of_chunks, of_heads, with_biases, of_blocks])
def test_a_loop_becomes_one_call(program: Program) -> None:
    given = random_operands(*[(B, N, H * D)] * 3)
    log = fused_programs.check(program, given)
    assert [each.what for each in log.fused].count("loop of attentions") == 1, str(log)
    assert not log.missed, str(log)
    graphs = Graphs()
    torch._dynamo.reset()
    einops_fast.compile(program, then=graphs)(*given)
    assert len(graphs.calls("call_attention")) == 1
    assert not graphs.calls("chunk")


def joined_in_another_order(q: Any, k: Any, v: Any) -> Any:
    turns = zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1), strict=True)
    return torch.cat([attended(*turn) for turn in turns][::-1], -1)


def of_some_heads(q: Any, k: Any, v: Any) -> Any:
    turns = zip(q.chunk(H, -1)[1:], k.chunk(H, -1)[1:], v.chunk(H, -1)[1:], strict=True)
    return torch.cat([attended(*turn) for turn in turns], -1)


def of_other_masks(q: Any, k: Any, v: Any) -> Any:
    found = []
    for at, (one, other, values) in enumerate(zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1), strict=True)):
        mask = torch.ones(N, N, dtype=torch.bool).tril(at)
        found.append((one @ other.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ values)
    return torch.cat(found, -1)


def of_the_same_queries(q: Any, k: Any, v: Any) -> Any:
    return torch.cat([attended(q, k, each) for each in v.chunk(H, -1)], -1)


def with_results_of_turns(q: Any, k: Any, v: Any) -> Any:
    found = [attended(*turn) for turn in zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1), strict=True)]
    return torch.cat(found, -1), found[1]


@pytest.mark.parametrize(
    "program",
    [
        joined_in_another_order,
        of_some_heads,
        of_other_masks,
        of_the_same_queries,
        with_results_of_turns,
    ],
)
def test_turns_that_are_not_alike_stay_calls_of_their_own(program: Program) -> None:
    log = fused_programs.check(program, random_operands(*[(B, N, H * D)] * 3))
    assert {each.what for each in log.fused} == {"attention"}, str(log)
