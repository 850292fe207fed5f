"""`scaled_dot_product_attention` and its patch: torch's function, arguments, masks and errors."""

import inspect

import numpy as np
import pytest
import torch
from attention_leaves import check_same, leaves
from torch.nn.functional import scaled_dot_product_attention as native
from torch.utils._python_dispatch import TorchDispatchMode

from einops_fast import (
    EinsumError,
    attention,
    patch,
    patched,
    scaled_dot_product_attention,
    unpatch,
)
from einops_fast.attention import replacement, torch_state

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
    assert [name for name, each in ours.items() if each.kind is not each.VAR_KEYWORD] == names
    assert [ours[name].default for name in names[3:]] == [None, 0.0, False, None, False]


def test_dropout_on_a_cpu_is_torch_s_own():
    q, k, v = (each.detach() for each in leaves((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=torch.float32))
    found = []
    for call in (lambda: attention(q, k, v, layout="bhsd", dropout_p=0.5), lambda: native(q, k, v, dropout_p=0.5)):
        torch.manual_seed(0)
        found.append(call())
    assert torch.equal(*found)


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
