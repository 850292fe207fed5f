"""The command and its flags: what is measured, shown and kept, also of runs that fail, or are interrupted."""

import csv
import json
import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

import einops_fast
from einops_fast import cli
from einops_fast.profiles import __main__ as command
from einops_fast.profiles import compare, own_cases
from einops_fast.profiles.cases import Case
from einops_fast.profiles.reporting import records
from einops_fast.profiles.reporting.records import Machine, Options, Row
from einops_fast.profiles.studies import STUDIES

pytest.importorskip("rich")

OURS = "fast_einsum"

H200 = Machine("NVIDIA H200", 16, {"torch": "2"}, gpu=True, framework="torch")


RIGHT = [
    H200,
    Row("torch", "far", "native", "float32", seconds=1.0, spread=0.0, speedup=1.0),
    Row("torch", "far", OURS, "float32", seconds=2.0, spread=0.0, best="native", to_best=2.0, floor=1.0),
]


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Runs a study whose process tells these records: its status, its result, and the names of the files."""

    def told(records, *, study="contraction", frameworks=("numpy",), **options):
        monkeypatch.setattr(compare, "run_worker", lambda *arguments: iter(records))
        monkeypatch.setattr(STUDIES[study], "frameworks", ("numpy",))
        status, result = compare.run_study(study, compare.Run(Options(**options), tmp_path, frameworks))
        return status, result, sorted(path.name for path in tmp_path.iterdir())

    return told


# Flags


def test_a_process_measures_and_files_are_kept(tmp_path, capsys):
    arguments = ["overhead", "--framework", "numpy", "--quick", "--threads", "1", "--device", "cpu"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    [data] = tmp_path.glob("overhead-*-threads-1-partial.json")
    found = json.loads(data.read_text("utf-8"))
    assert {"numpy.einsum", "np.matmul", OURS, "contract_expression"} <= {row["what"] for row in found["rows"]}
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert found["versions"]["numpy"]
    assert found["environment"]["numpy"]["threads"] == "1"
    with open(data.with_suffix(".csv"), encoding="utf-8") as file:
        assert [float(line["seconds"]) for line in csv.DictReader(file)] == [row["seconds"] for row in found["rows"]]
    assert "| numpy | tiny |" in data.with_suffix(".md").read_text("utf-8")
    assert "tiny chain" in (tmp_path / "report-partial.html").read_text("utf-8")


def test_only_run_is_any_of_the_parts_of_names_in_every_study_that_has_them(run):
    status, found, printed = run(
        "contraction", "overhead", "einsum", "--framework", "numpy", "--only-run", "batchd,tiny"
    )
    assert status == 0
    assert set(found) == {"contraction", "overhead"}
    assert {row.case for row in found["contraction"].measured} == {"batchdot"}
    assert {"tiny", "tiny chain", "first call"} <= {row.case for row in found["overhead"].measured}
    assert "report-partial.html" in printed


def test_own_cases_are_measured_at_their_shapes_with_gradients(run, torch, mine):
    arguments = ("contraction", "--framework", "torch", "--dtype", "float32", "--cases", str(mine))
    _, found, _ = run(*arguments)
    rows = found["contraction"].measured
    assert not any(row.failure for row in rows)
    assert [(row.backward, row.case, row.equation) for row in rows if row.what == OURS] == [
        (backward, *case) for case in (("words", "bid,bjd->bij"), ("...i,i", "ai,i->a")) for backward in (False, True)
    ]
    _, found, _ = run(*arguments, "--forward-only")
    assert {row.backward for row in found["contraction"].measured} == {False}
    _, found, _ = run("einsum", "--framework", "numpy", "--cases", str(mine))
    assert {row.what for row in found["einsum"].measured} >= {"einsum", OURS, "patched"}


def test_own_cases_in_yaml(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text("cases:\n- name: a\n  equation: ij,jk->ik\n  shapes: [[2, 3], [3, 4]]\n")
    if find_spec("yaml") is not None:
        assert own_cases.read_cases(path) == (Case("a", "ij,jk->ik", ((2, 3), (3, 4)), fixed=True),)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match="PyYAML"):
        own_cases.read_cases(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "no JSON"),
        ('{"case": 1}', "no list of cases"),
        ('[{"equation": "i->i"}]', "case 0: a case has an equation, shapes"),
        ('[{"name": "m", "equation": "ij->i", "shapes": [[2]]}]', "case m: operand 0"),
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
    with pytest.raises(ValueError, match=message):
        own_cases.read_cases(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "nowhere.json"], "nowhere.json can't be read"),
        (["--cases", "extra"], "--cases extra is not for the study of einsum"),
        (["overhead", "--cases", "mine.json"], "not for the study of overhead"),
        (["all", "--only-run", "outer,nothing"], "no such case: nothing"),
        (["einsum", "overhead", "--cases", "extra"], "not for the study of einsum or overhead"),
        (["attention-to-detail"], "unknown: attention-to-detail"),
        (["contraction", "--peers", "tensorrt"], "tensorrt"),
        (["--framework", "jax"], "jax"),
        (["--dtype", "int4"], "int4"),
        (["--threads", "-1"], "-1"),
        (["--out", __file__], __file__),
    ],
)
def test_wrong_arguments_are_told(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_traces_are_written(run, torch, mine, tmp_path):
    run("contraction", "--framework", "torch", "--dtype", "float32", "--cases", str(mine), "--only-run", "words",
        "--forward-only", "--trace")  # fmt: skip
    folder = tmp_path / "out" / "traces"
    names = [f"torch-float32-words-{what}-forward" for what in ("native", "opt_einsum", OURS)]
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("json", "txt")}
    events = json.loads((folder / f"{names[-1]}.json").read_text("utf-8"))["traceEvents"]
    assert any("mm" in str(event.get("name")) for event in events)
    assert "Self CPU" in (folder / f"{names[-1]}.txt").read_text("utf-8")


def test_json_is_what_files_have_and_all_that_is_printed(run, tmp_path):
    status, _, printed = run("contraction", "overhead", "--framework", "numpy", "--only-run", "batchd,tiny", "--json")
    assert status == 0
    kept = {path.name: json.loads(path.read_text("utf-8")) for path in (tmp_path / "out").glob("*.json")}
    assert json.loads(printed) == sorted(kept.values(), key=lambda result: result["study"])
    assert [result["study"] for result in json.loads(printed)] == ["contraction", "overhead"]


@pytest.mark.parametrize(("load", "told"), [(0.2, False), (3.04, True)])
def test_a_busy_machine_makes_times_rough(run, monkeypatch, tmp_path, load, told):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    _, found, printed = run("contraction", "--framework", "numpy", "--only-run", "batchd")
    doubt = "Times are rough: the machine was busy before, with a load of 3.0."
    assert [*found["contraction"].doubts[1:], printed.count(doubt)] == ([doubt, 1] if told else [0])
    [page] = (tmp_path / "out").glob("*.md")
    assert (f"**{doubt}**" in page.read_text("utf-8")) is told


def test_einops_fast_profile_is_the_same_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["profile", "--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: einops-fast profile")
    assert "--forward-only" in printed


# Failures


@pytest.mark.parametrize("failing", [{False, True}, {True}], ids=["results", "gradients"])
def test_a_wrong_implementation_is_caught_and_excluded(run, torch, mine, monkeypatch, tmp_path, failing):
    def wrong(equation, left, right):
        if False in failing:
            raise MemoryError("no room\nfor more")
        return torch.einsum(equation, left, right.detach() + 0 * right)

    monkeypatch.setattr(einops_fast, "fast_einsum", wrong)
    arguments = ("--framework", "torch", "--dtype", "float32", "--cases", str(mine), "--only-run", "words", "--verbose")
    status, found, printed = run("contraction", *arguments)
    assert status == 1
    result = found["contraction"]
    ours = {row.backward: row for row in result.measured if row.what == OURS}
    for backward, row in ours.items():
        assert bool(row.failure) == (row.seconds is None) == (backward in failing)
    # The run went on, and what is right is there.
    assert all(row.seconds for row in result.measured if row.what == "native")
    for table, backward in zip(STUDIES["contraction"].tables(result.measured), (False, True), strict=True):
        assert table.figures["failed"] == (["words"] if backward in failing else [])
        assert ("native/ours" in table.figures["geomean"]) == (backward not in failing)
    assert "failed: fast_einsum" in printed
    page = (tmp_path / "out" / "report-partial.html").read_text("utf-8")
    assert page.count("<tr class=failed>") == 2 * len(failing)
    if False in failing:
        assert ours[False].failure == "MemoryError: no room"
        assert "for more" in ours[False].details
        assert "Traceback" in printed


def test_nothing_to_measure_is_told(told, capsys):
    status, result, files = told([records.skipped("cupy", "everything", "CuPy finds no GPU")])
    assert (status, result.kept, files) == (1, False, [])
    assert "CuPy finds no GPU" in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("name", "status", "studies"), [("TERM", 130, 1), ("KILL", 1, 2)])
def test_a_process_that_was_ended_makes_no_whole_run(tmp_path, capsys, monkeypatch, name, status, studies):
    python = tmp_path / "python"
    lines = "\n".join(map(records.encode, RIGHT))
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\nkill -{name} $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(compare, "installed", lambda framework: framework == "numpy")
    assert compare.run_studies(["contraction", "einsum"], compare.Run(Options(), tmp_path / "out")) == status
    # Whoever stops one wants no more studies; a crash is told, and the next begins.
    printed = capsys.readouterr().out
    assert ("Interrupted" in printed) is (name == "TERM")
    assert ("the process ended with status -9" in printed) is (name == "KILL")
    files = sorted((tmp_path / "out").glob("*.json"))
    assert [path.stem for path in files] == ["contraction-nvidia-h200-partial", "einsum-nvidia-h200-partial"][:studies]
    what = [row["what"] for row in json.loads(files[0].read_text("utf-8"))["rows"]]
    assert what[:2] == ["native", OURS]


# Files


@pytest.mark.parametrize(
    ("options", "stem", "plot"),
    [
        ({}, "contraction-nvidia-h200", "contraction-nvidia-h200-float32"),
        ({"dtypes": ("float32",)}, "contraction-nvidia-h200-float32", "contraction-nvidia-h200-float32"),
        ({"cases": "extra"}, "contraction-extra-nvidia-h200", "contraction-extra-nvidia-h200-float32"),
        # A part of a run replaces no whole one.
        *[
            (part, "contraction-nvidia-h200-partial", None)
            for part in (
                {"only": "far"}, {"quick": True}, {"peers": ("native",)}, {"frameworks": ("torch",)},
                {"forward_only": True},
            )
        ],
    ],
)  # fmt: skip
def test_a_full_run_is_kept_and_drawn(told, options, stem, plot):
    pytest.importorskip("vl_convert")
    tables = [f"{stem}.{kind}" for kind in ("csv", "json", "md")]
    plots = [f"{plot}{which}.{kind}" for which in ("", "-native") for kind in ("png", "svg") if plot]
    # Later rows count.
    rows = [Machine("Some CPU", 2, {}), H200, RIGHT[1], RIGHT[2], replace(RIGHT[2], speedup=0.5)]
    status, result, files = told(rows, **{"frameworks": (), **options})
    assert (status, files) == (0, sorted(tables + plots))
    assert [(row.what, row.speedup) for row in result.rows] == [("native", 1.0), (OURS, 0.5)]
