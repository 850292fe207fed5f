"""Backends: which one an array belongs to, when one wakes, and how another framework is added."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from equations import contractions, expected
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import EinsumError, OperandError, backends, fast_einsum, register_backend
from einops_fast.backends import Backend, get_backend
from einops_fast.backends.base import Run
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.steps import Arrange, Cast, Diagonal, Gemm, Multiply, Sum, View
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.plan_cache import clear_plans

# ---- a framework of our own


@dataclass(eq=False)
class Box:
    """An array of a framework that has no strides, no broadcasting products and one batch axis at most."""

    values: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


class BoxBackend(Backend):
    """All that a backend has to say: what its arrays are, and what each step is in terms of its framework."""

    name = "box"
    module = "boxes"
    made: list[BoxBackend] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.made.append(self)
        self.asked: list[type] = []

    def owns(self, array_type: type) -> bool:
        self.asked.append(array_type)
        return array_type is Box

    def signature(self, operands: Sequence[Any]) -> Hashable:
        return tuple((type(operand), operand.shape, operand.values.dtype) for operand in operands)

    def inspect(self, array: Box) -> Operand:
        return Operand(array.shape, contiguous_strides(array.shape), array.values.dtype.name)

    def target(self, operands: Sequence[Any]) -> Target:
        prices = Ceilings(
            bandwidth=1e10,
            runs=5e9,
            gather=1e9,
            flops={"float32": 1e11},
            call=1e-6,
            again=1e-6,
            item=1e-8,
            broadcast=1e3,
        )
        return Target(self.name, "cpu", prices, strided=False, broadcasts=False, writes=False)

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        name = str(np.result_type(*[operand.values for operand in operands]) if dtype is None else np.dtype(dtype))
        return Numerics(name, name, "" if name.startswith("float") else "boxes only multiply floats")

    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Box:
        return Box(np.array(np.einsum(equation, *[operand.values for operand in operands])))

    def finish(self, result: Box, out: Any, order: str, casting: str) -> Box:
        if out is None:
            return result
        out.values[...] = result.values
        return out

    def example(self, shape: tuple[int, ...], dtype: str) -> Box:
        return Box(np.empty(shape, dtype))

    def arrange(self, how: Arrange) -> Run:
        def run(box: Box) -> Box:
            values = box.values if how.perm is None else box.values.transpose(how.perm)
            return Box(np.ascontiguousarray(values).reshape(values.shape if how.shape is None else how.shape))

        return run

    def cast(self, step: Cast) -> Run:
        return lambda box: Box(box.values.astype(step.dtype))

    def diagonal(self, step: Diagonal) -> Run:
        label_of = {axis: label for label, group in enumerate(step.groups) for axis in group}
        labels = [label_of[axis] for axis in range(len(label_of))]
        return lambda box: Box(np.einsum(box.values, labels, range(len(step.groups))).copy())

    def sum(self, step: Sum) -> Run:
        return lambda box: Box(np.asarray(box.values.sum(step.axes, dtype=box.values.dtype)))

    def view(self, step: View) -> Run:
        return self.arrange(step.how)

    def multiply(self, step: Multiply) -> Run:
        left, right = self.arrange(step.left), self.arrange(step.right)

        def run(a: Box, b: Box) -> Box:
            product = left(a).values * right(b).values
            axes = tuple(range(product.ndim - step.summed, product.ndim))
            return Box(np.asarray(product.sum(axes, dtype=product.dtype)))

        return run

    def gemm(self, step: Gemm) -> Run:
        left, right = self.arrange(step.left), self.arrange(step.right)
        assert len(step.batch) <= 1
        assert step.buffer is None

        def run(a: Box, b: Box) -> Box:
            x, y = left(a).values, right(b).values
            x = x.swapaxes(-1, -2) if step.transpose_left else x
            y = y.swapaxes(-1, -2) if step.transpose_right else y
            assert x.shape == (*step.batch, step.m, step.k)
            assert y.shape == (*step.batch, step.k, step.n)
            return Box((x @ y).reshape(step.shape))

        return run


@contextmanager
def registry_restored() -> Iterator[None]:
    """Whatever is registered is forgotten afterwards."""
    with (
        mock.patch.dict(backends._factories),
        mock.patch.dict(backends._awake),
        mock.patch.dict(backends.awake_types),
        mock.patch.object(BoxBackend, "made", []),
    ):
        yield
    clear_plans()


@contextmanager
def boxes_imported() -> Iterator[None]:
    """The framework is imported, and its backend registered."""
    with registry_restored(), mock.patch.dict(sys.modules, boxes=ModuleType("boxes")):
        register_backend("box", "boxes", BoxBackend)
        yield


@pytest.fixture
def registry() -> Iterator[None]:
    with registry_restored():
        yield


@pytest.fixture
def boxes() -> Iterator[None]:
    with boxes_imported():
        yield


# ---- using it


@given(data=st.data())
def test_a_new_framework_computes_everything(data: st.DataObject) -> None:
    case = data.draw(contractions(max_size=6))
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 5, shape).astype("float64") for shape in case.shapes]
    with boxes_imported():
        got = fast_einsum(case.equation, *map(Box, arrays))
    np.testing.assert_array_equal(got.values, expected(case, arrays))


@pytest.mark.usefixtures("boxes")
def test_a_new_framework_has_all_ways_to_call() -> None:
    a, b = Box(np.ones((2, 3))), Box(np.ones((3, 4)))
    for got in (
        fast_einsum("row middle, middle column -> row column", a, b),
        fast_einsum(a, [0, 1], b, [1, 2]),
        fast_einsum("ij,jk", [a, b]),
        fast_einsum("ij,jk,kl->il", a, b, Box(np.eye(4)), optimize=[(1, 2), (0, 1)]),
    ):
        assert type(got) is Box
        np.testing.assert_array_equal(got.values, np.full((2, 4), 3.0))
    out = Box(np.zeros((2, 4)))
    assert fast_einsum("ij,jk->ik", a, b, out=out) is out
    np.testing.assert_array_equal(out.values, np.full((2, 4), 3.0))
    assert fast_einsum("ij->i", a, dtype="float32").values.dtype == np.float32
    whole = fast_einsum("ij,kj->ik", Box(np.full((2, 3), 2)), Box(np.full((2, 3), 3)))
    np.testing.assert_array_equal(whole.values, np.full((2, 2), 18), strict=True)


@pytest.mark.usefixtures("boxes")
def test_a_memory_limit_is_kept_to_or_refused() -> None:
    boxes = [Box(np.ones((20, 20))) for _ in range(3)]
    whole = fast_einsum("ij,jk,kl->il", *boxes, memory_limit="1 MB")
    np.testing.assert_array_equal(whole.values, np.full((20, 20), 400.0))
    with pytest.raises(OperandError, match="memory_limit is less than this call takes, and box arrays aren't cut"):
        fast_einsum("ij,jk,kl->il", *boxes, memory_limit=5000)


# ---- waking


def test_a_backend_sleeps_until_its_framework_is_imported(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register_backend("box", "boxes", BoxBackend)
    fast_einsum("i,i->", np.ones(2), np.ones(2))
    with pytest.raises(EinsumError, match="Box"):
        fast_einsum("i,i->", Box(np.ones(2)), Box(np.ones(2)))
    assert not BoxBackend.made
    monkeypatch.setitem(sys.modules, "boxes", ModuleType("boxes"))
    for _ in range(2):
        assert fast_einsum("i,i->", Box(np.ones(2)), Box(np.ones(2))).values == 2
    assert len(BoxBackend.made) == 1


@pytest.mark.usefixtures("boxes")
def test_a_backend_can_be_replaced() -> None:
    """Also for calls whose plan the old one has carried out before."""

    class Negative(BoxBackend):
        def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Box:
            return Box(-super().native(equation, operands).values)

    two = Box(np.array([2, 2]))
    assert fast_einsum("i,i->", two, two).values == 8
    register_backend("box", "boxes", Negative)
    assert fast_einsum("i,i->", two, two).values == -8


def test_unknown_backend() -> None:
    with pytest.raises(OperandError, match=r"no backend is called 'numpie'; there are .*numpy"):
        get_backend("numpie")
