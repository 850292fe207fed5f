"""Attention of MXNet's arrays, and its gradients, against NumPy's and torch's."""

import numpy as np
import pytest
from attention_reference import naive
from optional_mxnet import mxnet_or_skip

from einops_fast import attention
from einops_fast.attention.memory import score_memory


def test_results_and_gradients():
    mxnet = mxnet_or_skip()
    mnp, autograd = mxnet.np, mxnet.autograd
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(shape).astype("f") for shape in ((2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 6)))
    slopes, sinks, mask = np.array([0.1, 0.2, 0.3, 0.4], "f"), np.ones(4, "f"), np.ones((3, 5), bool)
    mask[1] = False
    expected, lse = naive(
        *(each.transpose(0, 2, 1, 3) for each in (q, k, v)),
        causal=True, alignment="bottom_right", slopes=slopes, sinks=sinks, mask=mask, softcap=3.0,
    )  # fmt: skip
    arrays = [mnp.array(each) for each in (q, k, v)]
    arrays[2].attach_grad()
    for memory in (1, 1 << 30):
        with score_memory(memory), autograd.record():
            found, found_lse = attention(
                "b i h d, b j g d, b j g e -> b i h e", *arrays, causal="bottom_right", alibi_slopes=mnp.array(slopes),
                sinks=mnp.array(sinks), mask=mnp.array(mask, dtype="bool"), softcap=3.0, return_lse=True,
            )  # fmt: skip
            total = found.sum()
        total.backward()
        np.testing.assert_allclose(found.asnumpy(), expected.transpose(0, 2, 1, 3), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found_lse.asnumpy(), lse.transpose(0, 2, 1), rtol=1e-5, atol=1e-6)
        # Linear in v: the gradient has to give the result again.
        np.testing.assert_allclose((arrays[2].grad * arrays[2]).sum().item(), float(expected.sum()), rtol=1e-4)


def test_an_empty_batch_with_a_cache():
    mnp = mxnet_or_skip().np
    q, k, lengths = mnp.ones((0, 2, 3)), mnp.ones((0, 4, 3)), mnp.array(np.zeros(0), dtype="int32")
    assert attention("b i d, b j d, b j e -> b i e", q, k, k, cache_seqlens=lengths).shape == (0, 2, 3)


def test_many_axes_and_no_keys():
    mxnet = mxnet_or_skip()
    mnp, autograd = mxnet.np, mxnet.autograd
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal(shape) for shape in ((2, 2, 4, 3, 5), (2, 2, 2, 7, 5), (2, 2, 2, 7, 6)))
    mask, sinks = generator.random((2, 3, 7)) > 0.4, generator.standard_normal((2, 4))
    calls = (
        ("a b h i d, a b g j d, a b g j e -> a b h i e", {}, "a i j"),
        ("a b h i d, a b g j d, a b g j e -> i a b h e", {"cache_seqlens": np.array([0, 5], "int32")}, "a i j"),
        ("a b h i d, a b g j d, a b g j e -> a b h i e", {"cu_seqlens_q": np.array([0, 2, 2, 3], "int32"),
         "cu_seqlens_kv": np.array([0, 0, 4, 7], "int32")}, "a j"),
    )  # fmt: skip
    for pattern, options, axes in calls:
        shown = mask[:, 0, :4] if axes == "a j" else mask
        expected = attention(pattern, q, k, v, mask=(axes, shown), sinks=("b h", sinks), return_lse=True, **options)
        arrays = [mnp.array(each, dtype="float64") for each in (q, k, v, sinks)]
        for each in arrays:
            each.attach_grad()
        lengths = {name: mnp.array(value, dtype="int32") for name, value in options.items()}
        with autograd.record():
            found = attention(
                pattern, *arrays[:3], mask=(axes, mnp.array(shown, dtype="bool")), sinks=("b h", arrays[3]),
                return_lse=True, **lengths,
            )  # fmt: skip
            total = found[0].sum()
        total.backward()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.asnumpy(), other, rtol=1e-10, atol=1e-12)
        # Linear in v, and without keys there is nothing to learn: all other gradients are finite, not what lay there.
        np.testing.assert_allclose((arrays[2].grad * arrays[2]).sum().item(), float(expected[0].sum()), rtol=1e-9)
        assert all(abs(each.grad.asnumpy()).max() < 1e2 for each in arrays)


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("features", [(0, 4), (4, 0), (0, 0)])
def test_no_features(features, memory, torch):
    mxnet = mxnet_or_skip()
    mnp, autograd = mxnet.np, mxnet.autograd
    generator = np.random.default_rng(0)
    d, e = features
    shapes = (2, 5, 4, d), (2, 3, 2, d), (2, 3, 2, e), (5, 3), (4,)
    given = [generator.standard_normal(shape) for shape in shapes]
    factor = generator.standard_normal((2, 5, 4, e))

    def call(q, k, v, bias, sinks):
        pattern = "b i h d, b j g d, b j g e -> b i h e"
        return attention(pattern, q, k, v, bias=("i j", bias), sinks=("h", sinks), causal=True, softcap=2.0)

    tensors = [torch.tensor(each, requires_grad=True) for each in given]
    expected = call(*tensors)
    (expected * torch.from_numpy(factor)).sum().backward()
    arrays = [mnp.array(each, dtype="float64") for each in given]
    for _ in range(2):
        for each in arrays:
            each.attach_grad()
            each.grad[()] = np.nan  # what lies there is no gradient
        with score_memory(memory), autograd.record():
            found = call(*arrays)
            total = (found * mnp.array(factor, dtype="float64")).sum()
        total.backward()
        np.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), rtol=1e-12)
        for own, other in zip(arrays, tensors, strict=True):
            wanted = np.zeros(other.shape) if other.grad is None else other.grad.numpy()
            np.testing.assert_allclose(own.grad.asnumpy(), wanted, rtol=1e-10, atol=1e-12)
