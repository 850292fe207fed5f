"""linear_cross_entropy: in chunks, with gradients made forward or backward, by kernels and by torch's functions."""

from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from ops_problems import (
    DEVICE,
    LAYOUTS,
    assert_near,
    check,
    cross_entropy,
    gradients,
    kernels,
    laid_out,
    leaf,
    randn,
    targets,
    where,
)
from torch.utils._python_dispatch import TorchDispatchMode

from einops_fast import ops

WEIGHT = randn(21, seed=1).abs()

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "everything": {"weight": WEIGHT, "label_smoothing": 0.3, "z_loss": 0.1, "ignore_index": 3},
}


def problem(*rows: int, dtype: str = "float64", classes: int = 21, features: int = 6) -> tuple[list[Any], Any]:
    """Input, weight and bias, and targets. The classes are no whole number of vectors."""
    sizes = (*rows, features), (classes, features), (classes,)
    return [leaf(randn(*each, dtype=dtype, seed=at)) for at, each in enumerate(sizes)], targets(*rows, classes=classes)


def expected(x: Any, matrix: Any, bias: Any = None, **options: Any) -> Any:
    return cross_entropy(torch.nn.functional.linear(x, matrix, bias), **options)


def found_by(target: Any, **options: Any) -> Any:
    def function(x: Any, matrix: Any, bias: Any = None) -> Any:
        return ops.linear_cross_entropy(x, matrix, target, bias, **options)

    return function


@pytest.mark.parametrize(("by_kernels", "chunk"), [(True, 4), (False, 4), (False, None)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("option", OPTIONS)
def test_gradients(option: str, reduction: str, by_kernels: bool, chunk: int | None) -> None:
    tensors, target = problem(2, 5)
    options = {**OPTIONS[option], "reduction": reduction}
    target = target.masked_fill(target == -100, options.get("ignore_index", -100))
    check(found_by(target, chunk=chunk, **options), partial(expected, target=target, **options), tensors, by_kernels)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    tensors, target = problem(2, 5)
    strided = [leaf(laid_out(each.detach(), layout)) for each in tensors]
    check(found_by(laid_out(target, layout), chunk=4), partial(expected, target=target), strided)
    with kernels():
        row = leaf(tensors[0][:1, :1].detach().expand(2, 5, 6))
        same = ops.linear_cross_entropy(row, strided[1], target)
    assert_near(same, expected(row, strided[1], target=target))


SLICES: dict[str, Any] = {
    "shifted": lambda x: x[:, :-1, 0],
    "the last axis of rows": lambda x: x[:, :, :-1],
    "of three": lambda x: x[:, :-1, :-1],
    "transposed": lambda x: x[:, :, 0].transpose(0, 1),
    "features first": lambda x: x[:, :, 0].transpose(1, 2).contiguous().transpose(1, 2),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("rows", SLICES)
def test_rows_that_do_not_lie_evenly(rows: str, reduction: str, by_kernels: bool) -> None:
    """The values and the gradients of a copy, in chunks longer and shorter than what does lie evenly, and compiled."""
    whole, matrix, bias = (randn(*each, seed=at) for at, each in enumerate([(3, 4, 5, 6), (7, 6), (7,)]))
    x = SLICES[rows](whole)
    target = targets(*x.shape[:-1], classes=7)
    tensors = [leaf(x), leaf(matrix), leaf(bias)]
    right = gradients(partial(expected, target=target, reduction=reduction), [leaf(x.contiguous()), *tensors[1:]])
    with where(by_kernels):
        for chunk in (None, 100, 8, 2):
            function = found_by(target, chunk=chunk, reduction=reduction)
            for got, each in zip(gradients(function, tensors), right, strict=True):
                assert got.shape == each.shape
                assert_near(got, each)
        if reduction == "mean" and rows in ("of three", "transposed"):  # to compile takes long
            torch.compiler.reset()
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            assert_near(gradients(compiled, tensors), right)


class Copies(TorchDispatchMode):
    """The operators that write as many elements as one tensor has without computing anything."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.size = x.numel()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("clone", "copy_", "_to_copy", "cat", "stack", "_reshape_copy") and result.numel() >= self.size:
            self.found.append(name)
        return result


@pytest.mark.parametrize("rows", [(4, 300), (300, 5)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_hidden_states_that_are_shifted_are_not_copied(reduction: str, rows: tuple[int, int]) -> None:
    """Neither where a chunk has all rows, nor where torch's function would do, nor for a gradient."""
    x = leaf(randn(1, *rows, 64, dtype="float32")[:, :, :-1])
    target, matrix = targets(*x.shape[:-1], classes=5), leaf(randn(5, 64, dtype="float32", seed=1))
    for options in ({}, {"chunk": 2048}, {"chunk": 100}):
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded), Copies(x) as copies:
                loss = ops.linear_cross_entropy(x, matrix, target, reduction=reduction, **options)
                if recorded:
                    loss.sum().backward()
            assert not copies.found, (options, recorded, copies.found)


@pytest.mark.parametrize("chunk", [256, 64, 16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_precision(dtype: str, chunk: int) -> None:
    """Gradients of the weight are added up in its dtype for few chunks, and in float32 for many."""
    tensors, target = problem(256, dtype=dtype, classes=45, features=32)

    def native(x: Any, matrix: Any, bias: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, matrix, bias), target)

    # Triton's interpreter cuts bfloat16 off.
    for by_kernels in (False,) if dtype == "bfloat16" and DEVICE == "cpu" else (False, True):
        check(found_by(target, chunk=chunk), native, tensors, by_kernels)


def test_gradients_of_few_digits_are_scaled_up_before_they_are_rounded() -> None:
    """The mean of so many rows has gradients that float16 has not, and gets them when the loss is scaled."""
    (x, matrix, _), _ = problem(4096, dtype="float16", features=4)
    target = torch.full((4096,), 2, device=DEVICE)
    exact = [leaf(each.double()) for each in (x, matrix)]
    with kernels():
        (found,) = torch.autograd.grad(found_by(target)(x, matrix).float() * 16384, x)
    (right,) = torch.autograd.grad(expected(*exact, target=target) * 16384, exact[0])
    assert_near(found / 16384, right / 16384)
    assert float((found - right).norm() / right.norm()) < 1e-3


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_backward_twice(factor: float, by_kernels: bool) -> None:
    tensors, target = problem(9)
    exact = gradients(partial(expected, target=target), tensors)[1:]
    cotangent = float(randn(seed=7))
    with where(by_kernels):
        loss = found_by(target, chunk=4)(*tensors) * factor
        for retained in (True, True, False):
            found = torch.autograd.grad(loss, tensors, retain_graph=retained)
            for got, each in zip(found, exact, strict=True):
                assert_near(got, each * (factor / cotangent))
            if retained:
                for each in found:  # they belong to whoever asked for them
                    each.fill_(torch.nan)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("strict", [True, False])
def test_exports_for_any_sizes(strict: bool) -> None:
    class Loss(torch.nn.Module):
        def forward(self, hidden: Any, classes: Any, target: Any) -> Any:
            return ops.linear_cross_entropy(hidden, classes, target)

    def operands(*sizes: int, classes: int) -> list[Any]:
        return [
            randn(*sizes, 8),
            randn(classes, 8, seed=1),
            torch.arange(prod(sizes), device=DEVICE).view(sizes) % classes,
        ]

    any_size = torch.export.Dim.DYNAMIC
    shapes = {0: any_size, 1: any_size}, {0: any_size}, {0: any_size, 1: any_size}
    exported = torch.export.export(Loss(), (*operands(3, 5, classes=7),), dynamic_shapes=shapes, strict=strict).module()
    others = operands(4, 6, classes=9)
    torch.testing.assert_close(exported(*others), ops.linear_cross_entropy(*others))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_in_forward_mode(reduction: str) -> None:
    tensors, target = problem(4, features=3)
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 0.1}

    def along(function: Any) -> Any:
        with torch.autograd.forward_ad.dual_level():
            duals = [torch.autograd.forward_ad.make_dual(each, randn(*each.shape, seed=9)) for each in tensors]
            return torch.autograd.forward_ad.unpack_dual(function(*duals)).tangent

    found = along(found_by(target, chunk=3, **options))
    assert_near(found, along(partial(expected, target=target, **options)))


def test_rows_that_do_not_count_and_no_rows() -> None:
    (x, matrix, _), _ = problem(4)
    with kernels():
        ignored = torch.full((4,), -100, device=DEVICE)
        assert found_by(ignored)(x, matrix).isnan()
        for each in torch.autograd.grad(found_by(ignored, reduction="sum")(x, matrix), (x, matrix)):
            assert not each.any()
    for empty in (x[:0], x.unflatten(0, (2, 2))[:, :0]):
        none = found_by(targets(*empty.shape[:-1]), reduction="sum")(empty, matrix)
        assert none == 0
        assert not torch.autograd.grad(none, matrix)[0].any()
    if DEVICE == "cpu":
        with pytest.raises(IndexError):
            found_by(ignored.fill_(21))(x, matrix)
