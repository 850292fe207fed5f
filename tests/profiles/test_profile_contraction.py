"""The contraction study: what its cases are and cost, ours beside its peers, and what the table of any study says."""

import json
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from einops_fast import fast_einsum
from einops_fast.profiles import frameworks, processes, ways, worker
from einops_fast.profiles.cases import Case
from einops_fast.profiles.contraction.cases import FAMILIES, MODELS
from einops_fast.profiles.reporting.records import Options, Row
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.study import Task
from einops_fast.profiles.timing import accuracy, measure
from einops_fast.profiles.timing.clocks import HostClock
from einops_fast.profiles.ways import stored_shapes

STUDY = STUDIES["contraction"]

OURS = "fast_einsum"

SMALL = Case("small", "bik,bjk->bij", ((2, 3, 4), (2, 5, 4)))


# Cases


def ids(case):
    return case.name


def small(case):
    """The case with extents that differ, so that axes can't be mistaken; few where there are many axes."""
    many = len(case.extents) > 20
    return case.with_extents({letter: 1 + at % 2 if many else 2 + at for at, letter in enumerate(case.extents)})


@pytest.mark.parametrize("case", [*FAMILIES["all"], *MODELS], ids=ids)
def test_case_is_right_and_fits_a_cpu_when_scaled(numpy, case):
    tiny = small(case)
    given = ways.inputs(tiny, numpy, "float64", 0)
    reference = accuracy.Reference(tiny, given.operands, numpy.to_float64)
    assert reference.error(fast_einsum(tiny.called, *given.operands), numpy.to_float64) < 1e-13
    assert case.flops > 0
    assert all(count > 0 for count in case.elements)
    assert case.scaled("gpu", "float32") is case
    scaled = case.scaled("cpu", "float32")
    assert (scaled.name, scaled.equation, scaled.memory) == (case.name, case.equation, case.memory)
    assert scaled.flops <= 4e9
    assert max(scaled.elements) <= 7e6
    odd = [letter for letter, extent in case.extents.items() if extent % 2]
    assert case.uniform or all(scaled.extents[letter] % 2 for letter in odd)


# What a case costs


@pytest.mark.parametrize(
    ("case", "elements", "flops"),
    [
        (Case("", "ij,jk->ik", ((3, 4), (4, 5))), (12, 20, 15), 2 * 3 * 4 * 5),
        # a is summed before, and the trace taken.
        (Case("", "aij,jk->ik", ((7, 3, 4), (4, 5))), (84, 20, 15), 2 * 3 * 4 * 5),
        (Case("", "iaa,ij->ij", ((3, 4, 4), (3, 5))), (12, 15, 15), 3 * 5),
        # Each row of the result is the same.
        (Case("", "ij,jk->ik", ((3, 4), (4, 5)), memory=("j", "jk")), (4, 20, 15), 2 * 4 * 5),
        (Case("", "bij,bjk->bik", ((3, 4, 5), (3, 5, 6)), memory=("bi_j", "bjk")), (60, 90, 72), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_elements_and_flops_are_those_that_are_left(case, elements, flops):
    assert (case.elements, case.flops) == (elements, flops)


# Operands


def test_layouts_have_the_strides_they_tell_in_every_framework(numpy, torch):
    case = Case("", "bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), memory=("j_bi", "kj"))
    assert stored_shapes(case) == [(4, 2, 2, 3), (5, 4, 1)]
    left, right = ways.inputs(case, numpy, "float64", 0).operands
    assert (left.shape, right.shape) == case.shapes
    assert [stride // 8 for stride in left.strides] == [3, 1, 12]
    assert [stride // 8 for stride in right.strides] == [0, 1, 4]
    # A slice starts inside of its array.
    whole = accuracy.random_values(stored_shapes(case), 0)[0]
    np.testing.assert_array_equal(left, whole[:, 1].transpose(1, 2, 0))
    for ours, theirs in zip((left, right), ways.inputs(case, torch, "float64", 0).operands, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
        assert [stride // 8 for stride in ours.strides] == list(theirs.stride())


# Measuring


def test_ours_is_measured_beside_its_peers_with_gradients(torch, measured, mine):
    rows = measured("contraction", torch, "words", cases=str(mine), dtypes=("float32",))
    whats = ["native", "opt_einsum", OURS]
    assert list(rows) == [*((False, "words", what) for what in whats), *((True, "words", what) for what in whats[::2])]
    for (backward, _, what), row in rows.items():
        assert not row.failure
        assert row.seconds > 0
        assert row.spread >= 0
        assert 0 <= row.error < 1e-5
        # Operands of 24 and 40 elements, a result of 30, which is a sum of four products; backward has both gradients.
        assert row.moved == 4 * (24 + 40 + 30) * (2 if backward else 1) + 4 * (24 + 40) * backward
        assert row.flops == 2 * 4 * 30 * (3 if backward else 1)
        assert row.floor == pytest.approx(max(row.moved / 1e10, row.flops / 1e11))
        assert row.peak_bytes >= 4 * (64 if backward else 30)
        assert row.kernels
        assert sum(row.kernel_seconds.values()) > 0
        assert bool(row.best) is bool(row.to_best) is (what == OURS)


@pytest.mark.gpu
def test_a_gpu_has_memory_kernels_and_peers(measured):
    framework = frameworks.load("torch", "gpu")
    rows = measured(
        "contraction", framework, "mx1,x-batch-shared,x-qk-packed,x-trace", cases="all", dtypes=("float32",)
    )
    assert len([key for key in rows if key[2] == OURS]) == 5
    assert not any(row.failure for row in rows.values() if not row.guest)
    assert all(row.kernels and row.peak_bytes for (_, _, what), row in rows.items() if what == OURS)
    assert not rows[False, "mx1", "compile"].failure
    if find_spec("cupy") is not None:
        assert not rows[False, "mx1", "cupy"].failure


# Peers


def test_absent_peers_are_told(numpy, torch):
    names, told = STUDY.offered(numpy, Options(peers=STUDY.peers))
    assert names == ("native", "opt_einsum", OURS)
    assert [(row.what, row.guest) for row in told] == [(name, True) for name in ("compile", "cupy", "cutensor")]
    [row] = STUDY.offered(torch, Options(peers=("cupy",)))[1]
    assert row.failure == "CuPy runs on a GPU only"
    assert "Traceback" in row.details


# Compilation


@pytest.fixture
def compiling(torch, monkeypatch):
    """Makes the way that is compiled, by a function in place of torch.compile; and a log of what that was asked for."""

    def compiling(compile_):
        log = []

        def compiled(call, *, fullgraph, dynamic):
            assert (fullgraph, dynamic) == (True, False)
            log.append("compile")
            return compile_(call)

        monkeypatch.setattr(torch.torch.compiler, "reset", lambda: log.append("reset"))
        monkeypatch.setattr(torch.torch, "compile", compiled)
        return STUDY.ways(Task(torch, SMALL, "float32", False, ("compile",)))[0], log

    return compiling


def test_a_case_is_compiled_once_and_outside_the_time(compiling):
    clocked = []

    class Clock(HostClock):
        def sample(self, call, calls):
            clocked.append(list(log))
            return super().sample(call, calls)

    way, log = compiling(lambda call: call)
    [timing] = measure.compare(SMALL, [way], "float32", effort=measure.QUICK, clock=Clock(lambda: None))
    assert not timing.failure
    assert log == ["reset", "compile"]
    assert clocked[0] == log


# Compiling ahead


def test_what_is_measured_beside_other_processes_is_not_kept(monkeypatch):
    begun = []

    @contextmanager
    def child(arguments, variables):
        begun.append((arguments, variables))
        yield SimpleNamespace(process=SimpleNamespace(wait=lambda seconds: None))

    monkeypatch.setattr(processes, "Child", child)
    [told] = processes.run_ahead("ops", [("torch", str(at)) for at in range(6)], 16, 1.0)
    assert told.startswith("Kernels of 6 calls were compiled ahead")
    jobs = [job for command, _ in begun for job in json.loads(command[-1])]
    assert sorted(jobs) == [["torch", str(n)] for n in range(6)]
    assert {command[:2] for command, _ in begun} == {("ops", "ahead")}
    assert all("EINOPS_FAST_CACHE_DIR" in variables for _, variables in begun)


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("contraction", [("none", False, OURS), ("mx2", True, OURS), ("mx2", False, "opt_einsum")]),
        ("ops", [("softmax@256", True, "ours")]),
        ("attention", [("layout-bshd", True, "ours")]),
    ],
)
def test_jobs_are_called_once_and_failures_left_for_later(torch, monkeypatch, name, jobs):
    called = []
    chosen, one_call = STUDIES[name], STUDIES[name].one_call

    def counted(task, what):
        # As small as on a CPU.
        task = Task(task.framework, task.case.scaled("cpu", task.dtype), task.dtype, task.backward)
        way, call = one_call(task, what)
        return way, lambda: called.append((task.case.name, task.backward, way.name)) or call()

    monkeypatch.setattr(worker.frameworks, "load", lambda *arguments: torch)
    monkeypatch.setattr(chosen, "one_call", counted)
    worker.call_ahead(name, [("torch", case, "float32", backward, what) for case, backward, what in jobs])
    assert called == [job for job in jobs if job[0] != "none"]


# The table of a study


def row(case, what, seconds=1e-3, **others):
    speedup = None if seconds is None else 1e-3 / seconds
    return Row("torch", case, what, "float32", "e", "s", seconds, 1e-5, speedup, 5e-4, **others)


ROWS = [
    row("near", "native", peak_bytes=4 * 10**6),
    row("near", "compile", None, failure="TimeoutError: too long", guest=True),
    row("near", OURS, 0.5e-3, best="native", to_best=0.5, kernels="gemm", moved=10**6, flops=10**9, host=2e-5),
    row("far", "native"),
    row("far", "cutensor", 0.5e-3, guest=True),
    row("far", OURS, 2e-3, best="cutensor", to_best=4.0, kernels="gemm + copy"),
    row("even", "native"),
    row("even", OURS, 1.01e-3, best="native", to_best=1.01),
    row("late", "native"),
    row("late", OURS, 1.02e-3, best="native", to_best=1.02),
    row("broken", "native"),
    row("broken", OURS, None, failure="wrong: error 1, allowed 0"),
    row("unfinished", "native"),
]


def test_table_has_a_line_for_each_case_and_tells_what_ours_is_behind_in():
    [table] = STUDY.tables(ROWS)
    near, far, even, late, broken = (dict(zip(table.columns, cells, strict=True)) for cells in table.cells)
    assert [line["case"] for line in (near, far, even, late, broken)] == ["near", "far", "even", "late", "broken"]
    # Half of the spread to each side: intervals that touch overlap.
    assert [line["best/ours"] for line in (even, late)] == ["0.99 ≈", "0.98"]
    assert [line["native/ours"] for line in (near, even, late)] == ["2.00", "0.99 ≈", "0.98"]
    assert (far["native ms"], far["cutensor ms"], far["fast_einsum ms"]) == ("1.000", "0.500", "2.000")
    assert (far["ours/floor"], far["best peer"], far["best/ours"], far["native/ours"]) == (
        "4.00", "cutensor", "0.25", "0.50",
    )  # fmt: skip
    assert (near["cutensor ms"], near["GB/s"], near["TFLOP/s"], near["host µs"]) == ("–", "2", "2", "20")
    assert (near["native peak MB"], near["kernels of ours"]) == ("4.0", "gemm")
    assert "ours by" not in table.columns
    assert near["check"] == "right (without compile: TimeoutError: too long)"
    assert broken["check"] == "failed: fast_einsum wrong: error 1, allowed 0"
    assert table.summary == (
        "Geometric means: ours/floor 2.01 (4), best/ours 0.83 (4), native/ours 0.99 (4).",
        "Worst: ours/floor 4.00 (far), best/ours 0.25 (far), native/ours 0.50 (far).",
        "Behind the best peer: 2 of 4: far (0.25, cutensor), late (0.98, native).",
        "≈: within noise, as spreads overlap: 1 of the best peer, 1 of native.",
        "Ours failed: broken.",
    )
    assert table.figures["behind"] == {"far": 0.25, "late": pytest.approx(1 / 1.02)}
    assert table.figures["failed"] == ["broken"]
    assert table.figures["geomean"]["best/ours"] == pytest.approx((0.5 * 4 * 1.01 * 1.02) ** (-1 / 4))
