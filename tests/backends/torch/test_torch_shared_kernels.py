"""Row operators of many shapes from their first call on: which share kernels, and which begin anew."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from einops_fast import autotune
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch import beginning
from einops_fast.backends.torch.ops import begun
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import ANY_SIZE, unchecked_mode


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls are as on a GPU, and nothing is kept of others."""
    monkeypatch.setattr(begun, "_INTERPRETED", False)
    monkeypatch.setattr(begun, "gpu_ceilings", lambda device: gpu_ceilings("H200"))
    clear_plans()
    yield
    clear_plans()


def test_many_lengths_share_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A few of them try kernels that serve any size; then all calls take these, and none compiles its own."""
    ran: list[str] = []

    class Watch:
        def start(self) -> None:
            pass

        def stop(self) -> None:
            self._seconds = 1.0 if ran[-1] == "library" else 0.5

        def seconds(self) -> float:
            return self._seconds

    def kernels(x: Any) -> Any:
        ran.append(unchecked_mode())
        return x.sin()

    def library(x: Any) -> Any:
        ran.append("library")
        return x.sin()

    compiled: list[str] = []
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(beginning._MEMORY, "stopwatch", Watch)
    monkeypatch.setattr(beginning.CallProblem, "compiled", lambda problem, name: compiled.append(name))
    monkeypatch.setattr(beginning.CallProblem, "is_loaded", lambda problem, way: True)
    rehearsed = [SimpleNamespace(source="the kernel")]
    monkeypatch.setattr(beginning.CallProblem, "rehearsed", lambda problem, name: rehearsed)
    monkeypatch.setattr(begun._OperatorProblem, "saves", lambda problem: 1e-4)
    lengths = [torch.ones(4, size) for size in range(300, 700, 10)]
    last: list[str] = []
    with autotune("auto"):
        for _ in range(60):
            last.clear()
            for x in lengths:
                torch.testing.assert_close(
                    begun.begun(begun.Calls("softmax", library, kernels, (x,), 1, 1.0))(x), x.sin()
                )
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
    with autotune("auto"):
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
