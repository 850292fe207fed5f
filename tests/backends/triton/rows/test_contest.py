"""How one of several ways to run an operator's kernels is chosen: by the rule, by measurement, from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from fake_memory import FakeMemory

from einops_fast import cli
from einops_fast.backends.memory import Memory
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


def test_what_fails_after_the_first_round_is_out(memory: TimedMemory) -> None:
    class Greedy(FakeWay):
        runs = 0

        def queue(self, memory: Memory, device: int, *arrays: Any) -> None:
            self.runs += 1
            if self.runs > 2:  # one to warm up, one with a clock
                raise MemoryError
            super().queue(memory, device, *arrays)

    assert chosen(contest(memory, RULE, FAST, Greedy("greedy", 2.9))) == "fast"
    (entry,) = disk_cache.entries()
    assert entry.record["candidates"]["greedy"] is None


def test_the_rule_gives_way_to_clear_winners_only(memory: TimedMemory) -> None:
    assert chosen(contest(memory, RULE, FakeWay("as fast", 4.97))) == "rule"


def test_what_is_on_disk_is_taken(memory: TimedMemory) -> None:
    chosen(contest(memory, RULE, FAST))
    for mode in ("auto", "never"):
        clear_plans()
        memory.measured.clear()
        assert chosen(contest(memory, RULE, FAST, mode=mode)) == "fast"
        assert not memory.measured


@pytest.mark.parametrize("other", [{"strides": ["1 4"]}, {"features": {"log": True}}])
def test_another_kind_of_call_is_another_choice(memory: TimedMemory, other: Any) -> None:
    chosen(contest(memory, RULE, FAST))
    assert chosen(contest(memory, RULE, FakeWay("fast", 9.0), **other)) == "rule"
    assert len(list(disk_cache.entries())) == 2


def test_other_dtypes_are_another_choice(memory: TimedMemory) -> None:
    chosen(contest(memory, RULE, FAST))
    assert chosen(contest(memory, RULE, FakeWay("fast", 9.0), dtype="float32")) == "rule"


def test_small_calls_take_the_rule(memory: TimedMemory) -> None:
    small = np.zeros(8), np.zeros(8)
    assert chosen(contest(memory, RULE, FAST), small) == "rule"
    assert not memory.measured
    assert chosen(contest(memory, RULE, FAST, mode="always"), small) == "fast"


def test_always_takes_nothing_from_disk(memory: TimedMemory) -> None:
    chosen(contest(memory, RULE, FAST))
    clear_plans()
    assert chosen(contest(memory, RULE, FakeWay("fast", 9.0), mode="always")) == "rule"
    assert next(disk_cache.entries()).record["choice"] == "rule"


def test_never_measures_nothing(memory: TimedMemory) -> None:
    assert chosen(contest(memory, RULE, FAST, mode="never")) == "rule"
    assert not memory.measured
    assert not list(disk_cache.entries())


def test_while_a_graph_is_captured_the_rule_is_taken_for_now(memory: TimedMemory) -> None:
    made = contest(memory, RULE, FAST)
    memory.captured = True
    assert chosen(made) == "the rule's, not for long"
    assert memory.queued == [("rule", 5.0)]
    assert not memory.measured
    assert not list(disk_cache.entries())
    memory.captured = False
    assert chosen(made) == "fast"


def test_what_is_known_is_taken_while_a_graph_is_captured(memory: TimedMemory) -> None:
    chosen(contest(memory, RULE, FAST))
    memory.captured = True
    assert chosen(contest(memory, RULE, FAST)) == "fast"


def test_nothing_in_place_is_run_twice(memory: TimedMemory) -> None:
    made = contest(memory, RULE, FAST, in_place=True)
    assert chosen(made, (LARGE, LARGE.copy())) == "rule"
    assert memory.queued == [("rule", 5.0)]
    assert not memory.measured


def test_the_choice_of_another_process_stands(memory: TimedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = module.measure

    def meanwhile(ways: Any, *arguments: Any) -> Any:
        times = measure(ways, *arguments)
        disk_cache.write(keys[0], {"choice": ways[0].name, "seconds": 1.0})
        return times

    read, keys = disk_cache.read, []
    monkeypatch.setattr(disk_cache, "read", lambda key: (keys.append(key), read(key))[1])
    monkeypatch.setattr(module, "measure", meanwhile)
    assert chosen(contest(memory, RULE, FAST)) == "rule"


def test_no_call_waits_for_a_measurement(memory: TimedMemory) -> None:
    assert chosen(contest(memory, RULE, FAST, mode="auto")) == "rule"
    assert not memory.measured
    clear_plans()
    chosen(contest(memory, RULE, FAST))
    clear_plans()
    assert chosen(contest(memory, RULE, FAST, mode="auto")) == "fast"  # which was measured earlier


def test_a_choice_that_is_gone_is_a_miss(memory: TimedMemory) -> None:
    chosen(contest(memory, RULE, FAST))
    clear_plans()
    assert chosen(contest(memory, RULE, FakeWay("new", 1.0))) in ("new", "rule")
    assert memory.measured.count("new") > 0


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


def test_entries_are_shown(memory: TimedMemory, capsys: pytest.CaptureFixture[str]) -> None:
    chosen(contest(memory, RULE, FAST))
    assert cli.main(["cache", "show"]) == 0
    shown = capsys.readouterr().out
    assert all(each in shown for each in ("softmax, 8 rows of 4", "NVIDIA H200", "float64", "fast", "3000000.00"))
