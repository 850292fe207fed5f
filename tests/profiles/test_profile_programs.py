"""The studies of programs, each in a process of its own: results are compared, and tables tell what they take."""

from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch as pytorch

import einops_fast
from einops_fast.profiles import job_study
from einops_fast.profiles.first_calls import cases as first_calls_cases
from einops_fast.profiles.first_calls.study import SHOWN
from einops_fast.profiles.job_study import Found
from einops_fast.profiles.processes import Job, started
from einops_fast.profiles.programs import cases, pretrained
from einops_fast.profiles.programs import study as program
from einops_fast.profiles.reporting.records import Note, Options, Row
from einops_fast.profiles.studies import STUDIES

TINY = {
    "batch": 2, "length": 16, "width": 64, "heads": 4, "layers": 1, "words": 97, "side": 32, "chunk": 8, "state": 16,
}  # fmt: skip
LENGTHS = {case.name: case for case in first_calls_cases.FAMILIES["public"]}


def tiny(case):
    least = {**TINY, "length": 40} if case.model == "manual_gpt_lengths" else TINY
    return replace(case, extents={name: min(size, least[name]) for name, size in case.extents.items()})


def job_of(case, what="ours"):
    return Job(case.name, what, "float32", case.trained, "cpu", 1, quick=True)


@pytest.fixture
def rows_of(torch, monkeypatch):
    """Measures a study whose processes find what a function of their jobs says: its records and its table by case."""

    def rows_of(name, find, options):
        @contextmanager
        def begun(study, job, seconds):
            yield SimpleNamespace(ready=lambda: None, answer=lambda: asdict(find(job)))

        monkeypatch.setattr(job_study, "started", begun)
        records = list(STUDIES[name].measure(torch, options))
        rows = [record for record in records if isinstance(record, Row)]
        assert any(isinstance(record, Note) and "empty caches" in record.text for record in records)
        assert STUDIES[name].charts(rows, []) == []
        [table] = STUDIES[name].tables(rows)
        return rows, table, {line[0]: dict(zip(table.columns, line, strict=True)) for line in table.cells}

    return rows_of


def test_a_process_has_caches_of_its_own_and_is_ended_in_time(monkeypatch, tmp_path):
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    job = replace(job_of(LENGTHS["bnd,bn->bd"]), quick=False)
    with started("first-calls", job, 600) as process:
        variables = Path(f"/proc/{process.process.pid}/environ").read_text().split("\0")
        settings = dict(variable.split("=", 1) for variable in variables if variable)
        assert settings["EINOPS_FAST_AUTOTUNE"] == "auto"
        assert settings["EINOPS_FAST_CACHE_DIR"] != str(tmp_path)
        process.ready()
        found = Found(**process.answer())
    assert found.error <= found.allowed
    assert "steady" in found.phases
    assert not Path(settings["TRITON_CACHE_DIR"]).parent.exists()
    wrong = started("first-calls", replace(job, dtype="decimal"), 600)
    with wrong as process, pytest.raises(RuntimeError, match="has no attribute"):
        process.answer()
    with started("first-calls", job, 0.1) as process, pytest.raises(RuntimeError, match="nothing after 0 s"):
        process.answer()


# Whole programs


@pytest.mark.parametrize("case", [*cases.FAMILIES["public"], *cases.FAMILIES["layers"]], ids=lambda case: case.name)
def test_a_step_learns(case):
    if case in cases.FAMILIES["transformers"] + cases.FAMILIES["layers"]:
        pytest.importorskip("transformers")
    pytorch.manual_seed(0)
    made = pretrained.MODELS[case.model](tiny(case).extents, "cpu", pytorch.float32)
    step = program.Step(made, made.module, trained=case.trained)
    losses = [program._told(step()) for _ in range(2 * len(made.batches))]
    assert all(loss == loss for loss in losses)
    if step.update is None:
        assert losses[-1] == losses[0]
    elif made.cotangent is None:
        assert losses[len(made.batches)] < losses[0]
    else:  # weights move, but nothing that they return is a loss
        assert len(set(losses)) == len(losses)


def test_ours_has_the_losses_of_eager(monkeypatch, torch):
    case = tiny(next(case for case in cases.FAMILIES["public"] if case.name == "two-einsums"))
    ours = partial(einops_fast.compile, then="eager")
    monkeypatch.setitem(program.COMPILERS, "ours", lambda _, made: ours(made.module))
    monkeypatch.setattr(program, "SECONDS", 0.01)
    eager, ours = (list(STUDIES["programs"].program(job_of(case, what), case, torch))[-1] for what in ("eager", "ours"))
    assert ours.kernels == "1 fused"
    assert ours.seconds > 0
    assert eager.losses == pytest.approx(ours.losses, rel=1e-5)


def test_table_of_programs(rows_of):
    """Ours is the fastest, another way's losses are wrong, and one process fails."""

    def find(job):
        if job.what == "compile":
            raise RuntimeError("Traceback:\n  somewhere\nRuntimeError: no compiler")
        losses = [2.0, 1.0] if job.what != "max-autotune" else [2.0, 1.5]
        step = {"eager": 0.004, "ours": 0.002, "ours+graphs": 0.001}.get(job.what, 0.003)
        return Found({"first": 1.0}, "2 fused", step, 0.0001, 0.001, 3_000_000_000, losses=losses)

    options = Options(only="nanogpt-lengths", peers=("compile", "max-autotune", "compile+graphs", "ours+graphs"))
    rows, table, lines = rows_of("programs", find, options)
    found = {row.what: row for row in rows}
    assert set(found) == {"eager", "ours", "compile", "max-autotune", "compile+graphs", "ours+graphs"}
    assert found["compile"].failure == "RuntimeError: no compiler"
    assert found["max-autotune"].failure.startswith("wrong: losses differ by 50")
    assert (found["ours"].best, found["ours"].to_best, found["ours"].speedup) == ("eager", 0.5, 2)
    cells = lines["nanogpt-lengths"]
    assert (
        cells["step, ms: eager / compile / ours / max-autotune / compile+graphs / ours+graphs"]
        == "4 / – / 2 / – / 3 / 1"
    )
    assert (
        cells["peak, GB: eager / compile / ours / max-autotune / compile+graphs / ours+graphs"]
        == "3 / – / 3 / 3 / 3 / 3"
    )
    assert cells["fused"] == "2 fused"
    assert table.summary == (
        "ours / the best of eager and compiled: 0.50, worst 0.50",
        "the same in CUDA graphs, ours / compiled: 0.33, worst 0.33",
    )


# First calls


@pytest.mark.parametrize("name", LENGTHS)
def test_programs_of_many_lengths_are_right(name, torch):
    small = LENGTHS[name].scaled("cpu", "float32")
    small = replace(small, lengths=(*small.lengths[:1], *small.lengths[-1:]), calls=1)
    job = job_of(small)
    [quick] = STUDIES["first-calls"].program(job, small, torch)
    before, found = STUDIES["first-calls"].program(replace(job, quick=False), small, torch)
    assert quick.phases.keys() == before.phases.keys()
    assert found.error <= found.allowed
    assert set(found.phases) == set(SHOWN) == {*before.phases, "steady"}
    assert all(seconds > 0 for seconds in found.phases.values())
    assert found.kernels == "0 compiled"


def test_table_of_first_calls(rows_of, torch):
    """Ours is faster once there are kernels, wrong for one case, and fails for another."""

    def find(job):
        if job.case == "prefill" and job.what == "ours":
            raise RuntimeError("Traceback:\n  somewhere\nOutOfMemoryError: no memory")
        phases = dict.fromkeys(SHOWN, 0.002) | {"steady": 0.001 if job.what == "ours" else 0.002}
        if job.case == "softmax rows":  # its kernels take too long
            del phases["steady"]
        error = 1.0 if job.case == "layer_norm" and job.what == "ours" else 0.0
        return Found(phases, "3 compiled", 0.002, error=error, allowed=0.1)

    rows, table, lines = rows_of("first-calls", find, Options(only="bnd,prefill,layer_norm,rows", quick=True))
    assert {row.backward for row in rows if row.case == "softmax rows"} == {True}
    failures = {row.case: row.failure for row in rows if row.failure}
    assert failures["prefill"] == "OutOfMemoryError: no memory"
    assert failures["layer_norm"].startswith("wrong")
    assert lines["bnd,bn->bd"]["with kernels, ms: native / ours"] == "2.0 / 1.0"
    assert lines["bnd,bn->bd"]["kernels"] == "3 compiled"
    assert lines["softmax rows"]["with kernels, ms: native / ours"] == "– / –"
    assert lines["prefill"]["first pass, ms: native / ours"] == "2.0 / –"
    assert "failed" in lines["layer_norm"]["check"]
    assert table.summary[-2] == "with kernels: native/ours 2.00, worst 2.00"
    rows = STUDIES["first-calls"].measure(torch, Options(only="softmax", quick=True, forward_only=True))
    assert {row.backward for row in rows if isinstance(row, Row)} == {False}
