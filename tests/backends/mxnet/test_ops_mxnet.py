"""The operators and attention on MXNet's arrays, and NumPy's: gradients, every reduction, hybridized blocks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ops_problems import namespace, randn, targets
from optional_mxnet import mxnet_or_skip

from einops_fast import OperandError, attention, ops
from einops_fast.attention.memory import score_memory


@pytest.fixture
def mx() -> Any:
    namespace("mxnet")
    import mxnet

    return mxnet


def of_torch(function: Callable[..., Any], values: Sequence[Any], back: Any) -> list[Any]:
    """The result by torch, and the gradients."""
    tensors = [each.clone().requires_grad_() for each in values]
    found = function(*tensors)
    return [found.detach().numpy(), *[each.numpy() for each in torch.autograd.grad(found, tensors, back)]]


def of_mxnet(mx: Any, function: Callable[..., Any], values: Sequence[Any], back: Any) -> list[Any]:
    """The same by MXNet's autograd."""
    arrays = [mx.np.array(each.numpy(), dtype="float64") for each in values]
    for each in arrays:
        each.attach_grad()
    with mx.autograd.record():
        found = function(*arrays)
    found.backward(mx.np.array(back.numpy(), dtype="float64"))
    return [found.asnumpy(), *[each.grad.asnumpy() for each in arrays]]


def check(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("function", [ops.layer_norm, ops.rms_norm])
def test_gradients_of_norms(function: Any, mx: Any) -> None:
    values = [randn(3, 5, 4).cpu() + 2, randn(5, seed=1).cpu(), randn(5, seed=2).cpu()]

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return function(x, weight=weight, bias=bias, eps=1e-5, dim=1)

    back = randn(3, 5, 4, seed=3).cpu()
    check(of_mxnet(mx, norm, values, back), of_torch(norm, values, back))


CASES: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1, "z_loss": 0.2}]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", CASES, ids=["plain", "smoothed, z"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, options: dict[str, Any], weighted: bool, mx: Any) -> None:
    x, target = randn(3, 5, 4).cpu(), targets(3, 4, classes=5).cpu()
    weight = randn(5, seed=1).abs().cpu() if weighted else None
    function = partial(ops.cross_entropy, dim=1, reduction=reduction, **options)
    back = randn(3, 4, seed=3).cpu() if reduction == "none" else torch.tensor(0.7, dtype=torch.float64)
    expected = of_torch(lambda x: function(x, target, weight), [x], back)
    by_numpy = function(x.numpy(), target.numpy(), None if weight is None else weight.numpy())
    np.testing.assert_allclose(by_numpy, expected[0], rtol=2e-5, atol=1e-6)
    own = mx.np.array(target.numpy(), dtype="int64")
    of_weight = None if weight is None else mx.np.array(weight.numpy(), dtype="float64")
    check(of_mxnet(mx, lambda x: function(x, own, of_weight), [x], back), expected)


BLOCKS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, target: ops.softmax(x),
    "masked": lambda x, target: ops.log_softmax(x, 1, mask=x > -1, temperature=2.0),
    "causal": lambda x, target: ops.softmax(x, causal=True),
    "layer norm": lambda x, target: ops.layer_norm(x),
    "rms norm": lambda x, target: ops.rms_norm(x, dim=1),
    "cross entropy": lambda x, target: ops.cross_entropy(x, target, dim=1, z_loss=0.1),
    "of rows": lambda x, target: ops.cross_entropy(x, target, dim=1, label_smoothing=0.1, reduction="none"),
}


@pytest.mark.filterwarnings("ignore:.*not used by any computation")
@pytest.mark.parametrize("name", BLOCKS)
def test_hybridized(name: str, mx: Any) -> None:
    function = BLOCKS[name]

    class Block(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, target: Any) -> Any:
            return function(x, target)

    block = Block()
    block.initialize()
    block.hybridize()
    for batch, classes, rows in ((3, 5, 4), (6, 5, 4), (2, 7, 9), (3, 1, 4)):  # a graph is for arrays of every size
        target = mx.np.array(targets(batch, rows, classes=classes).cpu().numpy(), dtype="int64")
        x = randn(batch, classes, rows).cpu()
        back = randn(*function(x.numpy(), target.asnumpy()).shape, seed=3).cpu()
        found = of_mxnet(mx, lambda x, target=target: block(x, target), [x], back)
        check(found, of_mxnet(mx, lambda x, target=target: function(x, target), [x], back))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_a_block_traced_without_elements(shape: tuple[int, int], mx: Any) -> None:
    class Block(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return ops.softmax(x, causal=True)

    block = Block()
    block.hybridize()
    if not shape[1]:
        with pytest.raises(OperandError, match=r"shape \(3, 0\), and has no largest element of none along axis 1"):
            block(mx.np.zeros(shape))
        return
    assert block(mx.np.zeros(shape)).shape == shape
    values = randn(4, 6).cpu().numpy()
    np.testing.assert_allclose(block(mx.np.array(values)).asnumpy(), ops.softmax(values, causal=True), rtol=1e-5)


GROUPS = "b i h d, b j g d, b j g e -> b i h e"
DEEP = "a b h i d, a b g j d, a b g j e -> a b h i e"
OF_DEEP = (2, 2, 4, 3, 5), (2, 2, 2, 7, 5), (2, 2, 2, 7, 6)
SHOWN = np.random.default_rng(1).random((2, 3, 7)) > 0.4
HIDDEN = np.array([[True] * 5, [False] * 5, [True] * 5])

# Pattern, shapes of q, k and v, those of further arrays that have gradients, further arrays, options.
Case = tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any]]
ATTENTION: dict[str, Case] = {
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


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("name", ATTENTION)
def test_results_and_gradients(name, memory, torch):
    mxnet = mxnet_or_skip()
    mnp, autograd = mxnet.np, mxnet.autograd
    pattern, shapes, learnt, further, options = ATTENTION[name]
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
