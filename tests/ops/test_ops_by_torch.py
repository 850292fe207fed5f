"""What torch's tensors get where there are no kernels: torch's functions, rounded once, and nothing in empty rows."""

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from ops_problems import LAYOUTS, gradients, laid_out, leaf, randn

from einops_fast import ops
from einops_fast.backends.torch.ops import softmax as torch_softmax
from einops_fast.ops.checks import ACTIVATIONS

HALVES = ("float16", "bfloat16")


def shown(rows: bool) -> Any:
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1], mask[2, 3] = not rows, False
    return mask


MASKS: dict[str, Any] = {
    "no empty row": {"mask": shown(False)},
    "an empty row": {"mask": shown(True)},
    "of rows": {"mask": torch.tensor([True, False, True, True])[:, None]},
    "added": {"mask": torch.zeros(4, 6).masked_fill(~shown(True), -torch.inf), "temperature": 0.5},
    "more rows than columns": {"causal": "bottom_right", "dim": 0},
    "causal": {"causal": True, "mask": shown(True)},
}


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_that_are_looked_at_or_not(function: Any, name: str, dtype: str) -> None:
    """Where values may be looked at, empty rows are made good afterwards; else always, with the same results."""
    x = randn(4, 6, dtype=dtype).cpu()
    x[0, 1], x[2], x[3, 2] = -torch.inf, -torch.inf, torch.nan
    function = partial(function, **MASKS[name])
    found = gradients(function, [leaf(x)])
    with torch.no_grad():
        plain = function(x)
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")(x)
    with mock.patch.object(torch_softmax, "may_read_values", return_value=False):
        expected = gradients(function, [leaf(x)])
    for got, wanted in zip([*found, plain, compiled], [*expected, expected[0], expected[0]], strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
    assert not function(randn(4, 6, dtype=dtype).cpu()).isnan().any()


def added(dtype: str = "float32") -> Any:
    return randn(4, 6, dtype=dtype, seed=4).cpu().masked_fill(~shown(True), -torch.inf)


OPTIONS: dict[str, dict[str, Any]] = {
    **MASKS,
    "of columns": {"mask": torch.tensor([True, False, True, True, False, True]), "temperature": 0.7},
    "added, in few digits": {"mask": added("bfloat16"), "temperature": 2.0},
    "added, in more digits": {"mask": added("float64")},
    "causal, added": {"causal": "bottom_right", "mask": added()},
    "other dtype": {"dtype": torch.float32, "mask": shown(True)},
}


@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
def test_masks_of_large_tensors(option: str, dtype: str, function: Any) -> None:
    """They give the bits of those of small ones, also beside NaN and infinities, in every layout."""
    values, function = randn(3, 4, 6, dtype=dtype).cpu(), partial(function, **{"dim": 2, **OPTIONS[option]})
    strange = values.clone()
    strange[0, 0, 1], strange[0, 2], strange[1, 3, 2], strange[2, 3, 3] = torch.inf, -torch.inf, torch.nan, -torch.inf
    for x in (strange, *[laid_out(values, layout) for layout in LAYOUTS]):
        small = gradients(function, [leaf(x)])
        with mock.patch.object(torch_softmax, "_LARGE", 0):
            found = gradients(function, [leaf(x)])
        torch.testing.assert_close(found, small, rtol=0.0, atol=0.0, equal_nan=True)
        assert [each.stride() for each in found] == [each.stride() for each in small]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_logarithms_of_what_added_masks_hide_have_no_gradient(dtype: str) -> None:
    """Of large numbers, they have one."""
    for mask in (added(dtype), 1e4 * randn(4, 6, dtype=dtype).cpu()):
        x, back = leaf(randn(4, 6, dtype=dtype).cpu()), randn(4, 6, dtype=dtype, seed=5).cpu()
        (got,) = torch.autograd.grad(ops.log_softmax(x, mask=mask), x, back)
        score, hidden = (x + mask).detach().double(), mask == -torch.inf
        shares = score.softmax(-1).nan_to_num(0.0)
        wanted = back.double() - shares * back.double().masked_fill(hidden, 0).sum(-1, True)
        torch.testing.assert_close(got.double(), wanted.masked_fill(hidden, 0), rtol=2e-2, atol=4e-2)


def test_in_transforms() -> None:
    x, mask = randn(3, 4, 6).cpu(), torch.stack([shown(True), shown(False), shown(True)])
    found = torch.func.vmap(lambda x, mask: ops.softmax(x, mask=mask))(x, mask)
    torch.testing.assert_close(found, ops.softmax(x, mask=mask))
    _, tangent = torch.func.jvp(partial(ops.softmax, mask=mask), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, torch.zeros_like(x))
    bias = randn(3, 6).cpu().half()
    found = torch.func.vmap(ops.bias_gelu)(x.half(), bias)
    torch.testing.assert_close(found[1], ops.bias_gelu(x[1].half(), bias[1]))


BY_TORCH: dict[str, Any] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "squared_relu": lambda x: torch.relu(x) ** 2,
    "smelu": lambda x: torch.where(x <= -2, 0 * x, torch.where(x >= 2, x, (x + 2) ** 2 / 8)),
    "star_relu": lambda x: 0.8944 * torch.relu(x) ** 2 - 0.4472,
    "silu": torch.nn.functional.silu,
}


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation_have_the_bits_of_torchs_functions(activation: str, dtype: str) -> None:
    """And so do their gradients, and results that need none."""
    x, bias = leaf(3 * randn(50, 64, dtype=dtype).cpu()), leaf(randn(64, dtype=dtype, seed=1).cpu())
    back = randn(50, 64, dtype=dtype, seed=2).cpu()
    for given in (bias, None):
        found = ops.dropout_bias_activation(x, given, activation)
        expected = BY_TORCH[activation](x if given is None else x + given)
        assert torch.equal(found, expected)
        tensors = [x] if given is None else [x, given]
        for got, wanted in zip(
            torch.autograd.grad(found, tensors, back), torch.autograd.grad(expected, tensors, back), strict=True
        ):
            assert torch.equal(got, wanted)
        before = x.detach().clone()
        with torch.no_grad():
            assert torch.equal(ops.dropout_bias_activation(x, given, activation), found)
        assert torch.equal(x, before)
        if activation.startswith("gelu"):
            approximate = "tanh" if activation == "gelu_tanh" else "none"
            assert torch.equal(ops.bias_gelu(x, given, approximate=approximate), found)
