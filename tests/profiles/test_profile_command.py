"""The command and each of its flags, in this process; wrong implementations are found out, and runs go on."""

import csv
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

import einops_fast
from einops_fast import cli
from einops_fast.profiles import __main__ as command
from einops_fast.profiles import compare, frameworks, study
from einops_fast.profiles.cases import Case
from einops_fast.profiles.contraction import own_cases
from einops_fast.profiles.contraction.cases import FAMILIES
from einops_fast.profiles.profilers.kernels import watched
from einops_fast.profiles.profilers.traces import write_trace
from einops_fast.profiles.reporting import earlier, records
from einops_fast.profiles.reporting.earlier import check_same_machine, finished
from einops_fast.profiles.reporting.records import Extent, Machine, Options, Row
from einops_fast.profiles.reporting.report import skips_table
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.ceilings import Ceilings, Work
from einops_fast.profiles.timing.clocks import host_seconds
from einops_fast.profiles.timing.memory import peak_memory
from einops_fast.profiles.timing.progress import Progress

pytestmark = pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")

OURS = "fast_einsum"
CEILINGS = Ceilings(bandwidth=1e10, flops=1e11)


def measure_here(study, framework, options):
    """A worker without a process: what it uses can be replaced."""
    yield Machine("Some CPU", 1, {"numpy": "1"}, framework=framework, environment={"CPU": "some"})
    yield from STUDIES[study].measure(frameworks.load(framework, "cpu", 1), options)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command with these arguments: status, rows by study, what was printed."""
    monkeypatch.setattr(compare, "run_worker", measure_here)
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: CEILINGS)

    def run(*arguments):
        status = command.main([*arguments, "--quick", "--device", "cpu", "--out", str(tmp_path / "out")])
        found = {}
        for path in (tmp_path / "out").glob("*.json"):
            result = read_result(path)
            found[result.study] = result
        return status, found, capsys.readouterr().out

    return run


@pytest.fixture
def mine(tmp_path):
    """A file of cases."""
    path = tmp_path / "mine.json"
    cases = [
        {"name": "words", "equation": "batch i d, batch j d -> batch i j", "shapes": [[2, 3, 4], [2, 5, 4]]},
        {"equation": "...i,i", "shapes": [[2, 3], [3]]},
    ]
    path.write_text(json.dumps(cases))
    return path


# Flags


def test_only_run_is_any_of_the_parts(run):
    status, found, _ = run("contraction", "--framework", "numpy", "--only-run", "scal,batchd")
    assert status == 0
    assert {row.case for row in found["contraction"].measured} == {"scale", "batchdot"}


def test_forward_only(run, mine):
    pytest.importorskip("torch")
    arguments = ("contraction", "--framework", "torch", "--dtype", "float32", "--cases", str(mine))
    _, found, _ = run(*arguments)
    assert {row.backward for row in found["contraction"].measured} == {False, True}
    _, found, _ = run(*arguments, "--forward-only")
    assert {row.backward for row in found["contraction"].measured} == {False}


def test_all_runs_every_study_that_has_such_cases(run):
    status, found, printed = run("all", "--framework", "numpy", "--only-run", "outer,tiny")
    assert status == 0
    assert set(found) == {"contraction", "overhead"}
    assert "report-partial.html" in printed


def test_own_cases_are_measured_at_their_shapes(run, mine, tmp_path):
    _, found, _ = run("contraction", "--framework", "numpy", "--cases", str(mine))
    rows = found["contraction"].measured
    assert [(row.case, row.equation) for row in rows if row.what == OURS] == [
        ("words", "bid,bjd->bij"),
        ("...i,i", "ai,i->a"),
    ]
    assert not any(row.failure for row in rows)
    assert (tmp_path / "out" / "contraction-mine-some-cpu-threads-1-partial.json").exists()
    _, found, _ = run("einsum", "--framework", "numpy", "--cases", str(mine))
    assert {row.what for row in found["einsum"].measured} >= {"einsum", OURS, "patched"}


def test_own_cases_in_yaml(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("cases:\n- name: a\n  equation: ij,jk->ik\n  shapes: [[2, 3], [3, 4]]\n")
    assert own_cases.read_cases(path) == (Case("a", "ij,jk->ik", ((2, 3), (3, 4)), fixed=True),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "no JSON"),
        ("[]", "no list of cases"),
        ('{"case": 1}', "no list of cases"),
        ('[{"equation": "i->i"}]', "case 0: a case has an equation, shapes"),
        ('[{"equation": "i->i", "shapes": [[2]], "dtype": "x"}]', "nothing else"),
        ('[{"name": "m", "equation": "ij->i", "shapes": [[2]]}]', "case m: operand 0"),
        ('[{"equation": "i,i", "shapes": [[2], [3]]}]', "'i' has size 3"),
        ('[{"equation": "i,i", "shapes": [[2], [1]]}]', "operand 1 has size 1 along 'i', another has 2"),
        ('[{"equation": "i", "shapes": [[0]]}]', "operand 0 has shape \\[0\\]"),
        ('[{"equation": "i", "shapes": [2]}]', "list of lists"),
        ('[{"equation": 1, "shapes": []}]', "the equation is text"),
        ('[{"equation": "i->", "shapes": [[2]]}, {"equation": "i->", "shapes": [[3]]}]', "two cases are called i->"),
    ],
)
def test_what_is_wrong_with_own_cases_is_told(text, message, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(own_cases.BadCases, match=message):
        own_cases.read_cases(path)


def test_yaml_without_pyyaml(tmp_path, monkeypatch):
    monkeypatch.setattr(own_cases, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    path = tmp_path / "mine.yml"
    path.write_text("[]")
    with pytest.raises(own_cases.BadCases, match="PyYAML"):
        own_cases.read_cases(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "nowhere.json"], "nowhere.json can't be read"),
        (["overhead", "--cases", "mine.json"], "not for the study of overhead"),
        (["--compare", "nowhere.json"], "nowhere.json"),
        (["ops", "--compare", str(RESULTS / "attention-nvidia-h200.json")], "the study 'attention', not of ops"),
        (["all", "--only-run", "outer,nothing"], "no such case: nothing"),
        (["attention-to-detail"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_told(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_without_rich_no_folder_is_left(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(SystemExit, match=r"need rich: pip install 'einops_fast\[profile\]'"):
        command.main(["--out", str(tmp_path / "reports")])
    assert list(tmp_path.iterdir()) == []


def test_verbose_shows_tracebacks(run):
    arguments = ("contraction", "--framework", "numpy", "--only-run", "outer", "--peers", "native,compile")
    _, _, printed = run(*arguments)
    assert "torch.compile takes torch tensors" in printed
    assert "Traceback" not in printed
    _, _, printed = run(*arguments, "--verbose")
    assert "Traceback" in printed
    assert "peers.py" in printed


def test_traces_are_written(run, tmp_path):
    pytest.importorskip("torch")
    arguments = ("contraction", "--framework", "torch", "--dtype", "float32", "--only-run", "outer", "--forward-only")
    run(*arguments, "--trace")
    traces = {path.name for path in (tmp_path / "out" / "traces").iterdir()}
    names = [f"torch-float32-outer-{what}-forward" for what in ("native", "opt_einsum", OURS)]
    assert traces == {f"{name}.{kind}" for name in names for kind in ("json", "txt")}
    events = json.loads((tmp_path / "out" / "traces" / f"{names[-1]}.json").read_text("utf-8"))["traceEvents"]
    assert any("mul" in str(event.get("name")) for event in events)
    assert "Self CPU" in (tmp_path / "out" / "traces" / f"{names[-1]}.txt").read_text("utf-8")


def test_einops_fast_profile_is_the_same_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["profile", "--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: einops-fast profile")
    assert "--forward-only" in printed
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "profile" in capsys.readouterr().out


# What is measured


def test_rows_say_what_there_is_to_know(run, tmp_path):
    pytest.importorskip("torch")
    _, found, _ = run("contraction", "--framework", "torch", "--dtype", "float32", "--only-run", "mx2")
    rows = {(row.backward, row.what): row for row in found["contraction"].measured}
    forward, backward = rows[False, OURS], rows[True, OURS]
    case = next(case for case in FAMILIES["public"] if case.name == "mx2")
    assert (forward.moved, forward.flops) == (4 * sum(case.elements), case.flops)
    # Both gradients take as many FLOPs as the result.
    assert backward.flops == 3 * forward.flops
    # The result, in C order or not, has to be held; the gradients of both operands too.
    assert forward.peak_bytes >= 4 * case.elements[-1]
    assert backward.peak_bytes >= 4 * sum(case.elements[:-1])
    for row in rows.values():
        assert row.spread >= 0
        assert row.floor > 0
        assert 0 <= row.error < 1e-5
        assert sum(row.kernel_seconds.values()) > 0
    assert rows[True, "native"].kernel_seconds
    with open(next((tmp_path / "out").glob("*.csv")), encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["seconds"]) for line in lines] == [row.seconds for row in found["contraction"].rows]


def test_what_cannot_be_watched_was_measured(tmp_path):
    framework = frameworks.load("numpy", "cpu", 1)
    row = Row("numpy", "a", OURS, "float32", seconds=1.0)

    def no_room():
        raise MemoryError

    assert watched(row, framework, no_room) == row
    torch = SimpleNamespace(name="torch", device="cpu", torch=SimpleNamespace(profiler=SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU=1))))  # fmt: skip
    [note] = write_trace(str(tmp_path), replace(row, framework="torch"), torch, no_room)
    assert note.text.startswith("no trace of torch-float32-a-fast_einsum-forward: MemoryError")
    # NumPy has no profiler, but tells what memory it takes.
    assert watched(row, framework, lambda: np.ones(1000)).kernel_seconds == {}
    assert 8000 <= peak_memory(framework, lambda: np.ones(1000)) < 10000


def test_the_host_is_timed_apart_on_a_gpu():
    log = []
    assert host_seconds(lambda: log.append("wait"), lambda: log.append("call")) > 0
    assert log[-3:] == ["wait", "call", "wait"]


def test_work_of_backward():
    case = Case("c", "ij,jk->ik", ((2, 3), (3, 4)))
    ceilings = Ceilings(bandwidth=1.0, flops=1e9)
    forward, both = (Work.of(case.passes(backward), "float32", ceilings) for backward in (False, True))
    assert (forward.moved, forward.flops) == (4 * (6 + 12 + 8), 48)
    # Operands and cotangent are read, and the gradients of both operands written.
    assert both.moved - forward.moved == 4 * (6 + 12 + 8 + 6 + 12)
    assert both.flops == 3 * forward.flops
    assert both.floor == both.moved


def adds_five(torch):
    return lambda equation, *operands: torch.einsum(equation, *operands) + 5


def wrong_gradient(torch):
    return lambda equation, left, right: torch.einsum(equation, left, right.detach() + 0 * right)


def raises(torch):
    def call(equation, *operands):
        raise MemoryError("no room\nfor more")

    return call


@pytest.mark.parametrize(
    ("implementation", "failing"),
    [(adds_five, {False, True}), (wrong_gradient, {True}), (raises, {False, True})],
)
def test_a_wrong_implementation_is_caught_and_excluded(run, monkeypatch, tmp_path, implementation, failing):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(einops_fast, "fast_einsum", implementation(torch))
    status, found, printed = run("contraction", "--framework", "torch", "--dtype", "float32", "--only-run", "mx2")
    assert status == 1
    result = found["contraction"]
    ours = {row.backward: row for row in result.measured if row.what == OURS}
    for backward, row in ours.items():
        assert bool(row.failure) == (backward in failing)
        assert (row.seconds is None) == (backward in failing)
    # The run went on, and what is right is there.
    assert all(row.seconds for row in result.measured if row.what == "native")
    for summary in result.summaries:
        backward = "backward" in summary["title"]
        assert summary["failed"] == (["mx2"] if backward in failing else [])
        assert ("ours/native" in summary["geomean"]) == (backward not in failing)
    assert "failed: fast_einsum" in printed
    page = (tmp_path / "out" / "report-partial.html").read_text("utf-8")
    assert page.count('<tr class="failed">') == len(failing)
    if implementation is raises:
        assert ours[False].failure == "MemoryError: no room"
        assert "for more" in ours[False].details


def test_every_failure_is_a_line_of_the_table_of_skips():
    rows = [
        Row("torch", "a", OURS, "float32", failure="wrong"),
        records.skipped("cupy", "everything", "no GPU"),
        Row("torch", "a", "native", "float32", seconds=1.0),
    ]
    assert [cells[-1] for cells in skips_table(rows).cells] == ["failed: wrong", "no GPU"]


def test_a_process_that_dies_fails_the_run(tmp_path, monkeypatch):
    def dies(study, framework, options):
        yield Machine("Some CPU", 1, {}, framework=framework)
        yield Row("numpy", "mx0", "einsum", "float32", seconds=1.0)
        yield records.skipped("numpy", "everything after", "the process ended with status -9", guest=False)

    monkeypatch.setattr(compare, "run_worker", dies)
    outcome = compare.run_study("einsum", compare.Run(Options(), tmp_path, ("numpy",)))
    assert outcome.status == 1
    assert [row.case for row in outcome.result.measured] == ["mx0"]


def test_nothing_to_measure_is_told(tmp_path, monkeypatch, capsys):
    absent = records.skipped("cupy", "everything", "CuPy finds no GPU")
    monkeypatch.setattr(compare, "run_worker", lambda *arguments: iter([absent]))
    assert compare.run_studies(["einsum"], compare.Run(Options(), tmp_path, ("cupy",))) == 1
    assert "CuPy finds no GPU" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


# Against an earlier run


def result(*rows, study="contraction", device="Some CPU"):
    return Result(study, device, 1, "2026-01-01", True, {}, (), rows)


def timed(case, seconds, spread=0.0, **others):
    return Row("torch", case, OURS, "float32", seconds=seconds, spread=spread, **others)


def test_compare_marks_regressions():
    before = result(
        timed("same", 1.0), timed("slow", 1.0), timed("fast", 1.0), timed("noisy", 1.0, 0.3), timed("broke", 1.0)
    )
    now = result(
        timed("same", 1.04),
        timed("slow", 1.2),
        timed("fast", 0.5),
        timed("noisy", 1.4, 0.3),
        timed("broke", None, failure="wrong"),
        timed("new", 1.0),
    )
    table = earlier.compared(now, before)
    assert {cells[2]: cells[-1] for cells in table.cells} == {
        "broke": "failed: regression, wrong",
        "slow": "failed: regression",
        "noisy": "",
        "same": "",
        "fast": "faster",
    }
    assert [cells[2] for cells in table.cells][:2] == ["broke", "noisy"]
    assert table.figures["regressions"] == 2
    assert "2 of 5 are regressions (marked)." in table.summary
    assert not any("another machine" in line for line in table.summary)
    other = earlier.compared(now, replace(before, device="Another"))
    assert any("another machine: Another" in line for line in other.summary)


def test_compare_takes_the_result_of_the_same_study(run, tmp_path):
    run("contraction", "--framework", "numpy", "--only-run", "outer")
    [kept] = (tmp_path / "out").glob("contraction*.json")
    kept = kept.rename(tmp_path / "before.json")
    arguments = ("--framework", "numpy", "--compare", str(kept))
    _, _, printed = run("contraction", "--only-run", "outer", *arguments)
    assert "contraction: against the run of" in printed
    assert "now/before" in printed


# Going on from an earlier run


def test_resume_measures_what_is_missing(run, tmp_path):
    chosen = ("contraction", "--framework", "numpy", "--forward-only")
    run(*chosen, "--only-run", "outer")
    [kept] = (tmp_path / "out").glob("contraction*.json")
    kept = kept.rename(tmp_path / "before.json")
    before = {row.key: row for row in read_result(kept).measured}
    status, found, printed = run(*chosen, "--only-run", "outer,scale", "--resume", str(kept))
    assert status == 0
    rows = {row.key: row for row in found["contraction"].measured}
    assert {row.case for row in rows.values()} == {"outer", "scale"}
    assert {key: row for key, row in rows.items() if row.case == "outer"} == before
    assert "of an earlier run, of" in printed
    with pytest.raises(SystemExit):
        run(*chosen, "--only-run", "scale", "--peers", "native", "--resume", str(kept))


def test_resume_tries_again_what_failed_or_was_not_finished():
    rows = (
        timed("whole", 1.0, peak_bytes=3),
        timed("unwatched", 1.0),
        timed("failed", None, failure="no room", peak_bytes=3),
        replace(timed("others", 1.0, peak_bytes=3), what="native"),
    )
    assert finished(result(*rows), Options()) == ("torch float32 whole forward",)
    for options in (Options(quick=True), Options(peers=("native",))):
        with pytest.raises(ValueError, match="thoroughly against its own choice of peers, not"):
            finished(result(*rows), options)


def test_resume_stays_on_the_machine():
    then = replace(result(timed("a", 1.0)), versions={"torch": "2"}, environment={"torch": {"CPU": "a", "memory": "1"}})
    now = Machine("Some CPU", 1, {"torch": "2", "numpy": "1"}, framework="torch", environment={"CPU": "a"})
    check_same_machine(then, now)
    check_same_machine(then, replace(now, framework="numpy", environment={}))
    for machine, what in (
        (replace(now, device="A GPU", gpu=True), "device was Some CPU and is A GPU"),
        (replace(now, threads=2), "CPU threads was 1 and is 2"),
        (replace(now, versions={"torch": "3"}), "torch was 2 and is 3"),
        (replace(now, environment={"CPU": "b"}), "CPU was a and is b"),
    ):
        with pytest.raises(ValueError, match=what):
            check_same_machine(then, machine)


# Progress


def test_progress_counts_cases_over_frameworks():
    from rich.console import Console

    with Progress(Console(), "contraction", ["numpy", "torch"]) as progress:
        progress.begin("numpy")
        assert progress.total is None
        progress.expect(3)
        # torch is taken to have as many, until it tells.
        assert progress.total == 6
        for case, what in (("a", "native"), ("a", OURS), ("b", OURS), (records.ALL, "cupy")):
            progress.measured(Row("numpy", case, what, "float32"))
        assert progress.done == 2
        progress.begin("torch")
        progress.expect(5)
        assert progress.total == 7


def test_every_study_says_how_much_there_is(run):
    for name, only in (("contraction", "outer"), ("einsum", "0"), ("overhead", "")):
        told = list(STUDIES[name].measure(frameworks.load("numpy", "cpu", 1), Options(only=only, quick=True)))
        [extent] = [record for record in told if isinstance(record, Extent)]
        cases = {(row.dtype, row.backward, row.case) for row in told if isinstance(row, Row)}
        assert extent.cases == len(cases)
