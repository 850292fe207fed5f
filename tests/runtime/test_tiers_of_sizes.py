"""Problems that differ in sizes only: a kernel for any size, which some try for all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any

import pytest
from fake_problem import Fake, in_this_thread  # noqa: F401

from einops_fast.runtime import tiers


class FakeForAny(Fake):
    """One of many sizes, for all of which one kernel is compiled."""

    library_calls: dict[str, Future[Any]] = {}  # noqa: RUF012 (a test empties it)

    def for_any(self) -> tuple[str, str, Any]:
        return "any", "any", "class"

    def compiled(self, name: str) -> Future[Any] | None:
        return self.library_calls.setdefault(name, Future()) if name == "any" else super().compiled(name)


def of_sizes(number: int, any_takes: float) -> list[FakeForAny]:
    FakeForAny.library_calls.clear()
    real = {"library": 2e-5, "one": 1e-5, "any": any_takes}
    return [FakeForAny(real, saves=tiers.PRICE / 200) for _ in range(number)]


def shared_by(problems: list[FakeForAny], fails: bool = False) -> list[list[str]]:
    """Have a kernel for any size compiled, and return what runs further rounds of calls."""
    for _ in range(8):
        for problem in problems:
            assert problem.call() == "library"
    assert not any(problem.ordered for problem in problems)
    (future,) = FakeForAny.library_calls.values()
    future.set_exception(RuntimeError("the compiler's")) if fails else future.set_result(None)
    return [[problem.call() for problem in problems] for _ in range(20)]


def test_many_sizes_share_a_kernel_that_some_try() -> None:
    problems = of_sizes(40, 1.2e-5)
    ran = shared_by(problems)
    assert {*ran[0]} == {"library"}
    assert problems[0].tiers._for_any is not None
    assert problems[0].tiers._for_any[2].trials == 3
    assert {*ran[-1]} == {"any"}
    often = problems[-1]  # gets kernels of its own
    often.calls(1200)
    assert set(often.ordered) == {"one"}
    often.compile_all()
    assert often.calls(80)[-1] == "one"
    assert problems[0].call() == "any"


@pytest.mark.parametrize("fails", [False, True])
def test_sizes_leave_a_kernel_that_is_slower_or_fails(fails: bool) -> None:
    ran = shared_by(of_sizes(40, 9e-5), fails)
    assert {*ran[-1]} == {"library"}
    assert sum(each.count("any") for each in ran) <= (0 if fails else 3 * 3)


def test_sizes_have_kernels_of_their_own_where_one_for_any_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = of_sizes(40, 1.2e-5)
    compiled = FakeForAny.compiled

    def fail(self: FakeForAny, name: str) -> Future[Any] | None:
        if name == "any":
            raise LookupError(name)
        return compiled(self, name)

    monkeypatch.setattr(FakeForAny, "compiled", fail)
    for _ in range(8):
        assert {problem.call() for problem in problems} == {"library"}
    assert any(problem.ordered for problem in problems)


def test_one_size_alone_needs_no_kernel_for_others() -> None:
    (problem,) = of_sizes(1, 1.2e-5)
    problem.calls(250)
    assert problem.tiers._for_any is None
    assert set(problem.ordered) == {"one"}


def test_sizes_leave_a_kernel_that_fails_where_the_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As both do in a call that is wrong, or that there is no memory for."""

    run_of = FakeForAny.run

    def run(self: FakeForAny, way: str) -> Callable[..., Any]:
        return lambda *operands: run_of(self, way)(*[way] * len(operands))

    monkeypatch.setattr(FakeForAny, "run", run)
    problems = of_sizes(40, 1.2e-5)
    for problem in problems * 8:
        problem.call()
    (future,) = FakeForAny.library_calls.values()
    future.set_result(None)
    for problem in problems * 20:
        with suppress(MemoryError):
            problem.call("too large")
    assert problems[0].tiers._kind.shared["class"].ratios == [inf] * 3
    assert {problem.tiers.way for problem in problems} == {"library"}
