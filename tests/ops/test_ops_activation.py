"""dropout_bias_activation, bias_gelu and linear: kernels and torch's functions."""

import weakref
from typing import Any

import pytest
import torch
from ops_problems import DEVICE, LAYOUTS, assert_near, check, kernels, laid_out, leaf, randn

from einops_fast import ops
from einops_fast.backends.torch.ops.activation import activation_by_torch
from einops_fast.ops.checks import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_kernels(activation: str, dtype: str) -> None:
    x, bias = leaf(3 * randn(2, 5, 37, dtype=dtype)), leaf(randn(37, dtype=dtype, seed=1))
    check(
        lambda *given: ops.dropout_bias_activation(*given, activation),
        lambda *given: activation_by_torch(*given, activation),
        [x, bias],
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_float32_is_as_exact_as_torch(activation: str) -> None:
    """Also where a sigmoid is nearly 1, and its derivative next to nothing."""
    x = torch.linspace(-9, 9, 6001, dtype=torch.float64, device=DEVICE).float()

    def errors(function: Any) -> list[float]:
        exact, given = leaf(x.double()), leaf(x.clone())
        wanted = activation_by_torch(exact, None, activation)
        found = function(given, None, activation)
        (slope,), (wanted_slope,) = torch.autograd.grad(found.sum(), given), torch.autograd.grad(wanted.sum(), exact)
        return [float((a.double() - b).square().mean().sqrt()) for a, b in ((found, wanted), (slope, wanted_slope))]

    with kernels():
        ours = errors(ops.dropout_bias_activation)
    assert all(own <= 2 * theirs + 1e-9 for own, theirs in zip(ours, errors(activation_by_torch), strict=True))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_as_torch(activation: str) -> None:
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 2.0, -2.0]], device=DEVICE)
    ours, native = leaf(x.clone()), leaf(x.clone())
    with kernels():
        found = ops.dropout_bias_activation(ours, None, activation)
        found.sum().backward()
    expected = activation_by_torch(native, None, activation)
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, native.grad, equal_nan=True)
    if activation == "smelu":
        assert ours.grad[0, 1:].tolist() == [1, 0, 0.5, 0.5, 1, 0]
    if activation == "gelu":
        expected = expected.detach()
        expected[0, 1] = torch.inf  # on some CPUs it is NaN
    torch.testing.assert_close(found.detach(), expected.detach(), equal_nan=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_what_no_gradient_is_made_of_is_not_kept(p: float, compiled: bool) -> None:
    """Without an activation, the gradient is that of the result: torch's dropout keeps no input, either."""
    given, bias = leaf(randn(6, 20)), leaf(randn(20))

    def program(x: Any, bias: Any) -> Any:
        return ops.dropout_bias_activation(x, bias, "none", p)

    torch._dynamo.reset()
    function = torch.compile(program, backend="aot_eager") if compiled else program
    with kernels():
        x = given * 1
        result = function(x, bias)
        memory = weakref.ref(x)
        del x
        assert memory() is None, "the input is kept"
        result.sum().backward()
    kept = (result != 0).double() / (1 - p)
    assert_near(given.grad, kept)
    assert_near(bias.grad, kept.sum(0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_every_number_of_few_digits(activation: str, dtype: str) -> None:
    """Each result is one of the two nearest that there are; far out, where they are next to nothing, nearly."""
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(getattr(torch, dtype)).to(DEVICE)
    with kernels():
        found = ops.dropout_bias_activation(x, None, activation)
    assert bool(found[x.isnan()].isnan().all())
    assert float(found[x == torch.inf]) == torch.inf
    assert bool(found[x == -torch.inf].isnan())  # as by torch
    x, found = x[x.isfinite()].double(), found[x.isfinite()].double()
    expected = x * torch.special.log_ndtr(x).exp() if activation == "gelu" else activation_by_torch(x, None, activation)
    kind = torch.finfo(getattr(torch, dtype))
    step = (2.0 ** expected.abs().log2().floor() * kind.eps).clamp_min(kind.tiny * kind.eps)
    # The interpreter cuts bfloat16 off where a GPU rounds.
    most, next_to_nothing = (1.15 if DEVICE == "cpu" else 0.65, 1e-9) if dtype == "bfloat16" else (0.65, 0.0)
    within = (found - expected).abs() <= most * step + next_to_nothing
    assert bool((within | (found == expected)).all())


def test_dropout() -> None:
    x = leaf(laid_out(randn(40, 21) + 9, "reversed"))
    with kernels():
        found = ops.dropout_bias_activation(x, None, "silu", 0.25)
        (gradient,) = torch.autograd.grad(found.sum(), x)
        kept = (found != 0).double() / 0.75
        assert abs(float(kept.mean()) - 1) < 0.1
        assert_near(found, torch.nn.functional.silu(x) * kept)
        assert_near(gradient, torch.autograd.grad((torch.nn.functional.silu(x) * kept).sum(), x)[0])
        assert torch.equal(ops.dropout_bias_activation(x, p=0.5, training=False), x)
        assert not ops.dropout_bias_activation(x, p=1.0).any()


@pytest.mark.parametrize("columns", [20, 21])
def test_dropout_is_the_same_for_all_layouts_and_dtypes(columns: int) -> None:
    """Whether elements are drawn in fours or one by one."""
    ones = torch.ones(6, columns, device=DEVICE)
    found = []
    with kernels():
        for layout in LAYOUTS:
            for dtype in (torch.float32, torch.float16):
                torch.manual_seed(5)
                found.append(ops.dropout_bias_activation(laid_out(ones.to(dtype), layout), p=0.5) != 0)
        torch.manual_seed(5)
        _, summed = ops.dropout_add_layer_norm(ones, p=0.5)
    assert found[0].any()
    assert not found[0].all()
    assert all(torch.equal(each, found[0]) for each in (*found, summed != 0))


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_dropout_has_no_pattern(p: float) -> None:
    with kernels():
        kept = (ops.dropout_bias_activation(torch.ones(64, 256, device=DEVICE), p=p) != 0).double()
    spread = (p * (1 - p)) ** 0.5
    for axis in (0, 1):
        means = kept.mean(axis) - (1 - p)
        assert float(means.abs().max()) < 5 * spread / kept.shape[axis] ** 0.5
    # Neighbours, of one Philox and of two, aren't alike.
    for apart in (1, 2, 3, 4):
        alike = ((kept[:, apart:] - 1 + p) * (kept[:, :-apart] - 1 + p)).mean() / spread**2
        assert abs(float(alike)) < 5 / kept.numel() ** 0.5
