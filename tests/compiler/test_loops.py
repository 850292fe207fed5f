"""Attention in loops of Python's becomes one call where the turns' operands are the parts of one tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_programs import Graphs, check, random_operands

import einops_fast

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
    log = check(program, given)
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
    log = check(program, random_operands(*[(B, N, H * D)] * 3))
    assert {each.what for each in log.fused} == {"attention"}, str(log)
