"""What holds of every operator along rows: by kernels in all layouts, operands of several dtypes, and autocast."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ops_cases import ALONG, CASES, ROWS, first_result, tensors_of
from ops_problems import DEVICE, LAYOUTS, assert_near, check, gradients, kernels, leaf, native_norm, randn, where

from einops_fast import attention, autotune, fast_einsum, ops, scaled_dot_product_attention
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import ANY_SIZE


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALONG)
def test_layouts(name: str, layout: str, dim: int) -> None:
    case = ALONG[name]
    sizes = 3, 18, 16 if dim == 1 else 5  # rows that go together, where neighbours are in different ones
    tensors = [leaf(each) for each in tensors_of(case.takes, *sizes, dtype="float32", layout=layout, dim=dim)]
    tensors[1:] = [leaf(torch.stack([each, each], -1)[:, 1]) for each in tensors[1:]]

    def native(x: Any, *others: Any) -> Any:
        found = _results(case.native(x.movedim(dim, -1), *others))
        return tuple([each.movedim(-1, dim) if each.dim() else each for each in found])

    found = check(partial(case.ours, dim=dim), native, tensors)
    if found[0].dim() == 3:  # nothing was copied into another order
        order = [sorted(range(3), key=lambda at: -each.stride(at)) for each in (tensors[0], found[0])]
        assert order[0] == order[1]


def _results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ROWS)
def test_precision(name: str, dtype: str) -> None:
    case = ROWS[name]
    check(case.ours, case.native, [leaf(each) for each in tensors_of(case.takes, 9, 200, dtype=dtype)])


@pytest.mark.parametrize("name", ROWS)
def test_expanded_and_empty(name: str) -> None:
    case = ROWS[name]
    x, *others = (leaf(each) for each in tensors_of(case.takes, 5, 7))
    check(case.ours, case.native, [leaf(x.detach()[:1].expand(5, 7)), *others])
    x = torch.empty(0, 7, dtype=torch.float64, device=DEVICE, requires_grad=True)
    with kernels(queued=False):
        results = _results(case.ours(x, *others))
    assert all(each.shape in ((), x.shape) for each in results)
    found = torch.autograd.grad(sum(each.sum() for each in results), [x, *others])
    assert not any(each.any() for each in found)


@pytest.mark.parametrize("name", CASES)
def test_functional_gradients(name: str) -> None:
    case = CASES[name]
    x, *others = tensors_of(case.takes, 6, 5)

    def cubes(function: Any, x: Any) -> Any:
        return first_result(function)(x, *others).pow(3).sum()

    with kernels(queued=False):  # torch follows its own functions alone
        found = torch.func.grad(partial(cubes, case.ours))(x)
    assert_near(found, torch.func.grad(partial(cubes, case.native))(x))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [*[((3, 5, 21), layout) for layout in LAYOUTS], ((2, 8, 24), "contiguous"), ((5, 3, 130), "contiguous")],
)
@pytest.mark.parametrize("name", ROWS)
def test_any_size(name: str, shape: tuple[int, ...], layout: str) -> None:
    """Also where tiles are longer than a row."""
    case = ROWS[name]
    tensors = [leaf(each) for each in tensors_of(case.takes, *shape, dtype="float32", layout=layout)]
    clear_plans()
    with autotune(ANY_SIZE):
        check(case.ours, case.native, tensors, factor=8.0, of_gradients=8.0)


TARGET = torch.arange(4, device=DEVICE)

HALF, WIDE = torch.bfloat16, torch.float32

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, vector: ops.softmax(x, mask=vector),
    "layer_norm": lambda x, vector: ops.layer_norm(x, weight=vector, bias=vector),
    "layer_norm with a bias": lambda x, vector: ops.layer_norm(x, bias=vector),
    "rms_norm": lambda x, vector: ops.rms_norm(x, weight=vector),
    "rms_norm with a bias": lambda x, vector: ops.rms_norm(x, bias=vector),
    "bias_gelu": ops.bias_gelu,
    "smelu": lambda x, vector: ops.dropout_bias_activation(x, vector, "smelu"),
    "cross_entropy": lambda x, vector: ops.cross_entropy(x, TARGET, weight=vector.detach().abs()),
    "z_loss": lambda x, vector: ops.cross_entropy(x, TARGET, weight=vector.detach().abs(), z_loss=0.1),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("dtypes", [(HALF, WIDE), (torch.float16, WIDE), (WIDE, HALF), (torch.float64, WIDE)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors_of_another_dtype(name: str, dtypes: tuple[Any, Any], by_kernels: bool) -> None:
    x, vector = (leaf(each.to(dtype)) for each, dtype in zip((randn(4, 9), randn(9, seed=1)), dtypes, strict=True))
    exact = [leaf(each.double()) for each in (x, vector)]
    with where(by_kernels):
        found = FUNCTIONS[name](x, vector)
        (gradient,) = torch.autograd.grad(found.sum(), x)
    assert found.dtype == gradient.dtype == x.dtype
    expected = FUNCTIONS[name](*exact)
    assert_near(found, expected, expected.to(x.dtype))
    wanted = torch.autograd.grad(expected.sum(), exact[0])[0]
    assert_near(gradient, wanted, wanted.to(x.dtype), 4.0)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize(("half", "wide"), [(HALF, WIDE), (torch.float16, WIDE), (torch.float16, torch.float64)])
def test_wider_residual(half: Any, wide: Any, rms: bool, by_kernels: bool) -> None:
    """The sum is as wide as that; so is the gradient that goes there.

    Triton's interpreter can't convert float64 to bfloat16.
    """
    x, weight, bias = (leaf(randn(*shape, seed=at).to(half)) for at, shape in enumerate(((7, 33), (33,), (33,))))
    tensors = [x, leaf(randn(7, 33, seed=3).to(wide)), weight, bias]
    exact = [leaf(each.double()) for each in tensors]
    with where(by_kernels):
        results = ops.dropout_add_layer_norm(*tensors, rms=rms)
        backs = [randn(7, 33, seed=at).to(each.dtype) for at, each in enumerate(results, 4)]
        found = [*results, *torch.autograd.grad(results, tensors, backs)]
    assert [each.dtype for each in found] == [half, wide, half, wide, half, half]
    summed = exact[0] + exact[1]
    right = [native_norm(rms, summed, *exact[2:]), summed]
    right += torch.autograd.grad(right, exact, [each.double() for each in backs])
    right = [each.detach() for each in right]
    for got, wanted in zip(found, right, strict=True):
        scale = 1 / max(float(wanted.abs().max()), 1.0)
        assert_near((got.double() * scale).to(got.dtype), wanted * scale, wanted * scale + 1e-6)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_autocast(name: str, dtype: str, by_kernels: bool) -> None:
    """Results are as wide as torch's on a GPU, gradients as their tensors, and errors no larger than torch's."""
    case = CASES[name]
    tensors = [leaf(each) for each in tensors_of(case.takes, 6, 8, dtype=dtype)]
    with torch.autocast(DEVICE, HALF):
        native = gradients(case.native, tensors)
        with where(by_kernels):
            found = gradients(case.ours, tensors)
    assert found[0].dtype == {"bias_gelu": tensors[0].dtype, "linear": HALF}.get(name, WIDE)
    assert [each.dtype for each in found[-len(tensors) :]] == [each.dtype for each in tensors]
    exact = gradients(case.native, [leaf(each.double()) for each in tensors], rounded=dtype)
    for got, wanted, theirs in zip(found, exact, native, strict=True):
        assert_near(got, wanted, theirs.to(got.dtype), 4.0)


@pytest.mark.parametrize("by_kernels", [True, False])
def test_all_dropped(by_kernels: bool) -> None:
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]], device=DEVICE)
    with where(by_kernels):
        found = ops.dropout_bias_activation(x, p=1.0)
        _, summed = ops.dropout_add_layer_norm(x, torch.ones_like(x), p=1.0)
        finite = leaf(torch.ones(2, 3, device=DEVICE))
        assert not torch.autograd.grad(ops.dropout_bias_activation(finite, p=1.0).sum(), finite)[0].any()
    assert not found.any()
    assert torch.equal(summed, torch.ones_like(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_of_the_other_byte_order(dtype: str) -> None:
    """They are worked on as those of the machine's own, which the result has."""

    def calls(x: Any, mask: Any, target: Any) -> list[Any]:
        return [
            ops.softmax(x, mask=mask),
            ops.log_softmax(x, causal=True),
            ops.layer_norm(x, weight=x[0], bias=x[1]),
            ops.rms_norm(x),
            ops.cross_entropy(x, target, weight=abs(x[0])),
            attention("i d, j d, j e -> i e", x, x, x, bias=mask),
            scaled_dot_product_attention(x, x, x, attn_mask=mask),
            fast_einsum("i j, k j -> i k", x, x),
        ]

    values, other = randn(6, 6).cpu().double().numpy().astype(dtype), np.dtype(dtype).newbyteorder()
    target = np.arange(6)
    expected = calls(values, values, target)
    for at, found in enumerate(calls(values.astype(other), values.astype(other), target.astype(">i8"))):
        assert found.dtype == expected[at].dtype
        np.testing.assert_array_equal(found, expected[at])
