"""The contraction study: what it measures and watches, what its tables conclude, and which files it keeps."""

import json
import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import einops_fast
from einops_fast.profiles import compare, frameworks, processes, study, worker
from einops_fast.profiles.cases import CONTRACTIONS, Case
from einops_fast.profiles.contraction.peers import Peer
from einops_fast.profiles.contraction.study import OURS
from einops_fast.profiles.profilers import kernels
from einops_fast.profiles.reporting.records import Machine, Note, Options, Row, decode, encode
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing import limits
from einops_fast.profiles.timing.ceilings import Ceilings
from einops_fast.profiles.timing.memory import extra_memory

CEILINGS = Ceilings(bandwidth=1e10, flops=1e11)

H200 = Machine("NVIDIA H200", 16, {"torch": "2"}, gpu=True)


@pytest.fixture
def torch(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: CEILINGS)
    return frameworks.load("torch", "cpu", 1)


def measured(framework, **options):
    """Rows by what they are of, the later ones counting, and notes."""
    found = list(STUDIES["contraction"].measure(framework, Options(dtypes=("float32",), quick=True, **options)))
    rows = {record.key[2:]: record for record in found if isinstance(record, Row)}
    return rows, [record.text for record in found if isinstance(record, Note)]


def row(case, what, seconds=1e-3, *, native=1e-3, floor=5e-4, **others):
    speedup = None if seconds is None else native / seconds
    return Row("torch", case, what, "float32", "e", "s", seconds, 0.0, speedup, floor, **others)


# Measuring


def test_ours_is_measured_beside_its_peers(torch):
    rows, notes = measured(torch, only="outer")
    assert [what for _, _, what in rows] == ["native", "opt_einsum", OURS]
    assert not any(row.failure for row in rows.values())
    ours = rows[False, "outer", OURS]
    assert ours.best in ("native", "opt_einsum")
    assert ours.to_best > 0
    assert ours.floor > 0
    assert ours.kernels
    assert ours.extra_bytes is None
    assert rows[False, "outer", "native"].best == ""
    assert notes == ["torch float32 reaches 10 GB/s in a copy and 100 GFLOP/s in a GEMM"]


def test_gradients_of_what_models_are_trained_through_are_measured(torch):
    rows, _ = measured(torch, only="mx2,outer", peers=("native",))
    assert [key for key in rows if key[0]] == [(True, "mx2", "native"), (True, "mx2", OURS)]
    ours = rows[True, "mx2", OURS]
    assert not ours.failure
    assert ours.seconds > 0
    assert ours.floor > rows[False, "mx2", OURS].floor
    assert ours.best == "native"
    assert ours.kernel_seconds
    assert ours.peak_bytes > 0


def test_wrong_gradients_fail(torch, monkeypatch):
    def detached(equation, left, right):
        return torch.torch.einsum(equation, left, right.detach() + 0 * right)

    monkeypatch.setattr(einops_fast, "fast_einsum", detached)
    rows, _ = measured(torch, only="mx2", peers=("native",))
    assert not rows[False, "mx2", OURS].failure
    assert rows[True, "mx2", OURS].failure.startswith("wrong")


def test_cases_come_from_the_family_asked_for(torch):
    rows, _ = measured(torch, cases="extra", only="x-trace", peers=("native",))
    assert {case for _, case, _ in rows} == {"x-trace"}


def test_a_case_that_fails_altogether_is_not_the_end(torch, monkeypatch):
    real = study.check

    def check(case, *arguments, **options):
        if case.name == "outer":
            raise MemoryError("no room for operands")
        return real(case, *arguments, **options)

    monkeypatch.setattr(study, "check", check)
    rows, _ = measured(torch, only="outer,scale", peers=("native",))
    assert rows[False, "outer", OURS].failure == "MemoryError: no room for operands"
    assert not rows[False, "scale", OURS].failure


def test_watching_may_fail(torch, monkeypatch):
    def refused(*arguments):
        raise RuntimeError("CUPTI is in use")

    monkeypatch.setattr(kernels, "kernel_times", refused)
    rows, _ = measured(torch, only="outer", peers=("native",))
    assert rows[False, "outer", OURS].seconds > 0
    assert rows[False, "outer", OURS].kernels == ""


@pytest.mark.gpu
def test_a_gpu_has_memory_kernels_and_peers():
    framework = frameworks.load("torch", "gpu")
    rows, _ = measured(framework, cases="all", only="mx1,x-batch-shared,x-qk-packed,x-trace")
    assert len([key for key in rows if key[2] == OURS]) == 5
    assert [row.failure for row in rows.values() if not row.guest] == [""] * sum(not row.guest for row in rows.values())
    for (backward, _, what), row in rows.items():
        if what == OURS and not backward:
            assert row.extra_bytes >= 0
            assert row.kernels
    assert not rows[False, "mx1", "compile"].failure
    if find_spec("cupy") is not None:
        assert not rows[False, "mx1", "cupy"].failure


# Memory and kernels


class FakeCuda:
    """Counts what is allocated, as torch.cuda does."""

    def __init__(self):
        self.now = self.peak = 1000

    def allocate(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)
        return Block(self, size)

    def memory_allocated(self):
        return self.now

    def max_memory_allocated(self):
        return self.peak

    def reset_peak_memory_stats(self):
        self.peak = self.now


class Block:
    def __init__(self, cuda, size):
        self.cuda, self.size = cuda, size

    def __del__(self):
        self.cuda.now -= self.size


@pytest.fixture
def cuda():
    pytest.importorskip("torch")
    framework = frameworks.load("torch", "cpu", 1)
    assert extra_memory(framework, lambda: None) is None
    framework.device = "gpu"
    framework.torch = SimpleNamespace(cuda=FakeCuda())
    return framework


def test_extra_memory_is_what_operands_and_result_do_not_hold(cuda):
    allocate = cuda.torch.cuda.allocate

    def copies():
        copy = allocate(64)
        result = allocate(10)
        del copy
        return result

    assert extra_memory(cuda, lambda: allocate(10)) == 0
    assert extra_memory(cuda, copies) == 64


def test_extra_memory_counts_what_a_plan_keeps_but_not_what_making_it_took(cuda):
    allocate = cuda.torch.cuda.allocate
    kept = []

    def call():
        if not kept:
            allocate(500)
            kept.append(allocate(32))
        return allocate(10)

    assert extra_memory(cuda, call) == 32


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Memset (Device)", "memset"),
        ("Memcpy DtoD (Device -> Device)", "memcpy dtod"),
        ("_contract_kernel", "_contract_kernel"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>(cutlass_80_simt_sgemm::Params)",
            "cutlass_80_simt_sgemm_128x256_8x4_nn_align1",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int, float)",
            "copy",
        ),
        ("void at::native::reduce_kernel<128, 4, ReduceOp<float, sum_functor<float, float>>>(ReduceOp<float>)", "sum"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int*)", "CatArrayBatchedCopy"),
        ("void gemv2T_kernel_val<int, int, __half>(cublasGemvParamsEx<int>, float)", "gemv2T_kernel_val"),
        ("sm80_xmma_gemm_" + "x" * 100, "sm80_xmma_gemm_" + "x" * 32 + "…"),
    ],
)
def test_kernels_have_short_names(name, short):
    assert kernels.short_name(name) == short


def test_kernels_are_told_longest_first_and_once():
    times = [(0.9, "void f<int>(x)"), (0.2, "Memset (Device)"), (0.1, "void f<float>(x)"), (0.001, "tiny")]
    assert kernels.summary(times) == "f + memset"
    assert kernels.summary([]) == ""


# Tables


ROWS = [
    row("near", "native"),
    row("near", "compile", None, failure="TimeoutError: too long", guest=True),
    row("near", OURS, 0.5e-3, best="native", to_best=0.5, extra_bytes=0, kernels="gemm"),
    row("far", "native"),
    row("far", "cutensor", 0.5e-3, guest=True),
    row("far", OURS, 2e-3, best="cutensor", to_best=4.0, extra_bytes=1234567, kernels="gemm + copy"),
    row("even", "native"),
    row("even", OURS, 1.01e-3, best="native", to_best=1.01),
    row("broken", "native"),
    row("broken", OURS, None, failure="wrong: error 1, allowed 0"),
    row("unfinished", "native"),
]


def test_table_has_a_column_for_each_peer():
    [table] = STUDIES["contraction"].tables(ROWS)
    lines = {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells in table.cells}
    assert list(lines) == ["near", "far", "even", "broken"]
    assert lines["far"]["native ms"] == "1.000"
    assert lines["far"]["cutensor ms"] == "0.500"
    assert lines["near"]["cutensor ms"] == "–"
    assert lines["far"]["ours ms"] == "2.000"
    assert lines["far"]["ours/floor"] == "4.00"
    assert (lines["far"]["best peer"], lines["far"]["ours/best"]) == ("cutensor", "4.00")
    assert lines["far"]["ours/native"] == "2.00"
    assert (lines["far"]["extra bytes"], lines["near"]["extra bytes"], lines["even"]["extra bytes"]) == (
        "1,234,567",
        "0",
        "",
    )
    assert lines["far"]["kernels of ours"] == "gemm + copy"


def test_what_guests_fail_at_is_told_but_is_no_failure():
    [table] = STUDIES["contraction"].tables(ROWS)
    checks = {cells[0]: cells[-1] for cells in table.cells}
    assert checks["near"] == "right (without compile: TimeoutError: too long)"
    assert checks["broken"] == "failed: fast_einsum wrong: error 1, allowed 0"
    assert checks["far"] == "right"


def test_summary_names_what_ours_is_behind_in():
    [table] = STUDIES["contraction"].tables(ROWS)
    assert table.summary == (
        "Geometric means: ours/floor 2.01 (3 cases), ours/best peer 1.26 (3 cases), ours/native 1.00 (3 cases).",
        "Worst: ours/floor 4.00 (far), ours/best peer 4.00 (far), ours/native 2.00 (far).",
        "Behind the best peer by over 2%: 1 of 3 cases: far (4.00, cutensor).",
        "Ours failed: broken.",
    )
    assert table.figures["behind"] == {"far": 4.0}
    assert table.figures["failed"] == ["broken"]
    assert table.figures["worst"] == {"ours/floor": "far", "ours/best peer": "far", "ours/native": "far"}
    assert table.figures["geomean"]["ours/best peer"] == pytest.approx((0.5 * 4 * 1.01) ** (1 / 3))


def test_backward_is_a_table_of_its_own():
    backward = [row("mx0", "native", floor=None, backward=True), row("mx0", OURS, 0.5e-3, floor=None, backward=True)]
    forward, table = STUDIES["contraction"].tables([*ROWS, *backward])
    assert "backward" in table.title
    assert "backward" not in forward.title
    assert table.cells == [("mx0", "e", "s", "1.000", "0.500", "0.50", "right")]
    assert table.summary[0] == "Geometric means: ours/native 0.50 (1 case)."


def test_nothing_right_makes_a_table_all_the_same():
    [table] = STUDIES["contraction"].tables(
        [row("only", "native", None, failure="x"), row("only", OURS, None, failure="y")]
    )
    assert table.cells[0][-1] == "failed: native x; fast_einsum y"
    assert table.summary[-1] == "Ours failed: only."


# Files


@pytest.fixture
def run(monkeypatch, tmp_path):
    pytest.importorskip("rich")

    def run(records, *, frameworks=(), **options):
        monkeypatch.setattr(compare, "run_worker", lambda study, framework, options: iter(records))
        monkeypatch.setattr(STUDIES["contraction"], "frameworks", ("numpy",))
        outcome = compare.run_study("contraction", compare.Run(Options(**options), tmp_path, frameworks))
        return outcome.status, sorted(path.name for path in tmp_path.iterdir())

    return run


RIGHT = [H200, row("far", "native"), row("far", OURS, 2e-3, best="native", to_best=2.0)]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib isn't installed")
@pytest.mark.parametrize(
    ("options", "stem", "plot"),
    [
        ({}, "contraction-nvidia-h200", "contraction-nvidia-h200-float32"),
        ({"dtypes": ("float32",)}, "contraction-nvidia-h200-float32", "contraction-nvidia-h200-float32"),
        ({"cases": "extra"}, "contraction-extra-nvidia-h200", "contraction-extra-nvidia-h200-float32"),
    ],
)
def test_a_full_run_is_kept_and_drawn(run, options, stem, plot):
    tables = [f"{stem}.{kind}" for kind in ("csv", "json", "md")]
    plots = [f"{plot}{which}.{kind}" for which in ("", "-native") for kind in ("png", "svg")]
    assert run(RIGHT, **options) == (0, sorted(tables + plots))


@pytest.mark.parametrize(
    "options",
    [
        {"only": "far"},
        {"quick": True},
        {"peers": ("native",)},
        {"frameworks": ("torch",)},
        {"forward_only": True},
    ],
)
def test_a_part_of_a_run_does_not_replace_a_whole_one(run, options):
    stem = "contraction-nvidia-h200-partial"
    assert run(RIGHT, **options) == (0, [f"{stem}.csv", f"{stem}.json", f"{stem}.md"])


def test_later_rows_count(run, tmp_path):
    watched = row("far", OURS, 2e-3, best="native", to_best=2.0, extra_bytes=7, kernels="gemm")
    run([*RIGHT, watched], quick=True)
    kept = json.loads((tmp_path / "contraction-nvidia-h200-partial.json").read_text("utf-8"))
    assert [(row["what"], row.get("kernels")) for row in kept["rows"]] == [("native", None), (OURS, "gemm")]
    [summary] = kept["summaries"]
    assert summary["behind"] == {"far": 2.0}
    assert summary["geomean"]["ours/floor"] == pytest.approx(4.0)


def test_files_are_named_after_the_gpu(run):
    _, names = run([Machine("Some CPU", 2, {}), *RIGHT], quick=True)
    assert names[0] == "contraction-nvidia-h200-partial.csv"


def test_only_what_is_ours_or_native_fails_the_run(run):
    assert run([*RIGHT, row("far", "compile", None, failure="x", guest=True)], quick=True)[0] == 0
    assert run([*RIGHT, row("near", OURS, None, failure="x")], quick=True)[0] == 1


def test_a_request_to_terminate_interrupts_once():
    handler = signal.getsignal(signal.SIGTERM)
    with limits.interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        # What is done about it isn't interrupted again.
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_watched_row_travels():
    watched = row("far", OURS, backward=True, guest=True, best="cupy", to_best=0.5, extra_bytes=3, kernels="k")
    watched = replace(watched, kernel_seconds={"k": 1e-3}, peak_bytes=9, host=1e-5, moved=4, flops=5, error=1e-7)
    assert decode(encode(watched)) == watched
    assert decode(encode(H200)) == H200


# Compiling ahead


def test_what_is_compiled_ahead(monkeypatch):
    told = []
    monkeypatch.setattr(study, "run_ahead", lambda study, jobs, threads, seconds: told.append(jobs) or [])
    [known] = [case for case in CONTRACTIONS if case.name == "mx0"]
    plan = {"float16": [(known, [False, True]), (Case("own", "i->", ((2,),)), [False])]}
    gpu = SimpleNamespace(name="torch", threads=16)
    for peers in ([], ["native", "compile"]):
        given = [Peer(name, lambda case, dtype: None) for name in peers]
        assert STUDIES["contraction"].compile_ahead(gpu, plan, given) == []
    ours, both = told
    assert ours == [("torch", "mx0", "float16", False, OURS), ("torch", "mx0", "float16", True, OURS)]
    assert set(both) - set(ours) == {("torch", "mx0", "float16", False, "compile")}


def test_what_is_measured_beside_other_processes_is_not_kept(monkeypatch):
    begun = []

    class Process:
        def __init__(self, command, env, **options):
            begun.append((command, env))

        def wait(self, seconds):
            pass

        def poll(self):
            return 0

    monkeypatch.setattr(processes.subprocess, "Popen", Process)
    [told] = processes.run_ahead("ops", [("torch", str(at)) for at in range(6)], 16, 1.0)
    assert told.startswith("Kernels of 6 calls were compiled ahead")
    assert sorted(job for command, _ in begun for job in json.loads(command[-1])) == [
        ["torch", str(n)] for n in range(6)
    ]
    assert {command[3:5] == ["ops", "ahead"] for command, _ in begun} == {True}
    assert all("EINOPS_FAST_CACHE_DIR" in env for _, env in begun)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch isn't installed")
@pytest.mark.parametrize(
    ("name", "jobs", "gradients"),
    [
        ("contraction", [("tiny", False, OURS), ("none", False, OURS), ("tiny", True, OURS)], 1),
        ("contraction", [("tiny", False, "opt_einsum")], 0),
        ("ops", [("softmax@256", True, "ours"), ("softmax@256", False, "ours")], 1),
        ("attention", [("layout-bshd", True, "ours")], 1),
    ],
)
def test_jobs_are_called_once_and_failures_left_for_later(monkeypatch, name, jobs, gradients):
    framework = frameworks.load("torch", "cpu", 1)
    called = []
    chosen, one_call = STUDIES[name], STUDIES[name].one_call

    def counted(task, what):
        way, call = one_call(task, what)
        return way, lambda: called.append((task.case.name, task.backward, way.name)) or call()

    monkeypatch.setattr(worker.frameworks, "load", lambda *arguments: framework)
    monkeypatch.setattr(chosen, "one_call", counted)
    if name == "contraction":
        monkeypatch.setattr(chosen, "families", {"public": (Case("tiny", "ij,jk->ik", ((2, 3), (3, 4))),)})
    else:
        small = type(chosen).scaled
        monkeypatch.setattr(chosen, "scaled", lambda case, device, dtype: small(chosen, case, "cpu", dtype))
    right = framework.gradient
    made = []
    monkeypatch.setattr(framework, "gradient", lambda *given: made.append(1) or right(*given))
    worker.call_ahead(name, [("torch", case, "float32", backward, what) for case, backward, what in jobs])
    assert called == [job for job in jobs if job[0] != "none"]
    assert len(made) == gradients
