"""The study of first calls: its programs are right, and run in processes with empty caches."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from einops_fast.profiles import compare, frameworks, study
from einops_fast.profiles.__main__ import main
from einops_fast.profiles.first_calls import program
from einops_fast.profiles.first_calls import study as study_first_calls
from einops_fast.profiles.first_calls.cases import FAMILIES, LengthsCase, scaled
from einops_fast.profiles.first_calls.program import NATIVE, OURS, Found, Job, measured, ways_of
from einops_fast.profiles.first_calls.study import SHOWN, FirstCallsStudy
from einops_fast.profiles.reporting.records import Machine, Note, Options, Row
from einops_fast.profiles.reporting.results import read_result
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.ceilings import Ceilings

pytest.importorskip("torch")

CASES = FAMILIES["public"]


def _job(case: LengthsCase, what: str = OURS, passes: int = 2) -> Job:
    return Job(case.name, what, "float32", case.trained, "cpu", 1, passes)


@pytest.fixture
def torch() -> Any:
    return frameworks.load("torch", "cpu", 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_programs_are_right(case: LengthsCase, torch: Any) -> None:
    small = scaled(case, "cpu")
    assert [way.name for way in ways_of(small, torch)] == [NATIVE, OURS]
    small = replace(small, lengths=(*small.lengths[:1], *small.lengths[-1:]), calls=1)
    before, found = measured(_job(small), small, torch)
    assert found.error <= found.allowed
    assert set(found.seconds) == set(SHOWN) == {*before.seconds, "steady"}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.kernels == 0


def test_a_wrong_result_is_found(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "fast_einsum", lambda equation, *operands: 1.01 * torch.einsum(equation, *operands))
    case = replace(scaled(CASES[0], "cpu"), lengths=(3,), calls=1)
    assert all(found.error > found.allowed for found in measured(_job(case), case, torch))


def test_lengths() -> None:
    found = {case.name: case for case in CASES}
    assert len(found) == len(CASES)
    assert all(len(case.lengths) * case.calls == 160 for case in CASES)
    assert found["bihd,bjhd->bhij"].lengths == tuple(range(300, 700, 10))
    assert {length % 64 for length in found["bucketed training"].lengths} == {0}
    grown = found["growing cache"].lengths
    assert grown == tuple(range(grown[0], grown[0] + len(grown)))
    assert found["ragged last batch"].lengths[-2:] == (32, 17)
    assert found["ragged last batch"].at(17) == ([(17, 256, 8, 64)] * 2, (17, 8, 256, 256))
    small = scaled(found["ragged last batch"], "cpu")
    assert small.lengths[-2:] == (4, 2)
    assert small.at(2) == ([(2, 32, 8, 32)] * 2, (2, 8, 32, 32))
    assert all(scaled(case, "gpu") is case for case in CASES)


def test_a_process_has_caches_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EINOPS_FAST_AUTOTUNE", "wait")
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    seen: list[dict[str, str]] = []

    def run(command: Any, env: dict[str, str], **options: Any) -> Any:
        seen.append(env)
        return ran(command, env=env, **options)

    ran = program.subprocess.run
    monkeypatch.setattr(program.subprocess, "run", run)
    job = replace(_job(CASES[3], NATIVE), passes=2)
    found = program.in_a_new_process(job, 600)
    assert found.seconds["first"] > 0
    [variables] = seen
    assert variables["EINOPS_FAST_AUTOTUNE"] == "auto"
    assert variables["EINOPS_FAST_CACHE_DIR"] != str(tmp_path)
    assert not Path(variables["TRITON_CACHE_DIR"]).exists()
    with pytest.raises(RuntimeError, match="has no attribute"):
        program.in_a_new_process(replace(job, dtype="decimal"), 600)
    with pytest.raises(RuntimeError, match="nothing after 0 s"):
        program.in_a_new_process(job, 0.1)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes would have found: ours is faster once there are kernels, wrong for one case, fails for another."""

    def found(job: Job, longest: float) -> Found:
        if job.case == "prefill" and job.what == OURS:
            raise RuntimeError("Traceback:\n  somewhere\nOutOfMemoryError: no memory")
        seconds = dict.fromkeys(SHOWN, 0.002) | {"steady": 0.001 if job.what == OURS else 0.002}
        if job.case == "softmax rows":  # its kernels take too long
            del seconds["steady"]
        return Found(seconds, 3, 1.0 if job.case == "layer_norm" and job.what == OURS else 0.0, 0.1)

    monkeypatch.setattr(study_first_calls, "in_a_new_process", found)
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: Ceilings(1e10, 1e11))


def test_rows_and_table(answered: None, torch: Any) -> None:
    tested = FirstCallsStudy()
    records = list(tested.measure(torch, Options(only="bnd,prefill,layer_norm,rows", quick=True)))
    assert any(isinstance(record, Note) and "empty caches" in record.text for record in records)
    rows = [record for record in records if isinstance(record, Row)]
    assert [(row.case, row.what, row.backward) for row in rows if row.case.startswith("bnd")] == [
        ("bnd,bn->bd", NATIVE, False),
        ("bnd,bn->bd", OURS, False),
    ]
    failures = {row.case: row.failure for row in rows if row.failure}
    assert failures["prefill"] == "OutOfMemoryError: no memory"
    assert failures["layer_norm"].startswith("wrong")
    [table] = tested.tables(rows)
    lines = {cells[0]: cells for cells in table.cells}
    assert "2.0 / 2.0" in lines["bnd,bn->bd"]
    assert lines["bnd,bn->bd"][-3:] == ("2.0 / 1.0", "3 compiled", "right")
    assert lines["softmax rows"][6] == "– / –"
    assert lines["prefill"][2] == "2.0 / –"
    assert "failed" in lines["layer_norm"][-1]
    assert table.summary[-1] == "with kernels: native/ours 2.00, worst 2.00"
    assert tested.charts(rows, []) == []


def test_gradients_are_left_out_where_they_are_not_wanted(answered: None, torch: Any) -> None:
    rows = FirstCallsStudy().measure(torch, Options(only="softmax", quick=True, forward_only=True))
    assert {row.backward for row in rows if isinstance(row, Row)} == {False}


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
def test_the_command_runs_a_case(answered: None, torch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def worker(study: str, framework: str, options: Options) -> Any:
        yield Machine("Some CPU", 1, {"torch": "1"}, framework=framework)
        yield from STUDIES[study].measure(torch, options)

    monkeypatch.setattr(compare, "run_worker", worker)
    arguments = ["first-calls", "--quick", "--device", "cpu", "--threads", "1", "--only-run", "growing cache"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    [path] = tmp_path.glob("first-calls-*-partial.json")
    native, ours = read_result(path).measured
    assert (native.what, ours.what) == (NATIVE, OURS)
    assert set(ours.phases) == set(SHOWN)
    assert ours.speedup is not None
