"""Plans are made once: what a second call finds, and what makes another plan."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from frameworks import framework, on_cuda

from einops_fast import fast_einsum
from einops_fast.planning.plan import make_plan
from einops_fast.runtime import plan_cache
from einops_fast.runtime.plan_cache import clear_plans

front: Any = sys.modules["einops_fast.einsum"]


@pytest.fixture
def plans_made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The arguments of every plan made, from an empty cache on."""
    made: list[Any] = []

    def count(*args: Any) -> Any:
        made.append(args)
        return make_plan(*args)

    clear_plans()
    monkeypatch.setattr(front, "make_plan", count)
    yield made
    clear_plans()


@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet", on_cuda()])
@pytest.mark.parametrize("equation", ["ij->i", "ij,jk->ik", "in mid, mid out, out -> in", "ij,jk,k"])
def test_second_call_makes_no_plan(name: str, equation: str, plans_made: list[Any]) -> None:
    of = framework(name)
    shapes = [(2, 3), (3, 4), (4,)][: equation.count(",") + 1]
    for value in (1, 2):
        fast_einsum(equation, *[of.make(np.full(shape, value, "float64"), "float64") for shape in shapes])
    assert len(plans_made) == 1


def test_second_call_makes_no_plan_whatever_its_form(plans_made: list[Any]) -> None:
    a, b, out = np.ones((2, 3)), np.ones((3, 4)), np.zeros((2, 4))
    calls: list[Callable[[], Any]] = [
        lambda: fast_einsum("ij,jk->ik", [a, b]),
        lambda: fast_einsum(a, [0, 1], b, [1, 2]),
        lambda: fast_einsum("ij,jk->ik", a.tolist(), b),
        lambda: fast_einsum("ij,jk->ik", a, b, dtype="complex128"),
        lambda: fast_einsum("ij,jk->ik", a, b, order="F"),
        lambda: fast_einsum("ij,jk->ik", a, b, out=out),
        lambda: fast_einsum("ij,jk,kl->il", a, b, b.T, optimize=[(1, 2), (0, 1)]),
    ]
    for call in calls:
        call()
        plans_made.clear()
        call()
        assert not plans_made


def test_whatever_a_plan_depends_on_makes_another(plans_made: list[Any]) -> None:
    a = np.ones((20, 20))
    variants: list[tuple[Sequence[Any], dict[str, Any]]] = [
        ((a, a), {}),
        ((a, a.T), {}),
        ((a[::-1], a), {}),
        ((a[:2], a), {}),
        ((a.astype("float32"), a), {}),
        ((a.astype("float32"), a.astype("float32")), {}),
        ((a, a), {"order": "F"}),
        ((a, a), {"dtype": "complex128"}),
        ((a, a), {"optimize": [(0, 1)]}),
    ]
    for arrays, options in variants * 2:
        fast_einsum("ij,jk->ik", *arrays, **options)
    for optimize in (False, True):  # of two arrays, there is one order
        fast_einsum("ij,jk->ik", a, a, optimize=optimize)
    assert len(plans_made) == len(variants)


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch, plans_made: list[Any]) -> None:
    monkeypatch.setattr(plan_cache, "LIMIT", 8)
    for size in range(1, 20):
        fast_einsum("ij,jk->ik", np.ones((size, 99)), np.ones((99, 3)))
    assert len(plan_cache.compiled) == 8
    fast_einsum("ij,jk->ik", np.ones((19, 99)), np.ones((99, 3)))
    assert len(plans_made) == 19  # the newest plans are those that stay


def test_threads_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made, used, pushed out and cleared at once, and every result is right."""
    monkeypatch.setattr(plan_cache, "LIMIT", 4)
    interval = sys.getswitchinterval()

    def call(number: int) -> bool:
        size = 1 + number % 7
        a, b = np.full((size, 3), 2.0), np.full((3, size + 1), float(number))
        if number % 50 == 0:
            clear_plans()
        result = fast_einsum("ij,jk->ik" if number % 2 else "row mid, mid col -> row col", a, b)
        return bool(result.shape == (size, size + 1) and (result == 6.0 * number).all())

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(call, range(2000)))
    finally:
        sys.setswitchinterval(interval)
    assert len(plan_cache.compiled) <= 4
