"""Row operators and attention from their first call on: right whatever runs, and by kernels in the end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from first_calls import Ran, calls, decisions, in_a_checkpoint, on_a_gpu, results
from python_process import run_python

from einops_fast import autotune, ops, wait_for_kernels
from einops_fast.attention.attend import plan_of
from einops_fast.attention.choice import Undecided
from einops_fast.attention.options import Options, Request
from einops_fast.attention.registry import Implementation
from einops_fast.backends.torch import beginning
from einops_fast.backends.torch.attention.beginning import first_calls
from einops_fast.backends.torch.ops import begun
from einops_fast.runtime import tiers
from einops_fast.runtime.choosing import kernel_hash
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import ANY_SIZE, unchecked_mode


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(beginning.CallProblem, "is_loaded", lambda problem, way: True)
    yield from on_a_gpu(monkeypatch, tmp_path)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_checkpoint_is_decided_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second run of a call saves what the first one has, though kernels come between the two."""
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: bool(deterministic))
    deterministic: list[bool] = []
    ran = Ran()

    def call(x: Any, hooks: bool) -> str:
        with in_a_checkpoint(hooks):
            begun.begun(begun.Calls("softmax", ran.way("library"), ran.way("kernels"), (x,), 1, 1.0))(x)
        return ran[-1]

    x, other = (torch.ones(4, size, requires_grad=True) for size in (8, 9))
    assert [call(x, False), call(x, True)] == ["library", "library"]
    call(other, False)
    for each in beginning._tiers.values():
        each.decide(each.problem.named("kernels"))
    assert [call(x, False), call(x, True), call(x.detach(), True)] == ["kernels", "library", "library"]
    assert [call(other, True), call(other, False), call(other, True)] == ["kernels"] * 3
    deterministic.append(True)
    third = torch.ones(4, 10, requires_grad=True)
    assert [call(third, hooks) for hooks in (False, True)] == ["kernels"] * 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_library_s_results_lie_as_those_of_kernels() -> None:
    """Code that views them must not find another order when kernels come."""
    x = torch.randn(4, 3, 8).transpose(0, 1).requires_grad_()
    run = begun.begun(begun.Calls("softmax", lambda x: torch.softmax(x, 2).contiguous(), torch.sin, (x,), 2, 1.0))
    result = run(x)
    assert result.stride() == x.stride()
    torch.testing.assert_close(result, torch.softmax(x, 2))
    seed = torch.randn(3, 4, 8)
    torch.testing.assert_close(torch.autograd.grad(result, x, seed), torch.autograd.grad(torch.softmax(x, 2), x, seed))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("gradients", [False, True])
def test_calls_find_out_which_way_is_faster(monkeypatch: pytest.MonkeyPatch, gradients: bool) -> None:
    """They take turns, and the ones after them go one way; gradients count, too."""
    ran = Ran()
    monkeypatch.setattr(beginning._MEMORY, "stopwatch", ran.stopwatch({"library": 2.0, "kernels": 1.0}))
    monkeypatch.setattr(beginning.CallProblem, "compiled", lambda problem, name: None)
    monkeypatch.setattr(tiers, "PRICE", 0.0)
    kernel_hash()
    x = torch.ones(4, 8, requires_grad=gradients)
    for _ in range(200):
        result = begun.begun(begun.Calls("softmax", ran.way("library"), ran.way("kernels"), (x,), 1, 1.0))(x)
        torch.testing.assert_close(result, x.sin())
        if gradients:
            torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], x.cos())
        time.sleep(0.001)  # another thread prepares
    assert ran[0] == "library"
    assert 10 < ran.count("library") < 190
    assert ran[-10:] == ["kernels"] * 10


class Named(Implementation):
    """Notes that it ran."""

    def __init__(self, name: str, compiles: bool, ran: list[str]) -> None:
        self.name, self.compiles, self._ran = name, compiles, ran  # type: ignore[misc]

    def lacks(self, spec: Any) -> str | None:
        return None

    def run(self, spec: Any, inputs: Any) -> tuple[Any, Any]:
        self._ran.append(self.name)
        return (inputs.q * 2).mT.contiguous().mT, None


def attention_calls(q: Any, *chosen: Any, ways: Sequence[Implementation], predicted: Any) -> Any:
    """Return what computes calls of attention as on a GPU."""
    plan = plan_of(Request("b i d, b j d, b j e -> b i e", None, Options()), {"q": q, "k": q, "v": q}, "torch")
    plan = replace(plan, spec=replace(plan.spec, device="cuda:0"))
    return first_calls(plan, Undecided(ways, predicted, {"problem": "attention"}, "kind", *chosen), (q, q, q))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("known", [False, True])
def test_attention_in_a_checkpoint_is_decided_for_once(known: bool) -> None:
    """By what is known and loaded at its first call, if anything is."""
    ran: list[str] = []
    library, ours = Named("library", False, ran), Named("ours", True, ran)
    q = torch.ones(2, 3, 4, requires_grad=True)
    predicted = {"library": 2.0, "ours": 1.0}
    call = attention_calls(q, ours if known else None, ways=[library, ours], predicted=predicted)

    def runs(hooks: bool) -> str:
        ran.clear()
        with in_a_checkpoint(hooks):
            assert call(q, q, q).is_contiguous() == (ran[0] == "library")
        return ran[0]

    first = "ours" if known else "library"
    assert [runs(True), runs(False)] == [first, first]
    call._tiers.decide(ours)
    assert [runs(False), runs(True), runs(False)] == ["ours", first, "ours"]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The names of the ways that were decided for; kernels pay at once, and nothing is known of any."""
    yield from decisions(tiers.Tiers, "decide", monkeypatch, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "sum_norm", "softmax", "columns", "bias_gelu",
                                  "cross_entropy", "attention", "inference"])  # fmt: skip
def test_every_call_is_right_and_a_way_is_decided_for(name: str, decided: list[str]) -> None:
    run, operands = calls()[name]
    with autotune("never"):
        wanted = [each.double() for each in results(run, operands)]
    clear_plans()
    end = time.monotonic() + 120
    for _ in range(100_000):
        done = bool(decided) or time.monotonic() > end
        for found, expected in zip(results(run, operands), wanted, strict=True):
            assert (found.double() - expected).abs().max() <= 2e-2 * expected.abs().max()
        if done:
            break
    assert decided


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["layer_norm", "attention"])
def test_waiting_decides_for_a_way(name: str, decided: list[str]) -> None:
    run, operands = calls()[name]
    first = results(run, operands)
    assert not decided
    wait_for_kernels()
    assert len(decided) == 1
    for found, expected in zip(results(run, operands), first, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-1)


CHECKPOINTS = """
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

from einops_fast import autotune
from einops_fast.runtime import tiers

sys.path.insert(0, sys.argv[1])
from first_calls import calls, results

tiers.PRICE = tiers._PRICE_OF_COMPILER = 0.0
every = calls()
for name in ("layer_norm", "softmax", "bias_gelu", "attention"):
    decided = []
    tiers.Tiers.decide = lambda self, way, run=None: (decided.append(way), setattr(self, "decided", way))
    run, operands = every[name]
    end, done = time.monotonic() + 40, False
    while not done and time.monotonic() < end:
        done = bool(decided)
        results(lambda *given: checkpoint(run, *given, use_reentrant=False), operands)
        if not done:
            results(run, operands)
    if name != "attention":
        with autotune("never"):  # autograd's thread has another mode
            results(lambda *given: checkpoint(run, *given, use_reentrant=False), operands)
    print(bool(decided))
"""


@pytest.mark.gpu
def test_a_checkpoint_saves_the_same_twice(tmp_path: Path) -> None:
    """Whatever other calls find out meanwhile, and whatever the mode of autograd's thread is."""
    settings = {"EINOPS_FAST_AUTOTUNE": "auto", "EINOPS_FAST_CACHE_DIR": tmp_path}
    done = run_python("-c", CHECKPOINTS, str(Path(__file__).parents[2] / "support"), **settings)
    assert done.stdout.split() == ["True"] * 4


@pytest.mark.gpu
def test_other_lengths_of_a_class_share_what_was_decided(decided: list[str]) -> None:
    weight = torch.ones(256, device="cuda")
    for rows in (1000, 1001, 900):
        x = torch.randn(rows, 256, device="cuda")
        ops.layer_norm(x, weight=weight)
        wait_for_kernels()
        torch.testing.assert_close(ops.layer_norm(x, weight=weight), F.layer_norm(x, (256,), weight))
    assert len(decided) == 1


@pytest.mark.gpu
def test_the_bits_stay_where_determinism_is_asked_for(decided: list[str]) -> None:
    run, operands = calls()["attention"]
    torch.use_deterministic_algorithms(True)
    try:
        first = results(run, operands)
        for _ in range(100):
            assert all(torch.equal(*pair) for pair in zip(results(run, operands), first, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not decided


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "attention"])
def test_a_graph_is_captured_of_the_library_s_calls(name: str, decided: list[str]) -> None:
    run, operands = calls()[name]
    given = [each.detach() for each in operands]
    first = run(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*given)
    graph.replay()
    torch.testing.assert_close(captured, first)
    assert not decided


@pytest.mark.usefixtures("as_on_a_gpu")
def test_many_lengths_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few of them try kernels that serve any size; then all calls take these, and none compiles its own."""
    ran = Ran()
    monkeypatch.setattr(beginning._MEMORY, "stopwatch", ran.stopwatch({"library": 1.0, ANY_SIZE: 0.5}))

    def kernels(x: Any) -> Any:
        ran.append(unchecked_mode())
        return x.sin()

    compiled: list[str] = []
    monkeypatch.setattr(beginning.CallProblem, "compiled", lambda problem, name: compiled.append(name))
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
