"""Attention on operands of any shape and layout: sizes of heads, axes that operands lack, strides, orders."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from attention_problems import DEVICE, attention, check, leaves, randn, run, tiles

from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention import call as torch_attention


@pytest.mark.parametrize(
    ("head_dim", "v_head_dim"), [(1, 1), (3, 20), (17, 5), (40, 40), (48, 7), (80, 96), (100, 64), (7, 130), (256, 33)]
)
def test_sizes_of_heads(head_dim: int, v_head_dim: int) -> None:
    with tiles():
        check(*attention((1,), 17, 18, head_dim, v_head_dim, causal=True, sinks=(1,)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    eps = torch.finfo(getattr(torch, dtype)).eps
    with tiles():
        spec, inputs = attention((2,), dtype=dtype, causal=True, bias=(1, 21, 37), softcap=5.0)
        check(spec, inputs, tolerance=4 * eps)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": (1, 21, 37), "softcap": 0.7, "causal": True}, {"alibi": (2,), "sinks": (1,), "window": (9, 9)}],
)
def test_float64_keeps_its_digits(options: dict[str, Any]) -> None:
    """Also of a scale and a softcap that have more digits than float32."""
    with tiles():
        check(*attention((2,), head_dim=5, dtype="float64", **options))


BATCHES: dict[str, dict[str, Any]] = {
    "no batch": {"batch": ()},
    "one axis": {"batch": (3,)},
    "four axes": {"batch": (2, 1, 2, 2)},
    "grouped": {"batch": (2, 2, 3), "k_batch": (2, 2, 1)},
    "one head of k and v": {"batch": (2, 3), "k_batch": (2, 1), "bias": (1, 3, 21, 37)},
    "two shared axes": {"batch": (2, 2, 2), "k_batch": (2, 1, 1), "sinks": (1, 2, 2)},
    "v lacks an axis that k has": {"batch": (2, 2), "v_batch": (1, 2)},
    "k lacks an axis that v has": {"batch": (2, 2), "k_batch": (2, 1), "v_batch": (2, 2)},
    "q lacks an axis": {"batch": (2, 2), "q_batch": (1, 2)},
    "only the bias has an axis": {
        "batch": (2, 2), "q_batch": (1, 2), "k_batch": (1, 2), "bias": (2, 1, 21, 37),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batch_axes(name: str) -> None:
    with tiles():
        check(*attention(**BATCHES[name], head_dim=8, causal=True))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]),
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "overlapping rows": lambda x: x.flatten().as_strided(x.shape, (7, 5, 3, 1)),
    "expanded": lambda x: x[:1, :, :1].expand(x.shape),
}


def assert_same(found: Any, expected: Any) -> None:
    """To the last bit, but for what a GPU's compiler makes of other strides: it may add up a row in another order."""
    if DEVICE == "cpu":
        assert torch.equal(found, expected)
    else:
        largest = float(expected.detach().abs().nan_to_num(posinf=0).max())
        torch.testing.assert_close(found, expected, rtol=0, atol=16 * torch.finfo(found.dtype).eps * largest)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_matter(layout: str) -> None:
    """Not to values, and not to gradients."""
    spec, inputs = attention((2, 1), 17, 18, head_dim=20, bias=(2, 1, 17, 18), mask=(2, 1, 17, 18), causal=True)
    relaid = [LAYOUTS[layout](each) for each in (inputs.q, inputs.k, inputs.v, inputs.bias, inputs.mask)]
    with tiles():
        expected = run(spec, AttentionInputs(*(each.contiguous() for each in relaid)))
        found = run(spec, AttentionInputs(*relaid))
    for name, value in expected.items():
        assert_same(found[name], value)


def test_gradients_lie_as_their_operands() -> None:
    spec, inputs = attention((1, 2), 5, 7)
    turned = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (inputs.q, inputs.k, inputs.v))
    inputs = AttentionInputs(*turned)
    with tiles():
        found = run(spec, inputs)
    for name in ("q", "k", "v"):
        assert found[name].stride() == getattr(inputs, name).stride()


def test_the_result_lies_in_any_order() -> None:
    spec, inputs = attention((2, 2), 5, 7, head_dim=5)
    with tiles():
        expected = run(spec, inputs)
        for order in list(permutations(range(4)))[::3]:
            found = run(replace(spec, order=order), inputs, gradients=order[0] == 2)
            assert found["out"].permute(order).is_contiguous()
            assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_gradients_of_any_layout_come_in() -> None:
    spec, inputs = attention((2, 1), 17, 18)
    with tiles():
        for strided in (LAYOUTS["reversed"], LAYOUTS["gaps"], LAYOUTS["expanded"]):
            leaf = leaves(inputs)
            out, lse = torch_attention.triton_attention(spec, leaf)
            d_out, d_lse = strided(randn(*out.shape)), randn(1).expand(lse.shape)
            found = torch.autograd.grad([out, lse], [leaf.q, leaf.k, leaf.v], [d_out, d_lse], retain_graph=True)
            plain = [d_out.contiguous(), d_lse.contiguous()]
            expected = torch.autograd.grad([out, lse], [leaf.q, leaf.k, leaf.v], plain)
            for value, plainly in zip(found, expected, strict=True):
                assert_same(value, plainly)


def test_logarithms_that_nobody_asked_for() -> None:
    spec, inputs = attention((1, 2), 17, 18)
    with tiles():
        given = []
        for own in (spec, replace(spec, lse=False)):
            leaf = leaves(inputs)
            out, lse = torch_attention.triton_attention(own, leaf)
            assert (lse is None) == (not own.lse)
            given.append([out, *torch.autograd.grad(out.sum(), [leaf.q, leaf.k, leaf.v])])
        with torch.no_grad():
            assert torch_attention.triton_attention(replace(spec, lse=False), inputs)[1] is None
    assert all(map(torch.equal, *given))


def test_wide_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 64-bit way, which only arrays of gigabytes take."""
    from einops_fast.backends.triton.attention import problem

    monkeypatch.setattr(problem, "_wide", lambda *args: True)
    with tiles():
        check(*attention((2,), bias=(1, 21, 37), mask=(2, 1, 37), window=(9, 9)))
