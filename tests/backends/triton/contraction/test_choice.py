"""How a way to run a step is chosen: by prediction, by measurement, from disk; what loops and copies cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_memory import FakeMemory

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction import candidates as module
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.choice import Choice
from einops_fast.backends.triton.contraction.library import Candidate
from einops_fast.planning.steps import Fused, Loop
from einops_fast.runtime import disk_cache, tiers
from einops_fast.runtime.plan_cache import clear_plans


class TimedMemory(FakeMemory):
    """Arrays that are their own result; a run takes as long as what it returns says."""

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        name, seconds = run()
        self.measured.append(name)
        return [seconds] * repeat


class Way(Candidate):
    """A way that is predicted to take one time and takes another."""

    in_order = True

    def __init__(self, name: str, predicted: float, real: float, *, broken: bool = False) -> None:
        self.name, self.seconds = name, predicted
        self.real, self.broken = real, broken

    def compile(self, aligned: bool = True) -> None:
        if self.broken:
            raise RuntimeError("no such tile")

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        return lambda *operands: (self.name, self.real)


LARGE = 4096
STEP = Fused((0,), "a", (LARGE,), (Loop("a", LARGE, (1,), True), Loop("b", LARGE, (LARGE,), False)), True, ())
"""A step too large to be left to the library unseen."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TimedMemory:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "interpreted", lambda: False)
    monkeypatch.setattr(choice_module, "interpreted", lambda: False)
    return TimedMemory()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, memory: TimedMemory) -> Callable[..., Choice]:
    def make(*kernels: Way, library: Way, mode: str = "wait") -> Choice:
        clear_plans()  # each choice as in a process of its own
        monkeypatch.setattr(module, "kernel_candidates", lambda *_: sorted(kernels, key=lambda way: way.seconds))
        monkeypatch.setattr(module, "kernel_candidate", lambda name, *_: {way.name: way for way in kernels}.get(name))
        monkeypatch.setattr(choice_module, "LibraryCandidate", lambda *_: library)
        return Choice(STEP, library.run(memory, 0), memory, "ieee", mode)

    return make


def library(predicted: float, real: float) -> Way:
    return Way("library", predicted, real)


def test_the_fastest_is_chosen_by_measurement_and_kept_on_disk(offer: Any, memory: TimedMemory) -> None:
    """What doesn't compile is left out."""
    ways = Way("broken", 10, 1, broken=True), Way("one", 10, 9), Way("two", 11, 5)
    choose = offer(*ways, library=library(10, 7))
    assert choose("array") == ("two", 5)
    assert set(memory.measured) == {"one", "two", "library"}
    memory.measured.clear()
    assert choose("array") == ("two", 5)
    assert offer(*ways, library=library(10, 7))("array")[0] == "two"
    assert not memory.measured
    (entry,) = disk_cache.entries()
    assert entry.record["choice"] == "two"
    assert entry.record["candidates"] == {"broken": None, "one": 9, "two": 5, "library": 7}


def test_waiting_chooses_where_nothing_can_be_compiled_elsewhere(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers.background, "available", lambda: False)
    choose = offer(Way("one", 10, 5), library=library(10, 7), mode="auto")
    assert choose("array") == ("library", 7)
    tiers.settle_all()
    assert choose("array") == ("one", 5)


def test_where_no_room_is_left_for_the_library_s_intermediate_a_kernel_runs(offer: Any, memory: TimedMemory) -> None:
    """The call waits for it then, in any mode."""

    class Large(Way):
        def run(self, memory: Memory, device: int) -> Callable[..., Any]:
            def run(*operands: Any) -> Any:
                raise MemoryError

            return run

    choose = offer(Way("one", 10, 9), library=Large("library", 10, 7), mode="auto")
    assert choose("array") == ("one", 9)
    assert choose("array") == ("one", 9)
    hopeless = offer(Large("one", 10, 9), library=Large("library", 10, 7), mode="auto")
    with pytest.raises(MemoryError):
        hopeless("array")
