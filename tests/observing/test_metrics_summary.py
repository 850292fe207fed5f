"""Metrics that the environment asks for, and the summary of their tables."""

import csv

import pytest
from python_process import run_python

from einops_fast import cli, metrics
from einops_fast.observing import observers
from einops_fast.observing.metrics_summary import summarize

SCRIPT = """
import numpy as np
from einops_fast import fast_einsum, metrics
with metrics.label("layer"):
    fast_einsum("ijk,kjl->il", np.ones((3, 4, 5)), np.ones((5, 4, 6)))
raise SystemExit(3)
"""


def run_script(tmp_path, asked):
    """What the script writes to stderr; it exits with a status of its own whatever becomes of the tables."""
    return run_python("-c", SCRIPT, cwd=tmp_path, status=3, **{metrics.VARIABLE: asked}).stderr


def test_the_environment_asks_for_tables(tmp_path):
    run_script(tmp_path, "plans,fallbacks:out")
    assert {path.name.split("-")[0] for path in (tmp_path / "out").iterdir()} == {"plans", "fallbacks"}
    [row] = metrics.read(tmp_path / "out")["plans"]
    assert (row["label"], row["calls"]) == ("layer", "1")
    run_script(tmp_path, "all:every")
    written = {path.name.split("-")[0] for path in (tmp_path / "every").iterdir()}
    assert written == {"plans", "steps", "fallbacks", "calls"}


@pytest.mark.parametrize("asked", ["plans", "plans:", ":folder", "colours:folder", "plans,colours:folder"])
def test_an_environment_that_makes_no_sense_is_told(asked, monkeypatch):
    monkeypatch.setenv(metrics.VARIABLE, asked)
    with pytest.warns(RuntimeWarning, match=f"nothing is recorded: .*, not {asked!r}"):
        metrics.start_from_environment()
    assert observers._active == ()


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    told = run_script(tmp_path, "plans:file/in")
    assert told.startswith("einops_fast: the tables of metrics can't be written: ")
    assert len(told.splitlines()) == 1


def write(folder, table, rows):
    with open(folder / f"{table}-1-0.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_summary(tmp_path, capsys):
    plan = {"label": "", "shapes": "s", "inside": "0", "floor_seconds": "1e-3", "predicted_seconds": "2e-3"}
    plans = [
        {**plan, "equation": "slow", "calls": "10", "median_seconds": "8e-3", "total_seconds": "8e-2"},
        {**plan, "equation": "quick", "calls": "5", "median_seconds": "2e-3", "total_seconds": "1e-2"},
        {**plan, "equation": "part", "calls": "5", "median_seconds": "1", "total_seconds": "1", "inside": "1"},
    ]
    write(tmp_path, "plans", plans)
    copied = {"equation": "slow", "operands": "1 is copied, because of its strides"}
    write(tmp_path, "steps", [{**copied, "copied_bytes": "1000000", "calls": "10"}])
    kernel = {"chosen_by": "measurement", "spills": "12", "registers": "255", "way": "tile", "equation": "slow"}
    write(tmp_path, "kernels", [kernel])
    write(tmp_path, "fallbacks", [{"category": "dtype", "reason": "int64 has no GEMM", "calls": "7"}])
    told = summarize(tmp_path)
    assert told.startswith("2 plans, 15 calls\ngeometric mean of time over floor: 4.00\n")
    assert "part" not in told
    assert told.index("slow") < told.index("quick")
    assert "10 MB" in told
    assert "measured over predicted time: 2.00" in told
    assert "mispredicted by a factor of 2 or more: 1 of 2" in told
    assert "kernels chosen by measurement: 1" in told
    assert "255" in told
    assert "int64 has no GEMM" in told
    assert cli.main(["metrics", "summarize", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{told}\n"
    assert len(summarize(tmp_path, 1)) < len(told)
    assert cli.main(["metrics", "summarize", str(tmp_path), "--top", "-1"]) == 2
    assert "1 at least, not -1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "text", "words"),
    [
        ("calls", b"kind\neinsum\n", "nothing to sum up in {}, which has tables of: calls"),
        ("none", b"", "no tables of metrics in {}"),
        ("plans", b"one,two\n1,2\n", "a table in {} has no such column"),
        ("plans", b"\xff\xfe", "{}/plans-1-0.csv is no table of metrics"),
        ("plans", b"inside,calls\n0\n", "a table in {}"),
        ("plans", b"inside,calls\n0,many\n", "a table in {}"),
        ("plans", b"inside\n1\n", "nothing to sum up in {}"),
    ],
)
def test_tables_without_a_summary(table, text, words, tmp_path, capsys):
    (tmp_path / f"{table}-1-0.csv").write_bytes(text)
    assert cli.main(["metrics", "summarize", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("einops-fast: ")
    assert words.format(tmp_path) in told
