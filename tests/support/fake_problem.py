"""A problem of tiers whose ways take the time that a test says, and whose planner is the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from einops_fast.runtime import tiers
from einops_fast.runtime.choosing import kernel_hash
from einops_fast.runtime.measuring import CONTRACTIONS
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tiers import Problem, Tiers


class Fake(Problem[str]):
    """Ways by name; each call returns the name of the one that ran."""

    library, policy = "library", CONTRACTIONS

    def __init__(self, real: Mapping[str, float], saves: float = 1.0, kind: str = "kind") -> None:
        self.real, self._saves, self.kind = real, saves, kind
        self.ordered: dict[str, Future[Any]] = {}
        self.measurable, self.passed, self.settled = True, True, 0
        self.running: str | None = None
        self.failing: set[str] = set()
        self.found: tuple[str, Callable[..., Any]] | None = None
        self.of_gradients: dict[str, float | None] = {}
        self.tiers = Tiers(self, self.keep)

    def keep(self, way: str, run: Callable[..., Any]) -> None:
        self.found = way, run

    def key(self) -> Mapping[str, Any]:
        return {"problem": self.kind, "ways": sorted(self.real)}

    def saves(self) -> float:
        return self._saves

    def near(self) -> Sequence[str]:
        return list(self.real)

    def compiled(self, name: str) -> Future[Any] | None:
        if name == "library":
            return None
        return self.ordered.setdefault(name, Future())

    def named(self, name: str) -> str:
        if name in self.failing:
            raise RuntimeError("too large a tile")
        return name

    def run(self, way: str) -> Callable[..., Any]:
        def run(*operands: Any) -> str:
            if operands == (way,):
                raise MemoryError
            self.running = way
            return way

        return run

    def preferred(self, ways: Iterable[str]) -> Collection[str]:
        return ()

    def stopwatch(self) -> Any:
        ran: list[str] = []
        return SimpleNamespace(
            start=lambda: None,
            stop=lambda: ran.append(str(self.running)),
            seconds=lambda: self.real[ran[-1]] if self.passed else None,
        )

    def gradients(self, result: Any, operands: Sequence[Any]) -> Any:
        return SimpleNamespace(seconds=lambda: self.of_gradients[result]) if self.of_gradients else None

    def may_measure(self) -> bool:
        return self.measurable

    def settle(self) -> str:
        self.settled += 1
        return "library"

    def call(self, *operands: Any) -> str:
        return str((self.found[1] if self.found else self.tiers.run())(*operands))

    def calls(self, count: int) -> list[str]:
        return [self.call() for _ in range(count)]

    def compile_all(self) -> None:
        for future in self.ordered.values():
            if not future.done():
                future.set_result(None)

    def begin(self) -> Fake:
        """Call it until its ways are compiled, and find that out."""
        self.calls(4)
        self.compile_all()
        return self

    @property
    def kept(self) -> str | None:
        return self.found and self.found[0]


@pytest.fixture(autouse=True)
def in_this_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What the planner is told is done at once."""

    class Planner:
        def put(self, work: Callable[[], None]) -> None:
            work()

    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiers, "planner", Planner)
    monkeypatch.setattr(tiers.background, "available", lambda: True)
    monkeypatch.setattr(tiers, "_PRICE_OF_COMPILER", 0.0)
    kernel_hash()
    clear_plans()
    yield
    clear_plans()
