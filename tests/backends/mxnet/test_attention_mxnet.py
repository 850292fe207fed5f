"""Attention of MXNet's arrays, and its gradients, against torch's."""

from typing import Any

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip

from einops_fast import attention
from einops_fast.attention.memory import score_memory

GROUPS = "b i h d, b j g d, b j g e -> b i h e"
DEEP = "a b h i d, a b g j d, a b g j e -> a b h i e"
OF_DEEP = (2, 2, 4, 3, 5), (2, 2, 2, 7, 5), (2, 2, 2, 7, 6)
SHOWN = np.random.default_rng(1).random((2, 3, 7)) > 0.4
HIDDEN = np.array([[True] * 5, [False] * 5, [True] * 5])

# Pattern, shapes of q, k and v, those of further arrays that have gradients, further arrays, options.
Case = tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "many features": (
        GROUPS, ((2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 6)), {"sinks": ("h", (4,))},
        {"alibi_slopes": ("h", np.array([0.1, 0.2, 0.3, 0.4])), "mask": ("i j", HIDDEN)},
        {"causal": "bottom_right", "softcap": 3.0, "return_lse": True},
    ),
    "many axes": (DEEP, OF_DEEP, {"sinks": ("b h", (2, 4))}, {"mask": ("a i j", SHOWN)}, {"return_lse": True}),
    "no keys in a cache": (
        DEEP.replace("a b h i e", "i a b h e"), OF_DEEP, {"sinks": ("b h", (2, 4))},
        {"mask": ("a i j", SHOWN), "cache_seqlens": (None, np.array([0, 5], "int32"))}, {"return_lse": True},
    ),
    "no keys in a sequence": (
        DEEP, OF_DEEP, {"sinks": ("b h", (2, 4))},
        {"mask": ("a j", SHOWN[:, 0, :4]), "cu_seqlens_q": (None, np.array([0, 2, 2, 3], "int32")),
         "cu_seqlens_kv": (None, np.array([0, 0, 4, 7], "int32"))}, {"return_lse": True},
    ),
    **{
        f"{d} and {e} features": (
            GROUPS, ((2, 5, 4, d), (2, 3, 2, d), (2, 3, 2, e)), {"bias": ("i j", (5, 3)), "sinks": ("h", (4,))}, {},
            {"causal": True, "softcap": 2.0},
        )
        for d, e in ((0, 4), (4, 0), (0, 0))
    },
}  # fmt: skip


def test_an_empty_batch_with_a_cache():
    mnp = mxnet_or_skip().np
    q, k, lengths = mnp.ones((0, 2, 3)), mnp.ones((0, 4, 3)), mnp.array(np.zeros(0), dtype="int32")
    assert attention("b i d, b j d, b j e -> b i e", q, k, k, cache_seqlens=lengths).shape == (0, 2, 3)


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, memory, torch):
    mxnet = mxnet_or_skip()
    mnp, autograd = mxnet.np, mxnet.autograd
    pattern, shapes, learnt, further, options = CASES[name]
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(shape) for shape in (*shapes, *[shape for _, shape in learnt.values()])]

    def call(array_of, q, k, v, *others):
        named = {key: (axes, each) for (key, (axes, _)), each in zip(learnt.items(), others, strict=True)}
        for key, (axes, values) in further.items():
            named[key] = array_of(values) if axes is None or key == "alibi_slopes" else (axes, array_of(values))
        found = attention(pattern, q, k, v, **named, **options)
        return found if isinstance(found, tuple) else (found,)

    tensors = [torch.tensor(each, requires_grad=True) for each in given]
    expected = call(torch.tensor, *tensors)
    factors = [np.where(each.detach().isfinite(), generator.standard_normal(each.shape), 0) for each in expected]
    finite = [torch.where(each.isfinite(), each, 0.0) for each in expected]
    sum((each * torch.tensor(by)).sum() for each, by in zip(finite, factors, strict=True)).backward()
    arrays = [mnp.array(each, dtype="float64") for each in given]
    for _ in range(2):
        for each in arrays:
            each.attach_grad()
            each.grad[()] = np.nan  # what lies there is no gradient
        with score_memory(memory), autograd.record():
            found = call(lambda values: mnp.array(values, dtype=values.dtype), *arrays)
            total = sum((each * mnp.array(by, dtype="float64")).sum() for each, by in zip(found, factors, strict=True))
        total.backward()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), rtol=1e-10, atol=1e-12)
        for own, other in zip(arrays, tensors, strict=True):
            wanted = np.zeros(other.shape) if other.grad is None else other.grad.numpy()
            np.testing.assert_allclose(own.grad.asnumpy(), wanted, rtol=1e-10, atol=1e-12)
