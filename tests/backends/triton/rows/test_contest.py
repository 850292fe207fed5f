"""How one of several ways to run an operator's kernels is chosen: by the rule, by measurement, from disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_memory import FakeMemory

from einops_fast.backends.triton.rows import contest as module
from einops_fast.backends.triton.rows.contest import Call, Contest, Site, Way
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


def test_the_fastest_is_found_once(memory: TimedMemory) -> None:
    ways = FakeWay("rule", 5.0), FakeWay("fast", 3.0), FakeWay("broken", 1.0, True)
    call = Call("softmax, 8 rows of 4", {"dtype": "float64"}, False)
    made = Contest(Site(memory, 0, (0, 1), "wait"), call, ways)
    made(LARGE, np.zeros_like(LARGE))
    assert made.chosen is ways[1]
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
