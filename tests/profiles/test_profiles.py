"""The profiles measure what they say they do. No test asserts a time."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from einops_fast.profiles import compare, frameworks
from einops_fast.profiles.__main__ import main
from einops_fast.profiles.cases import CONTRACTIONS, ITEM_SIZES, PROBLEMS, Case, scaled, select
from einops_fast.profiles.contraction.cases import FAMILIES
from einops_fast.profiles.einsum.study import BY_HAND
from einops_fast.profiles.overhead import study as study_overhead
from einops_fast.profiles.reporting import records, results
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.timing import accuracy, measure
from einops_fast.profiles.timing.ceilings import Ceilings, Work
from einops_fast.profiles.timing.clocks import EventClock, HostClock
from einops_fast.profiles.ways import Way

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "einops_fast" / "profiles" / "profile_einsum.py"

SMALL = Case("small", "bik,bjk->bij", ((2, 3, 4), (2, 5, 4)))


@pytest.fixture
def numpy():
    return frameworks.load("numpy", "cpu", 1)


def way(name, call, framework):
    return Way(name, call, framework)


def einsum(*operands):
    return np.einsum(SMALL.equation, *operands)


def ids(case):
    return case.name


# Cases


@pytest.mark.parametrize("case", FAMILIES["all"], ids=ids)
def test_case_is_well_formed(case):
    tiny = case.with_extents(dict.fromkeys(case.extents, 2))
    result = np.einsum(case.called, *[np.ones(shape) for shape in tiny.shapes])
    assert result.shape == tiny.result_shape
    assert np.all(result == tiny.terms)
    assert case.flops > 0
    assert all(count > 0 for count in case.elements)


@pytest.mark.parametrize("case", FAMILIES["all"], ids=ids)
def test_case_fits_a_cpu_when_scaled(case):
    small = scaled(case, "cpu")
    assert (small.name, small.equation) == (case.name, case.equation)
    assert small.flops <= 4e9
    assert max(small.elements) <= 7e6
    assert scaled(case, "gpu") is case


def test_names_are_unique():
    names = [case.name for case in FAMILIES["all"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "microseconds"),
    [("mx0", 12.9), ("qk-bind", 1350), ("rowdot", 63.8), ("bilinear", 339), ("abc-bda-dc", 270)],
)
def test_floor_is_the_published_one(name, microseconds):
    case = next(case for case in CONTRACTIONS if case.name == name)
    h200 = Ceilings(bandwidth=4.24e12, flops=50.9e12)
    assert Work.of(case.passes(), "float32", h200).floor * 1e6 == pytest.approx(microseconds, rel=0.01)


def test_select():
    assert select(PROBLEMS, "") == PROBLEMS
    assert [case.name for case in select(PROBLEMS, "2,mx0")] == ["mx0", "mx2"]
    with pytest.raises(ValueError, match="mx7"):
        select(PROBLEMS, "7")


def test_select_by_parts_of_names():
    assert select(CONTRACTIONS, "mx") == PROBLEMS
    assert [case.name for case in select(CONTRACTIONS, "wdot-,mx1")] == ["mx1", "rowdot-bind"]
    assert [case.name for case in select(CONTRACTIONS, "rowdot, batchd")] == ["rowdot", "rowdot-bind", "batchdot"]


# Accuracy


def test_reference_finds_one_wrong_element():
    values = accuracy.random_values(SMALL.shapes, 0)
    reference = accuracy.Reference(SMALL, values)
    result = einsum(*values)
    assert reference.error(result, np.asarray) < 1e-14
    result[1, 2, 4] += 0.5
    assert reference.error(result, np.asarray) == pytest.approx(0.5 / 2)
    assert reference.error(result.transpose(0, 2, 1), np.asarray) == np.inf
    assert reference.error(np.full_like(result, np.nan), np.asarray) == np.inf


def test_large_results_are_compared_on_a_grid(monkeypatch):
    monkeypatch.setattr(accuracy, "REFERENCE_WORK", 20)
    values = accuracy.random_values(SMALL.shapes, 0)
    reference = accuracy.Reference(SMALL, values)
    result = einsum(*values)
    assert reference.error(result, np.asarray) < 1e-14
    result[-1, -1, -1] += 1
    assert reference.error(result, np.asarray) > 0.1


def test_gradient_cases_are_the_gradients():
    torch = pytest.importorskip("torch")
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in SMALL.shapes]
    cotangent = torch.randn(SMALL.result_shape, dtype=torch.float64)
    gradients = torch.autograd.grad(torch.einsum(SMALL.equation, *operands), operands, cotangent)
    for place, gradient in enumerate(gradients):
        case = SMALL.gradient(place)
        given = [operand.detach().numpy() for operand in operands]
        given[place] = cotangent.numpy()
        np.testing.assert_allclose(gradient.numpy(), np.einsum(case.equation, *given))


# The runner


def test_runner_excludes_what_is_wrong(numpy):
    def broken(*operands):
        raise OverflowError("too much\nof it")

    ways = [
        way("native", einsum, numpy),
        way("right", lambda a, b: a @ b.swapaxes(1, 2), numpy),
        way("wrong", lambda a, b: einsum(a, b) * 1.001, numpy),
        way("broken", broken, numpy),
    ]
    native, right, wrong, raised = measure.compare(SMALL, ways, "float32", effort=measure.QUICK)
    assert native.speedup == 1
    assert not right.failure
    assert right.seconds is not None
    assert right.speedup is not None
    assert wrong.failure.startswith("wrong: error")
    assert wrong.seconds is None
    assert wrong.speedup is None
    assert raised.failure == "OverflowError: too much"


def test_runner_goes_on_without_a_native_einsum(numpy):
    ways = [way("native", lambda *operands: einsum(*operands) + 1, numpy), way("right", einsum, numpy)]
    native, right = measure.compare(SMALL, ways, "float64", effort=measure.QUICK)
    assert native.failure
    assert right.seconds is not None
    assert right.speedup is None


def test_times_are_not_taken_on_checked_inputs(numpy):
    seen = []

    def remember(*operands):
        seen.append(operands[0].tobytes())
        return einsum(*operands)

    measure.compare(SMALL, [way("native", remember, numpy)], "float32", effort=measure.QUICK)
    assert seen[0] not in seen[1:]
    assert len(set(seen)) == 2


def test_backward_checks_gradients():
    pytest.importorskip("torch")
    torch = frameworks.load("torch", "cpu", 1)

    def detached(a, b):
        return torch.einsum(SMALL.equation, a, 2 * b - b.detach())

    ways = [
        way("native", lambda *operands: torch.einsum(SMALL.equation, *operands), torch),
        way("wrong gradient", detached, torch),
    ]
    timings = measure.compare(SMALL, ways, "float32", effort=measure.QUICK, backward=True)
    assert [bool(timing.failure) for timing in timings] == [False, True]


def test_host_clock_divides_by_calls(monkeypatch):
    now = iter([10.0, 16.0])
    monkeypatch.setattr("einops_fast.profiles.timing.clocks.perf_counter", lambda: next(now))
    assert HostClock(lambda: None).sample(lambda: None, 3) == 2.0


def test_event_clock_flushes_before_each_call():
    log = []

    class Event:
        def record(self):
            log.append("event")

    clock = EventClock(Event, lambda start, end: 4.0, lambda: log.append("flush"), lambda: log.append("wait"))
    assert clock.sample(lambda: log.append("call"), 2) == 0.004
    assert log == ["flush", "event", "call", "event"] * 2 + ["wait"]


# Frameworks and modes


@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet"])
def test_by_hand_is_einsum(name):
    if not frameworks.installed(name):
        pytest.skip(f"{name} isn't installed")
    framework = frameworks.load(name, "cpu", 1)
    for case in PROBLEMS:
        small = case.with_extents({"b": 2, "n": 3, "i": 4, "j": 5, "d": 6})
        ways = [
            way("native", lambda *operands, case=case: framework.einsum(case.equation, *operands), framework),
            way("by hand", BY_HAND[name][case.problem], framework),
        ]
        assert [timing.failure for timing in measure.check(small, ways, "float32")] == ["", ""]


def test_unavailable_says_why(numpy):
    with pytest.raises(frameworks.Unavailable, match="CPU only"):
        frameworks.load("numpy", "gpu")
    with pytest.raises(frameworks.Unavailable, match="bfloat16"):
        numpy.array(np.ones(2), "bfloat16")
    with pytest.raises(frameworks.Unavailable, match="autograd"):
        numpy.track(np.ones(2))


def test_every_dtype_has_an_epsilon():
    assert ITEM_SIZES.keys() == accuracy.EPSILON.keys()


def test_threads_are_set_before_a_framework_is_imported():
    code = (
        "import sys, einops_fast.profiles.frameworks, einops_fast.profiles.cases;"
        "print({'numpy', 'torch', 'mxnet', 'cupy', 'rich'} & set(sys.modules))"
    )
    root = {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **root}, text=True) == "set()\n"


# The script and the command


def run_script(tmp_path, *arguments):
    command = [sys.executable, str(SCRIPT), *arguments, "--problem", "0", "--device", "cpu", "--threads", "1"]
    # Elsewhere and without help, as a user or a profiler starts it.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True)


# MXNet's own einsum takes seconds, and runs in each of its modes as the standard of errors.
@pytest.mark.parametrize(
    ("framework", "mode"),
    [
        ("numpy", "einsum"),
        ("numpy", "einsum_optimize"),
        ("numpy", "th_einsum"),
        ("torch", "fast_einsum"),
        ("mxnet", "patched"),
    ],
)
def test_script(tmp_path, framework, mode):
    for needed in (framework, *(["torch"] if mode == "th_einsum" else [])):
        if not frameworks.installed(needed):
            pytest.skip(f"{needed} isn't installed")
    done = run_script(tmp_path, "--framework", framework, "--mode", mode, "--repeat", "1")
    assert done.returncode == 0, done.stderr
    assert "64×8×100×128, 64×8×50×128 -> 64×8×100×50" in done.stdout
    assert "median of 1 calls" in done.stdout
    assert "result: right" in done.stdout
    assert ("Time | Kernel" in done.stdout) == (mode == "th_einsum" or framework != "numpy")
    assert not list(tmp_path.iterdir())


def test_script_backward(tmp_path):
    pytest.importorskip("torch")
    done = run_script(tmp_path, "--framework", "torch", "--mode", "no_einsum", "--repeat", "1", "--backward")
    assert done.returncode == 0, done.stderr
    assert "forward and backward: " in done.stdout


def test_script_says_what_it_cannot_run(tmp_path):
    done = run_script(tmp_path, "--framework", "numpy", "--mode", "einsum", "--backward")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "can't run: numpy has no autograd\n"


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
@pytest.mark.parametrize(
    ("study", "only", "rows"),
    [("einsum", "0", 5), ("contraction", "abcde-efbad-cf,outer", 6), ("overhead", "", 11)],
)
def test_command(tmp_path, capsys, study, only, rows):
    arguments = [study, "--framework", "numpy", "--quick", "--only-run", only, "--out", str(tmp_path)]
    status = main([*arguments, "--threads", "1", "--device", "cpu"])
    output = capsys.readouterr().out
    assert status == 0, output
    markdown, data, page, table = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert page.name == "report-partial.html"
    assert data.stem == markdown.stem == table.stem
    assert data.stem.startswith(f"{study}-")
    assert data.stem.endswith("-threads-1-partial")
    found = json.loads(data.read_text("utf-8"))
    assert found["versions"]["numpy"] == np.__version__
    assert len(found["rows"]) >= rows
    assert len(table.read_text("utf-8").splitlines()) == len(found["rows"]) + 1
    assert found["environment"]["numpy"]["threads"] == "1"
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert "| numpy |" in markdown.read_text("utf-8") or "numpy, float32" in markdown.read_text("utf-8")


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
def test_interrupted_run_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    def worker(study, framework, options):
        yield records.Machine("Some CPU", 1, {"numpy": "1"})
        yield records.Row(framework, "mx0", "einsum", "float32", "", "", 0.001, 0.0, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run_worker", worker)
    assert compare.run_studies(["einsum", "overhead"], compare.Run(records.Options(), tmp_path)) == 130
    assert "Interrupted" in capsys.readouterr().out
    [row] = json.loads((tmp_path / "einsum-some-cpu-threads-1-partial.json").read_text("utf-8"))["rows"]
    assert row["seconds"] == 0.001


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
def test_what_cannot_be_shown_is_kept(tmp_path, monkeypatch):
    def worker(study, framework, options):
        yield records.Machine("Some CPU", 1, {"numpy": "1"})
        yield records.Row(framework, "mx0", "einsum", "float32", "", "", 0.001, 0.0, 1.0)

    def show(*given):
        raise OSError("no space left")

    monkeypatch.setattr(compare, "run_worker", worker)
    monkeypatch.setattr(compare, "_show", show)
    with pytest.raises(OSError, match="no space"):
        compare.run_studies(["einsum"], compare.Run(records.Options(), tmp_path, ("numpy",)))
    assert list(tmp_path.glob("einsum-some-cpu-*.json"))


def test_a_result_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "einsum.json"
    path.write_text("before")

    def replace(*paths):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", replace)
    result = results.Result("einsum", "Some CPU", 1, "2026-01-01", True, {}, (), ())
    with pytest.raises(OSError, match="no space"):
        result.write_json(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("signal", "status"), [("TERM", 130), ("KILL", 1)])
def test_a_process_that_was_ended_makes_no_whole_run(tmp_path, capsys, monkeypatch, signal, status):
    told = [records.Machine("Some CPU", 1, {"numpy": "1"}), records.Row("numpy", "mx0", "einsum", seconds=0.001)]
    python = tmp_path / "python"
    lines = "\n".join(map(records.encode, told))
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\nkill -{signal} $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(compare, "installed", lambda framework: framework == "numpy")
    assert compare.run_studies(["einsum", "overhead"], compare.Run(records.Options(), tmp_path / "out")) == status
    # Whoever stops one wants no more studies; a crash is told, and the next begins.
    printed = capsys.readouterr().out
    assert ("Interrupted" in printed) is (signal == "TERM")
    assert ("the process ended with status -9" in printed) is (signal == "KILL")
    studies = [path.stem for path in (tmp_path / "out").glob("*.json")]
    partial = ["einsum-some-cpu-threads-1-partial", "overhead-some-cpu-threads-1-partial"]
    assert sorted(studies) == partial[: 1 if signal == "TERM" else 2]


def test_unknown_names_are_errors(capsys):
    with pytest.raises(SystemExit):
        main(["contraction", "--only-run", "nothing"])
    assert "no such case: nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["einsum", "--cases", "extra"])
    assert "--cases extra is not for the study of einsum" in capsys.readouterr().err
    for option, name in (("--peers", "tensorrt"), ("--framework", "jax"), ("--dtype", "int4"), ("--threads", "-1")):
        with pytest.raises(SystemExit, match="2"):
            main(["contraction", option, name])
        assert name in capsys.readouterr().err


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match="2"):
        main(["einsum", "--out", str(file)])
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    "record",
    [
        records.Row("torch", "mx0", "einsum", failure="wrong"),
        records.Machine("GPU", 2, {"torch": "2"}),
        records.Note("left out"),
    ],
)
def test_records_travel(record):
    assert records.decode(records.encode(record)) == record


def test_summary():
    assert geomean([2.0, 0.5]) == pytest.approx(1)
    table = Table("title", ("a", "b"), [("1", "2")], ("so",))
    assert table.markdown() == "## title\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nso"


def test_what_a_first_call_takes_to_load_kernels_is_told_apart(numpy):
    class Kernel:
        def compile(self):
            time.sleep(0.002)

    def call(*operands):
        Kernel().compile()
        time.sleep(0.002)
        Kernel().compile()
        return operands[0]

    before = Kernel.compile
    way = Way("ours", call, numpy)
    seconds, loading = study_overhead._first_call(numpy, way, "float32", 3, SMALL, (Kernel,))
    assert 0.004 <= loading <= seconds - 0.002
    assert Kernel.compile is before
    assert study_overhead._first_call(numpy, way, "float32", 3, SMALL)[1] == 0
