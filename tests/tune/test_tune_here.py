"""What is measured ahead on a GPU, and what later calls find of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from first_calls import Ran, on_a_gpu
from recorded_calls import attention_call, einsum_call, layout, operator_call, written

from einops_fast import ops
from einops_fast.backends.torch import beginning
from einops_fast.backends.torch.ops import begun
from einops_fast.cli import main
from einops_fast.runtime import disk_cache
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    yield from on_a_gpu(monkeypatch, tmp_path / "choices")


@pytest.mark.parametrize("faster", ["library", "kernels"])
@pytest.mark.parametrize("by_host", [False, True])
def test_operators_are_compared_with_the_library(monkeypatch: pytest.MonkeyPatch, faster: str, by_host: bool) -> None:
    """With their gradients, by what the caller waits for; what is chosen is written where calls look for it."""
    ran = Ran()

    class Clock:
        def __init__(self, memory: Any, device: int) -> None:
            pass

        def seconds(self, run: Any, repeat: int) -> list[float]:
            run()
            return [1e-5 if (ran[-1] == faster) != by_host else 2e-5] * repeat

        def wall_seconds(self, run: Any, calls: int) -> float:
            run()
            return 3e-5 if ran[-1] == faster and by_host else 6e-5 if by_host else 1e-6

    monkeypatch.setattr(begun, "DeviceClock", Clock)
    monkeypatch.setattr(beginning, "sample_like", lambda meta, device: torch.ones(meta.shape, requires_grad=True))
    begun.begun(begun.Calls("softmax", ran.way("library"), ran.way("kernels"), (torch.ones(4, 8),), 1, 1.0))
    (problem,) = [each.problem for each in beginning._tiers.values()]
    assert problem.settle().name == faster
    (entry,) = disk_cache.entries()
    assert entry.key == problem.key()
    assert entry.record["choice"] == faster
    assert set(entry.record["candidates"]) == {"library", "kernels"}


@pytest.mark.gpu
def test_a_recorded_run_is_tuned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Choices are on disk for all kinds of calls, in a bundle, too; a later call finds its own."""
    x, weight = layout(4096, 1024, gradient=True), layout(1024, gradient=True)
    calls = (
        einsum_call("bihd,bjhd->bhij", *[layout(4, 512, 8, 64, gradient=True)] * 2),
        operator_call("norm", [x, weight, weight], 1, 1, 1e-5, True),
        attention_call(*[layout(4, 512, 8, 64, gradient=True)] * 3, window=None),  # libraries have none
    )
    path = written(tmp_path / "calls.csv", *calls)
    assert main(["tune", str(path), "--out", str(tmp_path / "bundle.zip")]) == 0
    assert capsys.readouterr().out == "tuned for 3 kinds of calls, and left out 0\n"
    problems = sorted(str(entry.key.get("problem", "")) for entry in disk_cache.entries())
    for words in ("attention heads", "norm or the library", ":512:"):
        assert any(words in problem for problem in problems), problems
    assert disk_cache.clear() == len(problems)
    assert main(["cache", "import", str(tmp_path / "bundle.zip")]) == 0
    assert "choices" in capsys.readouterr().out
    clear_plans()
    given = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    scale = torch.ones(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ops.layer_norm(given, weight=scale, bias=scale)
    (problem,) = [each.problem for each in beginning._tiers.values()]
    assert disk_cache.read(problem.key()) is not None
