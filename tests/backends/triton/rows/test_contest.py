"""How one of several ways to run an operator's kernels is chosen: by the rule, by measurement, from disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_memory import FakeMemory

from einops_fast.backends.triton.rows import contest as module
from einops_fast.backends.triton.rows.contest import Call, Contest, Site, Way
from einops_fast.backends.triton.rows.plan import RowCall
from einops_fast.backends.triton.rows.rows import rows_of
from einops_fast.backends.triton.rows.softmax.kernel import SoftmaxFeatures
from einops_fast.planning.target import Operand
from einops_fast.runtime import disk_cache
from einops_fast.runtime.plan_cache import clear_plans

LARGE = np.zeros(module._LEAST["wait"] // 8)


class TimedMemory(FakeMemory):
    """Arrays of NumPy; a run takes as long as what it has queued says."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[tuple[str, float]] = []

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        return np.empty(elements, dtype)

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        self.queued.clear()
        run()
        self.measured += [name for name, _ in self.queued]
        return [sum(seconds for _, seconds in self.queued)] * repeat


class FakeKernel:
    """Takes some time, and writes its name where its result belongs."""

    def __init__(self, name: str, seconds: float, broken: bool) -> None:
        self.name, self.seconds, self.broken = name, seconds, broken

    def compile_for(self, *arrays: Any) -> None:
        if self.broken:
            raise RuntimeError("too large a tile")

    def __call__(self, memory: Any, device: int, *arrays: Any) -> None:
        memory.queued.append((self.name, self.seconds))
        arrays[-1][:1] = len(self.name)


class FakeWay(Way):
    def __init__(self, name: str, seconds: float, broken: bool = False) -> None:
        kernel: Any = FakeKernel(name, seconds, broken)
        super().__init__(name, [(kernel, (0, 1))])


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TimedMemory]:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "interpreted", lambda: False)
    clear_plans()
    yield TimedMemory()
    clear_plans()


def contest(memory: TimedMemory, *ways: FakeWay, mode: str = "wait", in_place: bool = False, **details: Any) -> Contest:
    details = {"dtype": "float64", **details}
    call = Call("softmax, 8 rows of 4", details, in_place)
    return Contest(Site(memory, 0, (0, 1), mode), call, ways)


def chosen(made: Contest, arrays: Any = None) -> str:
    given = (LARGE, np.zeros_like(LARGE)) if arrays is None else arrays
    made(*given)
    return made.chosen.name if made.chosen else "the rule's, not for long"


RULE, FAST, BROKEN = FakeWay("rule", 5.0), FakeWay("fast", 3.0), FakeWay("broken", 1.0, True)


def test_the_fastest_is_found_once(memory: TimedMemory) -> None:
    made = contest(memory, RULE, FAST, BROKEN)
    assert chosen(made) == "fast"
    assert set(memory.measured) == {"rule", "fast"}
    memory.measured.clear()
    memory.queued.clear()
    result = np.zeros(4)
    made(LARGE, result)
    assert memory.queued == [("fast", 3.0)]
    assert not memory.measured
    assert result[0] == len("fast")
    (entry,) = disk_cache.entries()
    assert entry.record == {"choice": "fast", "seconds": 3.0, "candidates": {"rule": 5.0, "fast": 3.0, "broken": None}}


def test_small_calls_take_the_rule(memory: TimedMemory) -> None:
    small = np.zeros(8), np.zeros(8)
    assert chosen(contest(memory, RULE, FAST), small) == "rule"
    assert not memory.measured
    assert chosen(contest(memory, RULE, FAST, mode="always"), small) == "fast"


def test_while_a_graph_is_captured_the_rule_is_taken_for_now(memory: TimedMemory) -> None:
    made = contest(memory, RULE, FAST)
    memory.captured = True
    assert chosen(made) == "the rule's, not for long"
    assert memory.queued == [("rule", 5.0)]
    assert not memory.measured
    assert not list(disk_cache.entries())
    memory.captured = False
    assert chosen(made) == "fast"


def test_nothing_in_place_is_run_twice(memory: TimedMemory) -> None:
    made = contest(memory, RULE, FAST, in_place=True)
    assert chosen(made, (LARGE, LARGE.copy())) == "rule"
    assert memory.queued == [("rule", 5.0)]
    assert not memory.measured


def test_no_call_waits_for_a_measurement(memory: TimedMemory) -> None:
    assert chosen(contest(memory, RULE, FAST, mode="auto")) == "rule"
    assert not memory.measured
    clear_plans()
    chosen(contest(memory, RULE, FAST))
    clear_plans()
    assert chosen(contest(memory, RULE, FAST, mode="auto")) == "fast"  # which was measured earlier


def test_kinds_of_calls() -> None:
    def call(count: int, columns: int = 48, log: bool = False, scale: float = 1.0) -> Call:
        rows = rows_of((count, columns), 1, [(columns, 1), (columns + 1, 1)])
        features, array = SoftmaxFeatures(1, log=log, scale=scale), Operand((count, columns), (columns, 1), "float32")
        site = Site(TimedMemory(), 0, (0, 1), "auto")
        return RowCall(site, "softmax", rows, features, lambda rows: rows, [array]).contest([RULE]).call

    assert call(1000) == call(1024) != call(1025)
    assert call(15) != call(16)
    assert call(9, 50) != call(9, 51)
    assert call(9, scale=2.0) == call(9, scale=0.5)
    assert call(9, log=True).problem == "softmax, 9 rows of 48, log"
    assert call(9, log=True).details["strides"] == ["16n 1", "1n 1"]
