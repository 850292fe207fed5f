"""Attention of torch's nested tensors, jagged in and out, packed, in modules; strided ones are refused everywhere."""

from typing import Any

import numpy as np
import pytest
import torch
from attention_leaves import jagged
from attention_problems import DEVICE, randn, whole_calls
from attention_reference import naive
from torch_operands import whole

from einops_fast import (
    OperandError,
    attention,
    attention_backend,
    contract_expression,
    fast_einsum,
    ops,
    patched,
    scaled_dot_product_attention,
)


@pytest.mark.parametrize("transposed", [False, True])
def test_nested_tensors(transposed):
    generator = torch.Generator().manual_seed(0)
    q_parts, kv_parts = (
        [torch.randn(length, 4, 8, generator=generator, dtype=torch.float64) for length in lengths]
        for lengths in ((3, 1, 5), (2, 6, 4))
    )
    q, k = (torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True) for parts in (q_parts, kv_parts))
    if transposed:
        found, lse = attention(
            *(each.transpose(1, 2) for each in (q, k, k)), layout="bhsd", causal="bottom_right", return_lse=True
        )
        found, lse = found.transpose(1, 2), lse.transpose(1, 2)
    else:
        found, lse = attention(q, k, k, layout="bshd", causal="bottom_right", return_lse=True)
    assert found.is_nested
    assert found.shape == q.shape  # the same lengths, and known to be so
    for own, own_lse, q_part, kv_part in zip(found.unbind(), lse.unbind(), q_parts, kv_parts, strict=True):
        arrays = [each.numpy().transpose(1, 0, 2)[None] for each in (q_part, kv_part, kv_part)]
        expected, expected_lse = naive(*arrays, causal=True, alignment="bottom_right")
        np.testing.assert_allclose(own.detach(), expected[0].transpose(1, 0, 2), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(own_lse.detach(), expected_lse[0].T, rtol=1e-12, atol=1e-12)
    found.values().square().sum().backward()
    assert q.grad.is_nested
    assert q.grad.values().isfinite().all()


@pytest.mark.parametrize("layout", ["bs3hd", "b3shd"])
def test_nested_tensors_of_q_k_and_v(layout):
    lengths = 3, 1, 5
    whole = jagged(*((length, 3, 4, 8) for length in lengths))
    if layout == "b3shd":
        values = whole.values().detach().transpose(0, 1).contiguous().requires_grad_()
        whole = torch.nested.nested_tensor_from_jagged(values, whole.offsets(), jagged_dim=2)
    found = attention(whole, layout=layout, causal=True)
    for own, part in zip(found.unbind(), whole.unbind(), strict=True):
        part = part.detach() if layout == "bs3hd" else part.detach().transpose(0, 1)
        torch.testing.assert_close(own.detach(), attention(part[None], layout="bs3hd", causal=True)[0])
    found.values().square().sum().backward()
    assert (values if layout == "b3shd" else whole).grad is not None


def test_modules_take_nested_tensors():
    from einops_fast.nn import CausalSelfAttention, MultiHeadAttention

    x = jagged((3, 32), (5, 32))
    modules = CausalSelfAttention(4, 32, is_causal=True), MultiHeadAttention("b i, b j -> b i", 32, 4, causal=True)
    for module in modules:
        module.double()
        for own, part in zip(module(x).unbind(), x.unbind(), strict=True):
            torch.testing.assert_close(own, module(part[None])[0])


@pytest.mark.parametrize("heads", [4, 2])
def test_further_arrays_of_nested_tensors_have_patterns(heads):
    q, k = jagged((3, 4, 8), (5, 4, 8)), jagged((2, heads, 8), (4, heads, 8), seed=1)
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(2, 4, generator=generator) > 0.4
    bias = torch.randn(5, 2, heads, 4, generator=generator, dtype=torch.float64)
    slopes = torch.rand(4, generator=generator, dtype=torch.float64)
    axes = "i b g j" if heads == 2 else "i b h j"
    options = {"mask": ("b j", mask), "bias": (axes, bias), "alibi_slopes": ("h", slopes)}
    pattern = "b i h d, b j g d, b j g e -> b i h e" if heads == 2 else "b i h d, b j h d, b j h e -> b i h e"
    found = attention(pattern, q, k, k, **options)
    for at, (own, q_part, k_part) in enumerate(zip(found.unbind(), q.unbind(), k.unbind(), strict=True)):
        q_len, kv_len = len(q_part), len(k_part)
        options["mask"] = "b j", mask[at : at + 1, :kv_len]
        options["bias"] = options["bias"][0], bias[:q_len, at : at + 1, :, :kv_len]
        torch.testing.assert_close(own, attention(pattern, q_part[None], k_part[None], k_part[None], **options)[0])


def test_nested_tensors_that_do_not_fit():
    one = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    other = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(3, 4)], layout=torch.jagged)
    with pytest.raises(OperandError, match="k isn't"):
        attention("b i d, b j d, b j e -> b i e", one, torch.ones(2, 3, 4), one)
    with pytest.raises(OperandError, match="q isn't"):
        attention("b i d, b j d, b j e -> b i e", torch.ones(2, 3, 4), one, one)
    with pytest.raises(RuntimeError, match="of k and of v have different lengths"):
        attention("b i d, b j d, b j e -> b i e", one, one, other)
    with pytest.raises(RuntimeError, match="the jagged axis of q is 'd'"):
        attention("b d i, b j d, b j e -> b i e", one, one, one)


def test_nested_tensors_of_no_sequences():
    nothing = torch.nested.nested_tensor_from_jagged(torch.zeros(0, 2, 4), torch.zeros(1, dtype=torch.int64))
    assert attention(nothing, nothing, nothing, layout="bshd").values().shape == (0, 2, 4)


@pytest.mark.parametrize("transposed", [False, True])
def test_second_derivatives(transposed):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(length, 2, 4, generator=generator, dtype=torch.float64) for length in (3, 1, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    leaves = [part.clone().requires_grad_() for part in parts]

    def ours():
        if transposed:
            q = nested.transpose(1, 2)
            return attention(q, q, q, layout="bhsd", causal=True).transpose(1, 2).values()
        return attention(nested, nested, nested, layout="bshd", causal=True).values()

    def each():
        return torch.cat([attention(part, part, part, layout="shd", causal=True) for part in leaves])

    def twice(call, inputs, values):
        first = torch.autograd.grad(call().sin().sum(), inputs, create_graph=True)
        return values(torch.autograd.grad(values(first).square().sum(), inputs))

    found = twice(ours, [nested], lambda grads: grads[0].values())
    torch.testing.assert_close(found, twice(each, leaves, torch.cat))


def nested(*shape: int) -> Any:
    parts = [randn(length, *shape, seed=length) for length in (3, 6)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=DEVICE, requires_grad=True)


CASES: dict[str, Any] = {
    "layout": lambda x: attention(x, x, x, layout="bshd", causal=True),
    "packed": lambda x: attention(x.unsqueeze(2).expand(-1, -1, 3, -1, -1).contiguous(), layout="bs3hd"),
    "mask": lambda x: attention(x, x, x, layout="bshd", mask=("b h", torch.eye(2, device=DEVICE) > 0)),
    "drop-in": lambda x: scaled_dot_product_attention(*[x.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2),
}


def test_keys_and_values_that_have_lengths_of_their_own() -> None:
    """Which are compared when the graph runs: nobody knows them before."""
    x = nested(2, 8)
    ends = x.offsets()

    def like_x(ends: Any) -> Any:
        return torch.nested.nested_tensor_from_jagged(x.values().detach(), ends, min_seqlen=3, max_seqlen=6)

    compiled = whole(lambda q, k, v: attention(q, k, v, layout="bshd"))
    with whole_calls(), attention_backend("triton"):
        found = compiled(x.detach(), like_x(ends.clone()), like_x(ends.clone()))
        torch.testing.assert_close(found.values(), attention(*[x.detach()] * 3, layout="bshd").values())
        if DEVICE == "cpu":  # on a GPU, the device would be lost
            with pytest.raises(RuntimeError, match="k and of v have different lengths"):
                compiled(x.detach(), like_x(ends.clone()), like_x(ends + torch.tensor([0, 1, 0])))


@pytest.mark.parametrize("name", CASES)
def test_compiles_whole(name: str) -> None:
    x = nested(2, 8)
    with whole_calls(), attention_backend("triton"):
        found, expected = whole(CASES[name])(x), CASES[name](x)
        assert found.is_nested
        gradients = [torch.autograd.grad(each.values().square().sum(), x)[0] for each in (found, expected)]
    torch.testing.assert_close(found.values(), expected.values())
    torch.testing.assert_close(gradients[0].values(), gradients[1].values())


PAIR = contract_expression("bij,bjk->bik", (2, 3, 3), (2, 3, 3))
ROWS = "b i d, b j d, b j e -> b i e"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("lengths", [1, 6])
@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda a, b: fast_einsum("bij,bjk->bik", a, b), 2),
        (lambda a: fast_einsum("bij->jib", a), 1),
        (lambda a, b, c: fast_einsum("bij,bjk,bkl->bil", a, b, c), 3),
        (PAIR, 2),
        (lambda q, k, v: attention(ROWS, q, k, v), 3),
        (scaled_dot_product_attention, 3),
        (lambda x: ops.softmax(x, -1), 1),
        (lambda x: ops.layer_norm(x, 3), 1),
        (lambda x, w: ops.linear(x, w[0]) if not w.is_nested else ops.linear(x, w), 2),
    ],
)
def test_a_tensor_without_sizes_is_refused_after_calls_on_others(call: Any, count: int, lengths: int) -> None:
    """What compares tensors with those of a kept plan is C++, where to ask such a tensor for its sizes ends all."""
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for size in range(2, 2 + lengths):
        for gradients in (False, True):
            for _ in range(3):
                call(*[torch.ones(2 if call is PAIR else size, 3, 3, requires_grad=gradients) for _ in range(count)])
    for first in range(count):
        operands = [nested if at >= first else torch.ones(2, 3, 3) for at in range(count)]
        with pytest.raises(OperandError, match="nested"):
            call(*operands)
    with patched("torch"):
        for _ in range(4):
            torch.einsum("bij,bjk->bik", torch.ones(2, 3, 3), torch.ones(2, 3, 3))
        with pytest.raises(RuntimeError):
            torch.einsum("bij,bjk->bik", torch.ones(2, 3, 3), nested)
