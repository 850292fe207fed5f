"""softmax and log_softmax: the kernels, on a GPU or in Triton's interpreter, torch's functions and other frameworks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ops_problems import (
    DEVICE,
    as_numpy,
    assert_near,
    gradients,
    kernels,
    leaf,
    namespace,
    randn,
    tiled,
    where,
)

from einops_fast import OperandError, ops
from einops_fast.backends.triton.rows.rows import RowTiling
from einops_fast.backends.triton.rows.softmax import plan as softmax_plan

FUNCTIONS: list[Callable[..., Any]] = [ops.softmax, ops.log_softmax]

TILES: dict[str, RowTiling | None] = {
    "by torch": None,
    "whole": RowTiling(4, 32, True),
    "pieces": RowTiling(4, 8, True, pieces=4),
    "looped": RowTiling(4, 16, False),
    "split": RowTiling(4, 16, False, 2),
}


def oracle(
    function: Any, x: Any, dim: int = -1, mask: Any = None, causal: Any = False, temperature: float = 1.0
) -> Any:
    """By the definition, in the dtype of ``x``."""
    score = x / temperature
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    if causal:
        queries, length = x.shape[-2:]
        shift = length - queries if causal == "bottom_right" else 0
        seen = torch.ones(queries, length, dtype=torch.bool, device=x.device).tril(shift)
        score = score.masked_fill(~seen, -torch.inf)
    hidden = score == -torch.inf
    weights = torch.exp(score - score.amax(dim, keepdim=True).nan_to_num(neginf=0.0).detach())
    total = weights.sum(dim, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    if function is ops.softmax:
        return weights / total
    logs = score - score.amax(dim, keepdim=True).nan_to_num(neginf=0.0).detach() - torch.log(total)
    return torch.where(hidden, -torch.inf, torch.where(hidden, 0.0, logs))


@pytest.fixture(params=TILES)
def ways(request: pytest.FixtureRequest) -> Any:
    """A block in which torch's functions run, or kernels in one of their ways, on rows that blocks don't divide."""
    tiling = TILES[request.param]
    if tiling is None and DEVICE == "cuda":
        pytest.skip("there the kernels are called")
    with tiled(softmax_plan, row_tilings=[tiling]):
        yield where(tiling is not None)


def allowed(*shape: int) -> Any:
    mask = randn(*shape, seed=3) > 0.2
    mask[..., :1, :] = False  # a row without anything
    return mask


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "bool mask": {"mask": allowed(2, 3, 21)},
    "broadcast mask": {"mask": allowed(3, 1), "causal": True},
    "mask in another order": {"mask": allowed(21, 3).T},
    "added mask": {"mask": randn(2, 1, 21, seed=4)},
    "causal": {"causal": True},
    "last facing last": {"causal": "bottom_right", "temperature": 2.0},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=["softmax", "log"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(function: Any, option: str, ways: Any) -> None:
    options = OPTIONS[option]
    x = leaf(randn(2, 3, 21))
    with ways:
        result, gradient = gradients(lambda x: function(x, **options), [x])
    expected, wanted = gradients(lambda x: oracle(function, x, **options), [x])
    assert_near(result, expected)
    # A row without anything has no gradient; torch's is NaN or not, by how it is written.
    assert_near(gradient, wanted.nan_to_num() if option == "broadcast mask" else wanted)


@pytest.mark.parametrize("function", FUNCTIONS, ids=["softmax", "log"])
def test_nan_and_infinity_as_torch(function: Any, ways: Any) -> None:
    x = randn(6, 21, dtype="float32")
    inf = torch.inf
    x[0, 3], x[1, 20], x[2], x[3, 5], x[4, 0] = torch.nan, inf, -inf, -inf, -inf
    x[4, 1:] = 3e38
    with ways:
        found = function(x)
    native = torch.softmax(x, -1) if function is ops.softmax else torch.log_softmax(x, -1)
    torch.testing.assert_close(found, native, equal_nan=True)


LARGE: dict[str, dict[str, Any]] = {
    "bool mask": {"mask": randn(40, 30, 32) > 0},
    "broadcast mask": {"mask": randn(30, 1) > 0, "temperature": 2.0},
    "added mask": {"mask": randn(40, 1, 32)},
    "causal": {"causal": "bottom_right"},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=["softmax", "log"])
@pytest.mark.parametrize("option", LARGE)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_large_results_lie_as_the_input(function: Any, option: str, dim: int) -> None:
    """Also on a CPU, where torch's functions take C order."""
    for order in ((1, 0, 2), (1, 2, 0), (2, 1, 0)):
        x = randn(*[(40, 30, 32)[at] for at in order]).permute([order.index(at) for at in range(3)])
        found = gradients(lambda x: function(x, dim, **LARGE[option]), [leaf(x)])
        expected = gradients(lambda x: function(x, dim, **LARGE[option]), [leaf(x.contiguous())])
        assert_near(found, expected)
        assert found[0].stride() == x.stride()


def test_mask_gradient(ways: Any) -> None:
    x, mask = leaf(randn(3, 2, 21)), leaf(randn(2, 21, seed=2))  # of rows alone it would be 0
    with ways:
        found = gradients(lambda x, mask: ops.softmax(x, mask=mask, temperature=3.0), [x, mask])
    expected = gradients(lambda x, mask: oracle(ops.softmax, x, mask=mask, temperature=3.0), [x, mask])
    assert_near(found, expected)


def test_rows_of_nothing() -> None:
    x = torch.empty(3, 0, device=DEVICE, requires_grad=True)
    assert ops.log_softmax(x).shape == torch.autograd.grad(ops.softmax(x).sum(), x)[0].shape == (3, 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles(dynamic: bool) -> None:
    torch.compiler.reset()

    def function(x: Any, mask: Any) -> Any:
        return ops.softmax(x.mT, 1, mask=mask, causal="bottom_right") + ops.log_softmax(x.mT)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with kernels():
        for length in (6, 9):
            x, mask = leaf(randn(4, length)), randn(4, seed=1) > -9
            found = gradients(partial(compiled, mask=mask), [x])
            for got, wanted in zip(found, gradients(partial(function, mask=mask), [x]), strict=True):
                torch.testing.assert_close(got, wanted)


def test_compiles_with_a_mask_of_known_sizes_for_any_sizes() -> None:
    torch.compiler.reset()
    mask = torch.ones(8, 8, device=DEVICE).tril().bool()
    compiled = torch.compile(lambda x: ops.softmax(x, mask=mask), fullgraph=True, backend="aot_eager", dynamic=True)
    x = randn(2, 8, 8)
    torch.testing.assert_close(compiled(x), ops.softmax(x, mask=mask))


def as_array(xp: Any, value: Any) -> Any:
    return xp.array(value.cpu().numpy(), dtype=str(value.dtype).removeprefix("torch."))


@pytest.mark.parametrize("framework", ["numpy", "cupy", "mxnet"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=["softmax", "log"])
@pytest.mark.parametrize("option", OPTIONS)
def test_other_frameworks(framework: str, function: Any, option: str) -> None:
    xp = namespace(framework)
    options = OPTIONS[option]
    own = {name: as_array(xp, value) if torch.is_tensor(value) else value for name, value in options.items()}
    x = randn(2, 3, 21)
    found = as_numpy(function(xp.array(x.cpu().numpy().astype("float32")), **own))
    assert found.dtype == np.float32
    assert_near(torch.tensor(found, device=DEVICE), oracle(function, x, **options))


def test_names_and_numbers() -> None:
    x = np.ones((2, 3))
    np.testing.assert_allclose(ops.softmax(x, "i", pattern="ij").sum(0), 1)
    np.testing.assert_allclose(ops.softmax(x, "row", pattern="row column").sum(0), 1)
    assert ops.softmax(torch.tensor(2.0), mask=torch.tensor(False)) == 0


@pytest.mark.parametrize("framework", ["numpy", "cupy", "mxnet"])
def test_lowest_numbers_as_masks(framework: str) -> None:
    xp = namespace(framework)
    x, mask = (xp.array(each, dtype="float32") for each in (np.zeros((1, 3)), np.full(3, np.finfo("float32").min)))
    assert [round(float(each), 4) for each in ops.softmax(x, mask=mask)[0]] == [0.3333] * 3
    assert [round(float(each), 4) for each in ops.log_softmax(x, mask=mask)[0]] == [-1.0986] * 3


@pytest.mark.parametrize("by_kernels", [True, False])
def test_nan_beside_what_is_hidden(by_kernels: bool) -> None:
    x, mask = torch.tensor([[torch.nan, 1.0, 2.0]], device=DEVICE), torch.tensor([True, True, False], device=DEVICE)
    with where(by_kernels):
        assert ops.softmax(x, mask=mask).isnan().all()
        assert ops.log_softmax(x, mask=mask).isnan().all()
    assert np.isnan(ops.log_softmax(x.cpu().numpy(), mask=mask.cpu().numpy())).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", [ops.softmax, ops.log_softmax])
def test_jagged_tensors(function: Any, compiled: bool) -> None:
    """Masks that are jagged alike, and those that are broadcast, as of each part; what torch can't do is an error."""
    torch.compiler.reset()
    run = torch.compile(function, fullgraph=True, backend="eager") if compiled else function
    parts = [randn(2, 4), randn(3, 4)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    seen = randn(5, 4, seed=1) > 0
    seen[1] = False
    rows = torch.tensor([[[True, False, True, True]], [[False] * 4]], device=DEVICE)
    for mask, of_parts in (
        (rows[0, 0], (rows[0], rows[0])),
        (rows, rows),
        (torch.nested.nested_tensor_from_jagged(seen, x.offsets()), seen.split([2, 3])),
        (parts[0][0], (parts[0][0],) * 2),
        (None, (None, None)),
    ):
        x = x.detach().requires_grad_()
        found = run(x, mask=mask)
        if function is ops.softmax:  # the gradient of the other one is what torch hasn't
            leaves = [leaf(each) for each in parts]
            results = [function(part, mask=own) for part, own in zip(leaves, of_parts, strict=True)]
            back = randn(5, 4, seed=2)
            (gradient,) = torch.autograd.grad(found.values(), x, back)
            torch.testing.assert_close(
                gradient.values(), torch.cat(torch.autograd.grad(torch.cat(results), leaves, back))
            )
        for got, part, own in zip(found.unbind(), parts, of_parts, strict=True):
            torch.testing.assert_close(got, function(part, mask=own))
    for message, options in (
        ("axis 1 of the input has several lengths", {"dim": 1, "mask": rows}),
        ("causal needs rows of one length", {"causal": True}),
    ):
        with pytest.raises(RuntimeError if compiled else OperandError, match=message):
            run(x, **options)
