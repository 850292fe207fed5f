"""Attention on torch tensors: derivatives, memory, tracing, autocast, torch.export for any lengths."""

import re
from typing import Any

import pytest
import torch
from attention_leaves import check_same, jagged, leaves
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.export import Dim, export
from torch.nn.functional import scaled_dot_product_attention as native
from torch_operands import whole

from einops_fast import (
    OperandError,
    ShapeError,
    attention,
    attention_backend,
    scaled_dot_product_attention,
)
from einops_fast.attention.memory import score_memory

PATTERN = "b i h d, b j g d, b j g e -> b i h e"


# ---- derivatives

OPTIONS = {
    "plain": {},
    "causal": {"causal": "bottom_right", "window": (1, None)},
    "softcap": {"softcap": 0.7, "scale": 0.9},
    "mask": {"mask": torch.tensor([[True, False, True], [False, False, False]])},
    "segments": {"segment_ids": (torch.tensor([0, 3]), torch.tensor([0, 1, 0]))},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25])},
}


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["pieces", "whole"])
@pytest.mark.parametrize("case", OPTIONS)
def test_gradients_of_everything_also_through_the_log(case, memory):
    def function(q, k, v, bias, sinks):
        found, lse = attention(
            PATTERN, q, k, v, bias=("h i j", bias), sinks=("h", sinks), **OPTIONS[case], return_lse=True
        )
        return found, lse

    operands = leaves((1, 2, 2, 3), (1, 3, 1, 3), (1, 3, 1, 2), (2, 2, 3), (2,))
    with attention_backend("math"), score_memory(memory):
        assert gradcheck(function, operands)
        if case in ("plain", "mask"):
            assert gradgradcheck(function, operands, fast_mode=True)


def test_without_keys_gradients_are_zeros():
    operands = leaves((2, 5, 4), (2, 0, 4), (2, 0, 3))
    with attention_backend("math"):
        found = attention("b i d, b j d, b j e -> b i e", *operands)
    gradients = torch.autograd.grad(found, operands, torch.ones_like(found))
    assert torch.equal(found, torch.zeros(2, 5, 3, dtype=torch.float64))
    torch.testing.assert_close(gradients, tuple(map(torch.zeros_like, operands)), rtol=0, atol=0)


def test_forward_mode_and_function_transforms():
    q, k, v = (each.detach() for each in leaves((2, 3, 2, 4), (2, 3, 2, 4), (2, 3, 2, 4)))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(attention(forward_ad.make_dual(q, k), k, v, layout="bshd", causal=True))
        assert found.tangent is not None
    tangent = torch.func.jvp(lambda q: attention(q, k, v, layout="bshd", causal=True), (q,), (k,))[1]
    torch.testing.assert_close(found.tangent, tangent)
    step = 1e-6
    ahead, behind = (attention(q + at * k, k, v, layout="bshd", causal=True) for at in (step, -step))
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    mapped = torch.func.vmap(lambda q, k, v: attention(q, k, v, layout="shd"))(q, k, v)
    torch.testing.assert_close(mapped, attention(q, k, v, layout="bshd"))


def test_gradients_in_pieces_keep_no_scores():
    q, k, v = leaves((1, 256, 2, 8), (1, 256, 2, 8), (1, 256, 2, 8), dtype=torch.float32)
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with attention_backend("math"), score_memory(1 << 16):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = attention(q, k, v, layout="bshd", causal=True)
        ours = torch.autograd.grad(found.square().sum(), [q, k, v])
    assert max(kept, default=0) <= q.numel()
    expected = native(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
    theirs = torch.autograd.grad(expected.square().sum(), [q, k, v])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_dropout_in_pieces_drops_the_same_weights_in_backward():
    q, k, v = leaves((1, 64, 8), (1, 64, 8), (1, 64, 8))
    with attention_backend("math"), score_memory(1 << 12):
        found = attention("b i d, b j d, b j e -> b i e", q, k, v, dropout_p=0.5)
        (gradient,) = torch.autograd.grad(found.sum(), v)
    # Linear in v: the gradient has to give the result again.
    torch.testing.assert_close((gradient * v).sum(), found.sum())


def test_slopes_have_no_gradient_and_that_is_said():
    q, slopes = leaves((1, 2, 3, 4), (2,))
    with pytest.raises(OperandError, match="alibi_slopes have no gradient"):
        attention(q, q, q, layout="bhsd", alibi_slopes=slopes)


# ---- tracing

TRACED = {
    "pattern": lambda q, k, v: attention(PATTERN, q, k, v, causal=True),
    "modifiers": lambda q, k, v: attention(
        PATTERN, q, k, v, bias=("h", torch.ones(4, dtype=q.dtype)), softcap=2.0, window=(2, None), return_lse=True
    ),
}


def test_drop_in_with_other_heads_of_values_compiles_for_any_sizes():
    def call(q, k, v):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    operands = leaves((2, 12, 5, 8), (2, 4, 7, 8), (2, 6, 7, 8))
    torch.testing.assert_close(whole(call, dynamic=True)(*operands), call(*operands))


@pytest.mark.parametrize("case", TRACED)
def test_compiles_whole(case):
    operands = leaves((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6))
    found, expected = whole(TRACED[case], dynamic=False)(*operands), TRACED[case](*operands)
    torch.testing.assert_close(found, expected)
    check_same(*(each[0] if isinstance(each, tuple) else each for each in (found, expected)), operands)


@pytest.mark.parametrize(
    ("k", "v", "dynamic"),
    [((2, 7, 3, 8), (2, 7, 3, 8), False), ((2, 7, 2, 8), (2, 6, 2, 6), True)],
)
def test_wrong_sizes_are_told_as_if_nothing_were_compiled(k, v, dynamic):
    operands = leaves((2, 5, 4, 8), k, v)
    with pytest.raises(ShapeError) as expected:
        TRACED["pattern"](*operands)
    torch.compiler.reset()
    with pytest.raises(ShapeError) as found:
        torch.compile(TRACED["pattern"], backend="eager", dynamic=dynamic)(*operands)
    assert str(found.value) == str(expected.value)
    if not dynamic:
        with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
            whole(TRACED["pattern"], "eager", dynamic=False)(*operands)


def packed_call(q, ends):
    return attention(q, q, q, layout="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=6, max_seqlen_kv=6)


@pytest.mark.parametrize("kind", ["packed", "nested"])
def test_lengths_break_the_graph_or_say_why_not(kind):
    if kind == "packed":
        call, arrays = packed_call, (torch.randn(10, 2, 8), torch.tensor([0, 4, 10], dtype=torch.int32))
    else:
        arrays = (jagged((4, 2, 8), (6, 2, 8)),)
        call = lambda x: attention(x, x, x, layout="bshd", causal=True).values()  # noqa: E731
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(call, backend="eager")(*arrays), call(*arrays))
    with pytest.raises(RuntimeError, match="by their lengths, which no single graph can depend on") as caught:
        whole(call, "eager")(*arrays)
    assert "Compile without fullgraph=True" in str(caught.value)


# ---- autocast


def test_autocast_converts_as_torch_s_function_does():
    q, k, v = leaves((2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 8), dtype=torch.float32)
    for name in ("cpu", "math"):
        with torch.autocast("cpu", torch.bfloat16), attention_backend(name):
            found = attention(q, k, v, layout="bshd")
            expected = native(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
        assert found.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        (gradient,) = torch.autograd.grad(found.sum(), q)
        assert gradient.dtype == torch.float32
    assert attention(q, k, v, layout="bshd").dtype == torch.float32


CALLS: dict[str, Any] = {
    "bottom_right": lambda q, k: attention(q, k, k, layout="bhsd", causal="bottom_right"),
    "shared keys": lambda q, k: attention(q, k[:, :1], k[:, :1], layout="bhsd", causal="bottom_right"),
    "bias": lambda q, k: attention(q, k, k, layout="bhsd", causal="bottom_right", bias=q @ k.mT),
    "window": lambda q, k: attention(q, k, k, layout="bhsd", window=(2, 1), alignment="bottom_right"),
    "top_left": lambda q, k: attention(q, k, k, layout="bhsd", causal=True, softcap=3.0),
}


def operands(queries: int, keys: int) -> tuple[Any, Any]:
    return torch.randn(2, 3, queries, 8), torch.randn(2, 3, keys, 8)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_lengths_need_not_differ_as_when_exported(name: str, strict: bool) -> None:
    call = CALLS[name]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any) -> Any:
            return call(q, k)

    sizes = {"q": {2: Dim("n", min=2, max=99)}, "k": {2: Dim("m", min=2, max=99)}}
    exported = export(Module(), operands(5, 7), dynamic_shapes=sizes, strict=strict).module()
    for lengths in ((6, 6), (5, 7), (9, 4), (2, 30)):
        q, k = operands(*lengths)
        torch.testing.assert_close(exported(q, k), call(q, k))
