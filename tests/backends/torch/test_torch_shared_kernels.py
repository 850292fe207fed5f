"""Row operators of many shapes from their first call on: which share kernels, and which begin anew."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from first_calls import Ran, on_a_gpu

from einops_fast.backends.torch import beginning
from einops_fast.backends.torch.ops import begun
from einops_fast.runtime.tuning import ANY_SIZE, unchecked_mode


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    yield from on_a_gpu(monkeypatch, tmp_path)


def test_many_lengths_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of them try kernels that serve any size; then all calls take these, and none compiles its own."""
    ran = Ran()
    monkeypatch.setattr(beginning._MEMORY, "stopwatch", ran.stopwatch({"library": 1.0, ANY_SIZE: 0.5}))

    def kernels(x: Any) -> Any:
        ran.append(unchecked_mode())
        return x.sin()

    compiled: list[str] = []
    monkeypatch.setattr(beginning.CallProblem, "compiled", lambda problem, name: compiled.append(name))
    monkeypatch.setattr(beginning.CallProblem, "is_loaded", lambda problem, way: True)
    rehearsed = [SimpleNamespace(source="the kernel")]
    monkeypatch.setattr(beginning.CallProblem, "rehearsed", lambda problem, name: rehearsed)
    monkeypatch.setattr(begun._OperatorProblem, "saves", lambda problem: 1e-4)
    lengths = [torch.ones(4, size) for size in range(300, 700, 10)]
    last: list[str] = []
    for _ in range(60):
        last.clear()
        for x in lengths:
            run = begun.begun(begun.Calls("softmax", ran.way("library"), kernels, (x,), 1, 1.0))
            torch.testing.assert_close(run(x), x.sin())
            last.append(ran[-1])
        time.sleep(0.001)  # another thread prepares
    assert ran[0] == "library"
    assert set(last) == {ANY_SIZE}
    assert compiled == ["kernels for any size"]


def test_a_shape_whose_kernels_are_not_there_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others of its class run by kernels: no call waits for its own."""
    loaded: list[str] = []
    monkeypatch.setattr(beginning.CallProblem, "is_loaded", lambda problem, way: bool(loaded.append(way.name)))
    ways = [lambda x, name=name: name for name in ("library", "kernels")]
    runs = [begun.begun(begun.Calls("softmax", *ways, (torch.ones(rows, 8),), 1, 1.0)) for rows in (30, 31)]
    first, second = runs
    assert first._tiers is second._tiers
    shared = first._tiers
    shared.way = shared.problem.named("kernels for any size")
    assert [run(torch.ones(3, 8)) for run in (first, second, first, second, second)] == [
        "kernels", "library", "kernels", "library", "library"
    ]  # fmt: skip
    assert loaded == ["kernels for any size"]
    assert first._tiers is shared is not second._tiers
