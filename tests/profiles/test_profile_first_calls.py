"""The study of first calls: its programs are right, and run in processes with empty caches."""

from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from einops_fast.profiles.first_calls import program
from einops_fast.profiles.first_calls import study as study_first_calls
from einops_fast.profiles.first_calls.cases import FAMILIES
from einops_fast.profiles.first_calls.program import Found, measured
from einops_fast.profiles.first_calls.study import SHOWN, FirstCallsStudy
from einops_fast.profiles.processes import Job, begun, empty_caches
from einops_fast.profiles.reporting.records import Note, Options, Row

pytest.importorskip("torch")

CASES = {case.name: case for case in FAMILIES["public"]}


def job_of(case, what="ours"):
    return Job(case.name, what, "float32", case.trained, "cpu", 1, 2)


@pytest.mark.parametrize("name", CASES)
def test_programs_are_right(name, torch):
    small = CASES[name].scaled("cpu", "float32")
    small = replace(small, lengths=(*small.lengths[:1], *small.lengths[-1:]), calls=1)
    before, found = measured(job_of(small), small, torch)
    assert found.error <= found.allowed
    assert set(found.seconds) == set(SHOWN) == {*before.seconds, "steady"}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.kernels == 0


def test_a_wrong_result_is_found(torch, monkeypatch):
    monkeypatch.setattr(program, "fast_einsum", lambda equation, *operands: 1.01 * torch.einsum(equation, *operands))
    case = replace(CASES["bnd,bn->bd"].scaled("cpu", "float32"), lengths=(3,), calls=1)
    assert all(found.error > found.allowed for found in measured(job_of(case), case, torch))


def test_lengths():
    assert all(len(case.lengths) * case.calls == 160 for case in CASES.values())
    assert CASES["bihd,bjhd->bhij"].lengths == tuple(range(300, 700, 10))
    assert {length % 64 for length in CASES["bucketed training"].lengths} == {0}
    grown = CASES["growing cache"].lengths
    assert grown == tuple(range(grown[0], grown[0] + len(grown)))
    ragged = CASES["ragged last batch"]
    assert ragged.lengths[-2:] == (32, 17)
    assert ragged.at(17) == ([(17, 256, 8, 64)] * 2, (17, 8, 256, 256))
    small = ragged.scaled("cpu", "float32")
    assert small.lengths[-2:] == (4, 2)
    assert small.at(2) == ([(2, 32, 8, 32)] * 2, (2, 8, 32, 32))
    assert ragged.scaled("gpu", "float32") is ragged


def test_a_process_has_caches_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("EINOPS_FAST_AUTOTUNE", "wait")
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    job = job_of(CASES["bnd,bn->bd"])
    with empty_caches() as caches:
        assert caches["EINOPS_FAST_AUTOTUNE"] == "auto"
        assert caches["EINOPS_FAST_CACHE_DIR"] != str(tmp_path)
        with begun("first-calls", job, caches, 600) as process:
            process.ready()
            found = Found(**process.answer())
        assert found.error <= found.allowed
        assert "steady" in found.seconds
        wrong = begun("first-calls", replace(job, dtype="decimal"), caches, 600)
        with wrong as process, pytest.raises(RuntimeError, match="has no attribute"):
            process.answer()
        with begun("first-calls", job, caches, 0.1) as process, pytest.raises(RuntimeError, match="nothing after 0 s"):
            process.answer()
    assert not Path(caches["TRITON_CACHE_DIR"]).exists()


def test_rows_and_table(torch, monkeypatch):
    """Ours is faster once there are kernels, wrong for one case, and fails for another."""

    def found(job):
        if job.case == "prefill" and job.what == "ours":
            raise RuntimeError("Traceback:\n  somewhere\nOutOfMemoryError: no memory")
        seconds = dict.fromkeys(SHOWN, 0.002) | {"steady": 0.001 if job.what == "ours" else 0.002}
        if job.case == "softmax rows":  # its kernels take too long
            del seconds["steady"]
        return asdict(Found(seconds, 3, 1.0 if job.case == "layer_norm" and job.what == "ours" else 0.0, 0.1))

    @contextmanager
    def begun(study, job, caches, longest):
        yield SimpleNamespace(answer=lambda: found(job))

    monkeypatch.setattr(study_first_calls, "begun", begun)
    tested = FirstCallsStudy()
    records = list(tested.measure(torch, Options(only="bnd,prefill,layer_norm,rows", quick=True)))
    assert any(isinstance(record, Note) and "empty caches" in record.text for record in records)
    rows = [record for record in records if isinstance(record, Row)]
    assert [(row.what, row.backward) for row in rows if row.case == "bnd,bn->bd"] == [
        ("native", False),
        ("ours", False),
    ]
    assert {row.backward for row in rows if row.case == "softmax rows"} == {True}
    failures = {row.case: row.failure for row in rows if row.failure}
    assert failures["prefill"] == "OutOfMemoryError: no memory"
    assert failures["layer_norm"].startswith("wrong")
    [table] = tested.tables(rows)
    lines = {cells[0]: dict(zip(table.columns, cells, strict=True)) for cells in table.cells}
    assert lines["bnd,bn->bd"]["with kernels, ms: native / ours"] == "2.0 / 1.0"
    assert lines["bnd,bn->bd"]["kernels"] == "3 compiled"
    assert lines["softmax rows"]["with kernels, ms: native / ours"] == "– / –"
    assert lines["prefill"]["first pass, ms: native / ours"] == "2.0 / –"
    assert "failed" in lines["layer_norm"]["check"]
    assert table.summary[-1] == "with kernels: native/ours 2.00, worst 2.00"
    assert tested.charts(rows, []) == []
    rows = tested.measure(torch, Options(only="softmax", quick=True, forward_only=True))
    assert {row.backward for row in rows if isinstance(row, Row)} == {False}
