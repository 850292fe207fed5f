"""Metrics: what is recorded of plans, steps, kernels and fallbacks; that nothing is, and nothing costs, while off."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

import einops_fast
from einops_fast import contract_expression, fast_einsum, metrics
from einops_fast.errors import EinsumError
from einops_fast.observing import fallbacks, observers, recording
from einops_fast.observing.kernel_metadata import kernel_rows
from einops_fast.runtime.plan_cache import clear_plans, compiled

COPYING = "ijk,kjl->il", (np.ones((3, 4, 5)), np.ones((5, 4, 6)))


def run_copying():
    equation, operands = COPYING
    return fast_einsum(equation, *operands)


# Off


def test_a_call_that_nobody_observes_runs_the_bare_plan(tmp_path):
    def plans():
        clear_plans()
        run_copying()
        [run] = compiled.values()
        return run.__qualname__

    bare = plans()
    assert "observed" not in bare
    with metrics.record(tmp_path):
        assert "observed" in plans()
    assert plans() == bare


def test_whoever_kept_a_plan_lets_go_of_it(tmp_path):
    expression = contract_expression("ij,jk->ik", (2, 3), (3, 4))
    operands = np.ones((2, 3)), np.ones((3, 4))
    expression(*operands)
    with metrics.record(tmp_path) as seen:
        expression(*operands)
        expression(*operands)
    expression(*operands)
    [record] = seen.records.values()
    assert record.times.calls == 2


# On


def test_tables_say_what_happened(tmp_path):
    with metrics.record(tmp_path):
        for _ in range(3):
            run_copying()
        fast_einsum("ij,jk->ik", np.ones((2, 2), int), np.ones((2, 2), int))
    tables = metrics.read(tmp_path)
    copying, integers = tables["plans"]
    assert copying["equation"] == "ijk,kjl->il"
    assert copying["shapes"] == "3×4×5 5×4×6"
    assert copying["calls"] == "3"
    assert (copying["dtype"], copying["backend"], copying["device"]) == ("float64", "numpy", "cpu")
    assert int(copying["copied_bytes"]) == 8 * 5 * 4 * 6
    assert int(copying["flops"]) == 2 * 3 * 4 * 5 * 6
    assert float(copying["median_seconds"]) > 0
    assert float(copying["total_seconds"]) >= float(copying["median_seconds"])
    assert float(copying["predicted_seconds"]) > float(copying["floor_seconds"]) > 0
    [gemm] = [row for row in tables["steps"] if row["kind"] == "gemm"]
    assert (gemm["calls"], gemm["batch_m_n_k"]) == ("3", "1×3×6×20")
    assert "1 is copied, because" in gemm["operands"]
    assert float(gemm["median_seconds"]) <= float(copying["median_seconds"])
    found = {(row["equation"], row["category"], row["calls"]) for row in tables["fallbacks"]}
    assert found == {("ijk,kjl->il", "copy", "3"), (integers["equation"], "dtype", "1")}
    assert {row["category"] for row in tables["fallbacks"]} <= fallbacks.CATEGORIES.keys()
    assert tables["kernels"] == []


def test_blocks_nest_and_share_a_folder(tmp_path):
    """Each has the tables that it asked for, and a plan is made anew wherever a block begins or ends."""
    folder = tmp_path / "new" / "folder"
    with metrics.record(tmp_path) as outer:
        run_copying()
        for _ in range(2):
            with metrics.record(folder, ["plans"]) as inner:
                run_copying()
        run_copying()
    assert [path.name for path in sorted(folder.iterdir())] == [f"plans-{os.getpid()}-{at}.csv" for at in range(2)]
    assert len(metrics.read(folder)["plans"]) == 2
    assert [sum(record.times.calls for record in seen.plans) for seen in (outer, inner)] == [4, 1]
    [first], [second] = outer.plans[1:2], inner.plans
    assert [times.calls for times in first.steps] == [times.calls for times in second.steps]


def test_a_block_that_fails_writes_its_tables(tmp_path):
    def fail():
        with metrics.record(tmp_path):
            run_copying()
            fast_einsum("ij,jk", np.ones((2, 3)), np.ones((4, 5)))

    with pytest.raises(EinsumError):
        fail()
    assert [row["inside"] for row in metrics.read(tmp_path)["plans"]] == ["0"]
    assert observers._active == ()


def test_patched_calls_and_those_left_alone(tmp_path):
    with metrics.record(tmp_path), einops_fast.patched("numpy"):
        np.einsum("ijk,kjl->il", *COPYING[1])
        np.einsum("ij,jk->ik", np.ones((2, 2), int), np.ones((2, 2), int))
    tables = metrics.read(tmp_path)
    assert [row["equation"] for row in tables["plans"]] == ["ijk,kjl->il"]
    [left] = [row for row in tables["fallbacks"] if row["category"] == "native"]
    assert (left["equation"], left["backend"], left["calls"]) == ("ij,jk->ik", "numpy", "1")


def test_gradients_are_recorded_and_pairs_are_inside(tmp_path, torch):
    with metrics.record(tmp_path):
        q, k = (torch.randn(2, size, 3, 4, requires_grad=True) for size in (5, 6))
        fast_einsum("bind,bjnd->bnij", q, k).sum().backward()
        three = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
        fast_einsum("ij,jk,kl->il", *three)
    plans = metrics.read(tmp_path)["plans"]
    whole = [row["equation"] for row in plans if row["inside"] == "0"]
    assert whole[0] == "bind,bjnd->bnij"
    # Both gradients, which are contractions too.
    assert len(whole) == 4
    assert "ij,jk,kl->il" in whole
    assert len(plans) - len(whole) == 2


def test_mxnet_is_waited_for(tmp_path):
    if find_spec("mxnet") is None:
        pytest.skip("MXNet isn't installed")
    backend = einops_fast.backends.get_backend("mxnet")
    a = backend.example((200, 200), "float32")
    with metrics.record(tmp_path):
        fast_einsum("ij,jk->ik", a, a)
    [row] = metrics.read(tmp_path)["plans"]
    assert float(row["median_seconds"]) > 0


@pytest.mark.parametrize("tables", [["plans", "colours"], "plans"])
def test_no_such_table(tables, tmp_path):
    with pytest.raises(EinsumError, match="no such table"), metrics.record(tmp_path, tables):
        pass
    assert observers._active == ()


# Times


def test_times_are_read_when_they_are_asked_for():
    read = []

    def between(start, end):
        read.append((start, end))
        return end - start

    times = recording.Times(between)
    times.add(0, 100)
    times.add(100, 102)
    times.add(200, 204)
    times.add(None, None)  # while a graph is being captured, say
    assert read == []
    assert times.median == 3
    assert times.first == 100
    assert (times.calls, times.total) == (4, 106 + 3)
    assert len(read) == 3
    for _ in range(10 * recording._MOST_PENDING):
        times.add(0, 1)
    assert len(times._pending) <= recording._MOST_PENDING, "events of a device are not held on to"


def test_a_torch_event_is_no_host_time(monkeypatch, torch):
    backend = einops_fast.backends.get_backend("torch")
    log = []

    def event(enable_timing):
        assert enable_timing
        wait, milliseconds = (lambda: log.append("wait")), (lambda end: 5.0)
        return SimpleNamespace(record=log.append, synchronize=wait, elapsed_time=milliseconds)

    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("einops_fast.backends.torch.backend.PLAIN", (SimpleNamespace,))
    array = SimpleNamespace(is_cuda=True, device="cuda:1")
    start, end = backend.mark(array), backend.mark(array)
    assert backend.between(start, end) == 0.005
    assert log == ["stream of cuda:1"] * 2 + ["wait"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert backend.mark(array) is None


# Kernels


def test_kernels_of_a_real_choice(tmp_path, monkeypatch, torch):
    """A fused step, run by Triton's interpreter, or on a GPU by what was compiled."""
    pytest.importorskip("triton")
    from einops_fast.backends.torch.memory import TorchMemory
    from einops_fast.backends.triton.contraction.choice import Choice
    from einops_fast.planning.steps import Fused, Loop

    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    loops = Loop("i", 32, (16, 0), True), Loop("k", 32, (0, 1), True), Loop("j", 16, (1, 32), False)
    step = Fused((0, 1), "ik", (32, 32), loops, True, ())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    left, right = torch.randn(32, 16, device=device), torch.randn(16, 32, device=device)
    choice = Choice(step, torch.mm, TorchMemory(), "ieee", "always")
    torch.testing.assert_close(choice(left, right), left @ right)
    [row] = kernel_rows(choice, 0)
    assert row["way"] == choice.chosen.name
    if device == "cpu":
        assert row["grid"].count("×") == 2
        assert row["registers"] is None
    else:
        assert row["chosen_by"] == "measurement"
        assert (row["registers"] is None) == row["way"].startswith("library")


def test_copies_of_library_calls_count_where_these_were_chosen():
    """A step with a kernel copies nothing, unless the library's calls run it."""
    from einops_fast.backends.gpus import gpu_ceilings
    from einops_fast.planning.notation import parse
    from einops_fast.planning.plan import make_plan
    from einops_fast.planning.target import Numerics, Operand, Target

    operands = [Operand((a, b, c), (b * c, c, 1), "float32") for a, b, c in ((300, 40, 50), (50, 40, 60))]
    target = Target("torch", "cuda:0", gpu_ceilings("H200"), kernels=frozenset({"float32"}))
    plan = make_plan(parse("ijk,kjl->il", (3, 3)), operands, target, Numerics("float32", "float32"))
    [step] = plan.steps
    assert type(step).__name__ == "Fused"
    kernel, library = (SimpleNamespace(chosen=SimpleNamespace(name=name)) for name in ("tile 64", "library on copies"))
    assert list(fallbacks.copies(plan)) == list(fallbacks.copies(plan, [kernel])) == []
    for run in (library, len):
        [copy] = fallbacks.copies(plan, [run])
        assert (copy.category, copy.slot, copy.wanted, copy.bytes) == ("copy", 1, "jkl", 4 * 50 * 40 * 60)
    assert list(fallbacks.copies(plan, [SimpleNamespace(chosen=None)])) == []
