"""Calls that don't wait: the library first, and the fastest way when it's there."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from fake_problem import Fake, in_this_thread  # noqa: F401

from einops_fast.runtime import disk_cache, tiers
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tiers import Tiers, settle_all


def test_no_call_waits_and_the_fastest_is_kept() -> None:
    problem = Fake({"library": 3e-5, "one": 2e-5, "two": 1e-5})
    assert problem.calls(20) == ["library"] * 20
    assert set(problem.ordered) == {"one", "two"}
    problem.compile_all()
    assert set(problem.calls(60)) == {"library", "one", "two"}
    assert problem.kept == "two"
    assert problem.calls(3) == ["two"] * 3
    (entry,) = disk_cache.entries()
    assert entry.record["choice"] == "two"
    assert entry.record["candidates"] == {"library": 3e-5, "one": 2e-5, "two": 1e-5}


def test_kernels_are_compiled_when_calls_have_paid_for_them() -> None:
    """Those of all problems that differ in sizes only."""
    problem = Fake({"library": 2e-5, "one": 1e-5}, saves=tiers.PRICE / 39, kind="alone")
    problem.calls(36)
    assert not problem.ordered
    problem.calls(4)
    assert set(problem.ordered) == {"one"}
    problems = [Fake({"library": 2e-5, "one": 1e-5}, saves=tiers.PRICE / 39) for _ in range(20)]
    others = [Fake({"library": 2e-5, "one": 1e-5}, saves=tiers.PRICE / 39, kind="other") for _ in range(5)]
    for problem in (*problems, *others):
        problem.calls(4)
    assert sum(bool(each.ordered) for each in problems) == 2
    assert not any(each.ordered for each in others)


def test_a_call_that_stands_for_others_counts_for_them() -> None:
    problem = Fake({"library": 2e-5, "one": 1e-5}, saves=tiers.PRICE / 39)
    token = tiers.stands_for.set(4)
    try:
        problem.calls(9)
        assert not problem.ordered
        problem.calls(1)
        assert problem.ordered
    finally:
        tiers.stands_for.reset(token)


def test_what_was_chosen_earlier_is_compiled_alone() -> None:
    real = {"library": 3e-5, "one": 2e-5, "two": 1e-5}
    Fake(real).begin().calls(60)
    clear_plans()  # as in another process
    later = Fake(real).begin()
    assert set(later.ordered) == {"two"}
    later.calls(5)
    assert later.calls(1) == ["two"]


def test_what_fails_is_left_out() -> None:
    problem = Fake({"library": 3e-5, "refused": 1e-6, "too large": 1e-6, "one": 2e-5})
    problem.failing = {"too large"}
    problem.calls(4)
    problem.ordered["refused"].set_exception(RuntimeError("the compiler's"))
    problem.compile_all()
    ran = problem.calls(60)
    assert set(ran) == {"library", "one"}
    assert ran[-1] == "one"


def test_a_run_that_fails_is_the_library_s() -> None:
    problem = Fake({"library": 3e-5, "one": 2e-5, "two": 1e-5}).begin()
    for _ in range(60):
        assert problem.call("two") != "two"
    assert problem.kept == "one"


def test_the_device_is_not_waited_for() -> None:
    problem = Fake({"library": 3e-5, "one": 2e-5}).begin()
    problem.passed = False
    ran = problem.calls(40)
    assert ran.count("one") == 1
    assert problem.found is None
    problem.passed = True
    assert problem.calls(40)[-1] == "one"


@pytest.mark.parametrize(
    ("gradients", "chosen"),
    [
        ({"library": 5e-5, "one": 1e-5}, "one"),
        ({"library": 2e-5, "one": 1.9e-5}, "library"),
        ({"library": 5e-5, "one": None}, "library"),  # which nobody computes
    ],
)
def test_gradients_count_where_they_come(gradients: dict[str, float | None], chosen: str) -> None:
    problem = Fake({"library": 1e-5, "one": 2e-5})
    problem.of_gradients = gradients
    problem.begin().calls(4 + 2 * 8 + 2)
    assert (problem.kept is None) == (None in gradients.values())
    problem.calls(300)
    assert problem.kept == chosen


def test_nothing_is_tried_while_a_graph_is_captured() -> None:
    problem = Fake({"library": 3e-5, "one": 2e-5})
    problem.measurable = False
    assert problem.calls(20) == ["library"] * 20
    assert not problem.ordered


def test_what_cannot_be_settled_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers.background, "available", lambda: False)
    problem, other = Fake({"library": 2e-5}), Fake({"library": 2e-5}, kind="other")
    monkeypatch.setattr(problem, "settle", lambda: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.warns(RuntimeWarning, match="no kernel was chosen for some calls.*out of memory"):
        settle_all()
    assert other.settled == 1
    assert problem.calls(1) == ["library"]


def test_waiting_settles_what_was_called_and_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiers, "compile", lambda self: None)
    problems = [Fake({"library": 3e-5, "one": 2e-5}) for _ in range(2)]
    told: list[tuple[str, int, int]] = []
    for _ in range(2):
        settle_all(lambda *given: told.append(given))
    assert [problem.settled for problem in problems] == [1, 1]
    assert told == [(what, done, 2) for what in ("compiled", "measured") for done in (1, 2)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("method", ["key", "named", "saves", "seconds", "preferred"])
def test_a_step_that_is_interrupted_begins_anew(
    method: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Fake({"library": 3e-5, "one": 2e-5, "two": 1e-5})
    owner: Any = problem
    if method == "seconds":
        owner, stopwatch = SimpleNamespace(seconds=lambda: 1e-5), problem.stopwatch
        monkeypatch.setattr(
            problem, "stopwatch", lambda: SimpleNamespace(**{**vars(stopwatch()), "seconds": lambda: owner.seconds()})
        )
    working = getattr(owner, method)

    def interrupted(*given: Any) -> Any:
        setattr(owner, method, working)
        raise error

    monkeypatch.setattr(owner, method, interrupted)
    raised = 0
    for _ in range(120):
        try:
            problem.call()
        except error:
            raised += 1
        problem.compile_all()
    assert raised <= 1
    assert problem.kept is not None
    assert problem.kept != "library" or method == "seconds"


def test_what_begins_meanwhile_in_other_threads_does_not_disturb_waiting() -> None:
    """A look at all that is undecided gives way to another thread between any two of them."""
    problems = [Fake({"library": 2e-5}) for _ in range(50)]
    over, began = threading.Event(), list[Fake]()

    def begin() -> None:
        while not over.is_set():
            began.append(Fake({"library": 2e-5}))
            del began[:-20]

    thread, interval = threading.Thread(target=begin), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(10):
            for each in problems:
                each.tiers = Tiers(each, each.keep)
            settle_all()
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
    assert all(each.settled >= 10 for each in problems)


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
