"""cross_entropy: kernels, torch's functions, other frameworks."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ops_problems import (
    DEVICE,
    assert_near,
    check,
    kernels,
    leaf,
    namespace,
    randn,
    targets,
    tiled,
    where,
)
from ops_problems import cross_entropy as oracle

from einops_fast import EinsumError, ShapeError, ops
from einops_fast.backends.triton.rows.cross_entropy import plan as cross_entropy_plan
from einops_fast.backends.triton.rows.rows import RowTiling

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": randn(21, seed=1).abs()},
    "z": {"z_loss": 0.01},
    "everything": {"weight": randn(21, seed=1).abs(), "label_smoothing": 0.3, "z_loss": 0.1, "ignore_index": 3},
}


TILES: dict[str, RowTiling | None] = {
    "by torch": None,
    "whole": RowTiling(4, 32, True),
    "looped": RowTiling(2, 16, False),
    "cut": RowTiling(1, 8, False, 2),  # at addresses from which vectors can be read
}


@pytest.fixture(params=TILES)
def by_kernels(request: pytest.FixtureRequest) -> Any:
    """Whether kernels run, in one of their ways, or torch's functions."""
    tiling = TILES[request.param]
    if tiling is None and DEVICE == "cuda":
        pytest.skip("there the kernels are called")
    with tiled(cross_entropy_plan, loss_tilings=[tiling]):
        yield tiling is not None


def wanted(option: str, target: Any) -> Any:
    """Targets with the index that is ignored."""
    return target.masked_fill(target == -100, OPTIONS[option].get("ignore_index", -100))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dim", [1, -1])
def test_options(option: str, reduction: str, dim: int, by_kernels: bool) -> None:
    x, target = leaf(randn(3, 21, 4).movedim(1, dim)), wanted(option, targets(3, 4))
    options = {**OPTIONS[option], "target": target, "reduction": reduction, "dim": dim}
    check(partial(ops.cross_entropy, **options), partial(oracle, **options), [x], by_kernels)


@pytest.mark.parametrize("columns", [1, 2, 9, 16, 37])
def test_rows_of_any_length_from_any_address(columns: int) -> None:
    """Of which there may be no whole vector, or no edge."""
    wide = randn(5, columns + 6, dtype="float32")
    options: dict[str, Any] = {"target": targets(5, classes=columns), "reduction": "sum"}
    with tiled(cross_entropy_plan, loss_tilings=[TILES["cut"]]):
        for first in range(4):
            x = leaf(wide[:, first : first + columns])
            check(partial(ops.cross_entropy, **options), partial(oracle, **options), [x])


def test_long_rows_nan_and_no_class() -> None:
    x, target = randn(4, 50_257, dtype="float32"), torch.tensor([50_256, 3, 60_000, 0], device=DEVICE)
    x[1, 7], x[3, 0] = torch.nan, torch.inf
    with kernels():
        found = ops.cross_entropy(x, target, reduction="none")
        assert ops.cross_entropy(x, target.fill_(-100)).isnan()
        assert ops.cross_entropy(x, target, reduction="sum") == 0
    assert found.isnan().tolist() == [False, True, True, True]
    assert_near(found[0], oracle(x[:1].double(), torch.tensor([50_256], device=DEVICE)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
@pytest.mark.parametrize("weighted", [False, True])
def test_small_integers_are_classes_too(dtype: torch.dtype, weighted: bool) -> None:
    """Nothing that they are compared with wraps: 156 is -100 to 8 bits. Rows that aren't neighbours have no kernel."""
    x, target = randn(2, 300, 3, dtype="float32"), torch.tensor([[156, 3], [1, 0], [7, 9]], device=DEVICE).T
    weight = randn(300, seed=1, dtype="float32").abs() if weighted else None
    hidden, matrix = randn(2, 3, 8, dtype="float32"), randn(300, 8, dtype="float32", seed=2)

    def losses(target: Any) -> list[Any]:
        of_layer = ops.linear_cross_entropy(hidden, matrix, target, weight=weight, chunk=3)
        return [ops.cross_entropy(x, target, weight, dim=1, z_loss=0.01), of_layer]

    for by_kernels in (False, True):
        with where(by_kernels):
            torch.testing.assert_close(losses(target.to(dtype)), losses(target))


@pytest.mark.parametrize("option", ["plain", "everything"])
def test_gradient_over_the_logits(option: str) -> None:
    base, target = leaf(randn(3, 4, 21)), wanted(option, targets(3, 4))
    options = {**OPTIONS[option], "target": target, "reduction": "sum"}
    (expected,) = torch.autograd.grad(oracle(base, **options), base)
    with kernels():
        logits = base * 1
        loss = ops.cross_entropy(logits, inplace_backward=True, **options)
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert gradient.data_ptr() == logits.data_ptr()
        assert_near(gradient, expected)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, logits)


def test_gradient_over_logits_that_are_needed() -> None:
    base, target = leaf(randn(4, 9)), targets(4, classes=9)
    function = partial(ops.cross_entropy, target=target, inplace_backward=True)
    with kernels():
        bounded = base.tanh()  # which keeps its result
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(bounded).backward()
        with pytest.raises(EinsumError, match="can't be differentiated"):
            torch.autograd.grad(function(base * 1), base, create_graph=True)
        assert torch.equal(function(base.detach()), ops.cross_entropy(base.detach(), target))
    with pytest.raises(EinsumError, match="leaf"):
        function(base)
    with pytest.raises(EinsumError, match=r"axis 0 .* expanded"):
        function(base[:1].tanh().expand(4, 9))


@pytest.mark.parametrize("option", ["plain", "smoothed", "z"])
@pytest.mark.parametrize("framework", ["numpy", "cupy", "mxnet"])
def test_rows_that_do_not_count_and_infinities(framework: str, option: str) -> None:
    """What is in a row that doesn't count doesn't matter, nor does another class's score of -inf."""
    xp = namespace(framework)
    x, target = randn(4, 5).cpu(), torch.tensor([0, -100, -100, 3])
    x[1, 2], x[2] = torch.nan, -torch.inf
    if option != "smoothed":
        x[0, 3] = -torch.inf
    options = {**OPTIONS[option], "reduction": "none"}
    found = ops.cross_entropy(xp.array(x.numpy()), xp.array(target.numpy(), dtype="int64"), **options)
    kept = [0, 3]
    expected = torch.zeros(4, dtype=torch.float64)
    expected[kept] = torch.nn.functional.cross_entropy(
        x[kept], target[kept], reduction="none", label_smoothing=options.get("label_smoothing", 0.0)
    )
    expected[kept] += options.get("z_loss", 0.0) * x[kept].logsumexp(1) ** 2
    np.testing.assert_allclose([float(each) for each in found], expected, rtol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 5, 255])
def test_no_class(wrong: int) -> None:
    x, target = randn(3, 5).cpu().numpy(), np.array([0, wrong, -100])
    with pytest.raises(IndexError, match=f"class {wrong}, .* 5"):
        ops.cross_entropy(x, target)
    xp = namespace("mxnet")
    found = ops.cross_entropy(xp.array(x), xp.array(target, dtype="int64"), reduction="none")
    assert np.isnan([float(each) for each in found]).tolist() == [False, True, False]


LAST, SECOND, BOTH = -1, 1, None
# Shapes of logits and targets, the size of the weight, and where the classes are.
AXES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int | None, int | None]] = {
    "only the last": ((2, 6, 8), (2, 6), None, LAST),
    "only torch's": ((2, 8, 6), (2, 6), None, SECOND),
    "only torch's, of images": ((2, 6, 4, 6), (2, 4, 6), None, SECOND),
    "both": ((2, 6, 6), (2, 6), None, BOTH),
    "both, of images": ((2, 6, 6, 6), (2, 6, 6), None, BOTH),
    "probabilities": ((2, 6, 8), (2, 6, 8), None, BOTH),
    "probabilities, torch's weight": ((2, 6, 8), (2, 6, 8), 6, SECOND),
    "probabilities, a weight of the last": ((2, 6, 8), (2, 6, 8), 8, LAST),
}


def _arrays_of(case: str, by_numpy: bool) -> list[Any]:
    """Logits, targets and the weight."""
    shape, rows, weighted, _ = AXES[case]
    probabilities = len(rows) == len(shape)
    if probabilities and by_numpy:
        pytest.skip("NumPy's arrays have no probabilities as targets")
    target = randn(*rows, seed=2).abs() if probabilities else targets(*rows, classes=6)
    weight = None if weighted is None else randn(weighted, seed=1).abs()
    tensors = [each if each is None else each.cpu() for each in (randn(*shape), target, weight)]
    return [each.numpy() if by_numpy and each is not None else each for each in tensors]


@pytest.mark.parametrize("by_numpy", [False, True])
@pytest.mark.parametrize("case", AXES)
def test_axis_of_the_classes(case: str, by_numpy: bool) -> None:
    """Torch's where only that fits the targets, the last one where only that does; else it has to be said."""
    x, target, weight = _arrays_of(case, by_numpy)
    axis, last = AXES[case][3], x.ndim - 1
    if axis is not BOTH:
        found, expected = (float(ops.cross_entropy(x, target, weight, dim=each)) for each in (None, axis))
        assert found == expected
        return
    with pytest.raises(ShapeError, match=rf"^target of shape .* axis 1, .* axis {last}: give dim=1 or dim=-1"):
        ops.cross_entropy(x, target, weight)
    names = "b c row col".split()[: last + 1]
    with pytest.raises(ShapeError, match=f"give dim='c' or dim='{names[-1]}'"):
        ops.cross_entropy(x, target, weight, pattern=" ".join(names))


class _Loss(torch.nn.Module):
    def forward(self, x: Any, target: Any) -> Any:
        return ops.cross_entropy(x, target)


@pytest.mark.parametrize("axis", [1, 2])
def test_lengths_are_not_guarded(axis: int) -> None:
    """A program for any length holds where the length is the number of classes, too."""

    def arguments(rows: int, length: int) -> tuple[Any, Any]:
        logits = randn(rows, length, 8, dtype="float32").cpu()
        return logits.movedim(-1, axis), targets(rows, length, classes=8).cpu()

    sizes = torch.export.Dim("rows"), torch.export.Dim("length")
    shapes = {0: sizes[0], 3 - axis: sizes[1]}, {0: sizes[0], 1: sizes[1]}
    exported = torch.export.export(_Loss(), arguments(2, 6), dynamic_shapes=shapes).module()
    torch.compiler.reset()
    compiled = torch.compile(_Loss(), backend="eager", dynamic=True, fullgraph=True)
    compiled(*arguments(2, 6))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for given in (arguments(3, 7), arguments(3, 8)):
            expected = ops.cross_entropy(*given, dim=axis)
            torch.testing.assert_close(compiled(*given), expected)
            torch.testing.assert_close(exported(*given), expected)
    torch.compiler.reset()
    with pytest.raises(Exception, match="give dim=1 or dim=-1"):
        torch.compile(_Loss(), backend="eager", fullgraph=True)(*arguments(2, 8))
