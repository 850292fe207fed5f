"""Attention on torch tensors: derivatives, memory, torch's own function, tracing, autocast, modules."""

import inspect
import re

import numpy as np
import pytest
import torch
from nested_tensors import jagged
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as native
from torch.utils._python_dispatch import TorchDispatchMode
from torch_operands import whole

from einops_fast import (
    EinsumError,
    OperandError,
    ShapeError,
    attention,
    attention_backend,
    patch,
    patched,
    scaled_dot_product_attention,
    unpatch,
)
from einops_fast.attention import replacement, torch_state
from einops_fast.attention.memory import score_memory

PATTERN = "b i h d, b j g d, b j g e -> b i h e"


def leaves(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def check_same(ours, theirs, operands):
    """The results are close, and the gradients of their sums."""
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(each.sum(), operands) for each in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


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


def test_gradient_of_sinks():
    q, k, v = leaves((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    (sinks,) = leaves((2,))
    found, lse = attention(q, k, v, layout="bhsd", sinks=sinks, return_lse=True)
    scores = torch.cat([torch.einsum("bhid,bhjd->bhij", q, k) / 2, sinks.view(1, 2, 1, 1).expand(1, 2, 3, 1)], -1)
    expected = torch.softmax(scores, -1)[..., :-1] @ v
    for ours, theirs in ((found, expected), (lse, torch.logsumexp(scores, -1))):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        (ours_grad,) = torch.autograd.grad(ours.sum(), sinks, retain_graph=True)
        (theirs_grad,) = torch.autograd.grad(theirs.sum(), sinks, retain_graph=True)
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-5, atol=1e-6)


def test_rows_without_keys_have_no_gradients():
    q, k, v, bias = leaves((2, 4, 2, 3), (2, 5, 2, 3), (2, 5, 2, 3), (4, 5))
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1] = True
    for name in ("math", "cpu"):
        with attention_backend(name):
            found = attention(q, k, v, layout="bshd", mask=mask, bias=bias)
        assert not found[:, [0, 2, 3]].any()
        gradients = torch.autograd.grad(found.square().sum(), [q, k, v, bias])
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not gradients[0][:, [0, 2, 3]].any()
        assert not gradients[3][[0, 2, 3]].any()
        assert gradients[0][:, 1].any()


def test_packed_sequences_have_gradients():
    q, k, v = leaves((6, 2, 3), (7, 1, 3), (7, 1, 2))
    ends = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 4, 7])
    assert gradcheck(
        lambda q, k, v: attention(q, k, v, layout="thd", cu_seqlens_q=ends[0], cu_seqlens_kv=ends[1], causal=True),
        (q, k, v),
    )


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


def test_checkpointing():
    q, k, v = leaves((2, 5, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4))

    def function(q, k, v):
        return attention(q, k, v, layout="bshd", causal=True)

    checkpointed = torch.utils.checkpoint.checkpoint(function, q, k, v, use_reentrant=False)
    found = (torch.autograd.grad(each.square().sum(), [q, k, v]) for each in (checkpointed, function(q, k, v)))
    torch.testing.assert_close(*found)


def test_slopes_have_no_gradient_and_that_is_said():
    q, slopes = leaves((1, 2, 3, 4), (2,))
    with pytest.raises(OperandError, match="alibi_slopes have no gradient"):
        attention(q, q, q, layout="bhsd", alibi_slopes=slopes)


# ---- torch's own function

SHAPES = [
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
    ((5, 8), (7, 8), (7, 8)),
    ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
    ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)),
    ((1, 3, 5, 8), (2, 1, 7, 8), (2, 3, 7, 8)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "bias", "scale"])
def test_drop_in_is_torch_s_function(shapes, case):
    q, k, v = leaves(*shapes, dtype=torch.float32)
    options = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.3},
        "bias": {"attn_mask": torch.linspace(-1, 1, 35).view(5, 7)},
        "scale": {"scale": 0.3},
    }[case]
    check_same(scaled_dot_product_attention(q, k, v, **options), native(q, k, v, **options), [q, k, v])


def test_drop_in_shares_heads_only_when_asked_to():
    q, k, v = leaves((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    ours = scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True)
    torch.testing.assert_close(ours, native(q, k, v, enable_gqa=True, is_causal=True))
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(q, k, v)
    with pytest.raises(RuntimeError, match=r"isn't a multiple|has size"):
        scaled_dot_product_attention(q, torch.cat([k, k[:, :1]], 1), v, enable_gqa=True)


@pytest.mark.parametrize("heads", [(3, 2), (3, 6), (6, 1), (2, 6)])
def test_drop_in_has_keys_and_values_of_other_heads(heads):
    q, k, v = leaves((2, 6, 5, 8), (2, heads[0], 7, 8), (2, heads[1], 7, 4), dtype=torch.float32)
    ours, theirs = (each(q, k, v, enable_gqa=True) for each in (scaled_dot_product_attention, native))
    check_same(ours, theirs, [q, k, v])
    arrays = [each.detach().numpy() for each in (q, k, v)]
    np.testing.assert_allclose(
        scaled_dot_product_attention(*arrays, enable_gqa=True), theirs.detach(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["mask", "bias", "heads"])
def test_drop_in_is_causal_beside_a_mask(kind):
    q, k, v = leaves((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), dtype=torch.float32)
    mask = torch.rand((4, 5, 7) if kind == "heads" else (5, 7), generator=torch.Generator().manual_seed(1))
    options = {"is_causal": True, "enable_gqa": True, "attn_mask": mask if kind == "bias" else mask > 0.3}
    ours = scaled_dot_product_attention(q, k, v, **options)
    if kind == "heads":  # torch's unfused way has no such mask beside causality
        seen = torch.ones(5, 7, dtype=torch.bool).tril()
        options |= {"is_causal": False, "attn_mask": options["attn_mask"] & seen}
    check_same(ours, native(q, k, v, **options), [q, k, v])


def test_drop_in_that_drops_everything():
    q, k, v = leaves((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    found = scaled_dot_product_attention(q, k, v, dropout_p=1.0)
    assert torch.equal(found, native(q, k, v, dropout_p=1.0))
    assert not any(each.any() for each in torch.autograd.grad(found.sum(), [q, k, v]))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("query", [[[1.0]]], "query is of type list"),
        ("key", None, "key is of type NoneType"),
        ("attn_mask", [[True]], "attn_mask is of type list"),
        ("attn_mask", torch.ones(1, 1, dtype=torch.int64), "attn_mask has dtype int64"),
        ("is_causal", "bottom_right", "is_causal is True or False"),
        ("is_causal", torch.tensor([True, False]), "is_causal is True or False"),
        ("scale", "x", "scale is a number"),
    ],
)
def test_drop_in_says_what_is_of_a_wrong_type(name, value, message):
    given = dict.fromkeys(("query", "key", "value"), torch.ones(1, 1, 1)) | {name: value}
    with pytest.raises(EinsumError, match=message):
        scaled_dot_product_attention(**given)


def test_drop_in_has_the_arguments_of_torch_s_function():
    ours = inspect.signature(scaled_dot_product_attention).parameters
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(ours) == names
    assert [ours[name].default for name in names[3:]] == [None, 0.0, False, None, False]


def test_a_call_on_a_cpu_is_torch_s_own():
    q, k, v = (each.detach() for each in leaves((2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 8), dtype=torch.float32))
    theirs = native(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True).transpose(1, 2)
    assert torch.equal(attention(q, k, v, layout="bshd", causal=True), theirs)
    torch.manual_seed(0)
    dropped = native(*(each.transpose(1, 2) for each in (q, k, v)), dropout_p=0.5).transpose(1, 2)
    torch.manual_seed(0)
    assert torch.equal(attention(q, k, v, layout="bshd", dropout_p=0.5), dropped)


class Seeing(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_patch(monkeypatch):
    function = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (each.detach() for each in leaves((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)))
    expected, causal = function(q, k, v), function(q, k, v, is_causal=True)
    with patched("torch.sdpa"):
        assert torch.equal(function(q, k, v), expected)  # a CPU: torch's own
    calls = []
    monkeypatch.setattr(torch_state, "on_cuda", lambda tensor: calls.append(tensor) or True)
    monkeypatch.setattr(replacement, "CUDA_KEYS", ("AutogradCPU", "CPU"))
    with patched("torch.sdpa"):
        assert torch.nn.functional.scaled_dot_product_attention is function
        torch.testing.assert_close(function(q, k, v, is_causal=True), causal)
        assert len(calls) == 3
        with pytest.raises(RuntimeError, match="size"):  # torch's own error
            function(q, k[..., :4], v)
        for backend in ("eager", "aot_eager"):
            torch.testing.assert_close(torch.compile(function, fullgraph=True, backend=backend)(q, k, v), expected)
        with torch.inference_mode():
            torch.testing.assert_close(function(q, k, v), expected)
        torch.testing.assert_close(torch.func.vmap(function)(q, k, v), expected)
        seen = []
        with Seeing(seen):
            function(q, k, v)
        assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in seen
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.testing.assert_close(function(q, k, v), expected)
        x = q.requires_grad_()
        (ours,) = torch.autograd.grad(function(x, k, v).sum(), x)
    calls.clear()
    torch.testing.assert_close(ours, torch.autograd.grad(function(x, k, v).sum(), x)[0])
    patch("torch")
    function(q, k, v)
    unpatch("torch")
    patch("torch.sdpa")
    unpatch("torch.sdpa")
    function(q, k, v)
    assert not calls


@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("lengths", [(4, 4), (4, 6), (6, 4)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_causal_bias_of_torch(make, lengths):
    bias = make(*lengths)
    q, k = torch.rand(2, 3, lengths[0], 8), torch.rand(2, 3, lengths[1], 8)
    expected = native(q, k, k, attn_mask=bias).nan_to_num()  # of queries without keys
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, attn_mask=bias), expected)
    with patched("torch.sdpa"):
        found = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=bias)
    torch.testing.assert_close(found.nan_to_num(), expected)


def test_causal_bias_of_torch_that_does_not_fit():
    bias, q = causal_upper_left(4, 6), torch.rand(1, 5, 8)
    with pytest.raises(ShapeError, match="of 4 queries and 6 keys, but query has 5 and key has 5"):
        scaled_dot_product_attention(q, q, q, attn_mask=bias)
    with pytest.raises(OperandError, match="is_causal"):
        scaled_dot_product_attention(q[:, :4], torch.rand(1, 6, 8), torch.rand(1, 6, 8), attn_mask=bias, is_causal=True)
    for given in (bias, ("i j", bias)):
        with pytest.raises(OperandError, match="give causal='top_left'"):
            attention("b i d, b j d, b j e -> b i e", q, q, q, mask=given)


# ---- tracing

TRACED = {
    "pattern": lambda q, k, v: attention(PATTERN, q, k, v, causal=True),
    "layout": lambda q, k, v: attention(q, k, v, layout="bshd"),
    "modifiers": lambda q, k, v: attention(
        PATTERN, q, k, v, bias=("h", torch.ones(4, dtype=q.dtype)), softcap=2.0, window=(2, None), return_lse=True
    ),
    "cache": lambda q, k, v: attention(PATTERN, q, k, v, cache_seqlens=torch.tensor([3, 6]), causal=True),
    "drop-in": lambda q, k, v: scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True
    ),
}


def test_compiles_whole_for_any_sizes():
    compiled = whole(TRACED["pattern"], "eager", dynamic=True)
    for kv_len in (7, 9):
        operands = leaves((2, 5, 4, 8), (2, kv_len, 2, 8), (2, kv_len, 2, 6))
        torch.testing.assert_close(compiled(*operands), TRACED["pattern"](*operands))


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


def test_compiles_where_results_have_to_be_deterministic():
    operands = leaves((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6))
    compiled = whole(TRACED["pattern"])
    try:
        torch.use_deterministic_algorithms(True)
        torch.testing.assert_close(compiled(*operands), TRACED["pattern"](*operands))
    finally:
        torch.use_deterministic_algorithms(False)


def test_exports():
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(PATTERN, q, k, v, causal=True)

    operands = [each.detach() for each in leaves((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6))]
    exported = torch.export.export(Block(), tuple(operands)).module()
    torch.testing.assert_close(exported(*operands), Block()(*operands))


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
