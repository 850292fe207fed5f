"""The study of programs: each makes its steps, ours with the losses of eager, and the table tells what they take."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from einops_fast.profiles.processes import Job
from einops_fast.profiles.programs import program
from einops_fast.profiles.programs import study as study_programs
from einops_fast.profiles.programs.cases import FAMILIES, Found, ProgramCase
from einops_fast.profiles.programs.models import MODELS
from einops_fast.profiles.programs.study import ProgramsStudy
from einops_fast.profiles.reporting.records import Options, Row

CASES = {case.name: case for case in FAMILIES["public"]}
TINY = {
    "batch": 2,
    "length": 16,
    "width": 64,
    "heads": 4,
    "layers": 1,
    "words": 97,
    "side": 32,
    "chunk": 8,
    "state": 16,
}


def tiny(case: ProgramCase) -> ProgramCase:
    least = {**TINY, "length": 40} if case.model == "manual_gpt_lengths" else TINY
    return replace(case, extents={name: min(size, least[name]) for name, size in case.extents.items()})


@pytest.mark.parametrize("case", FAMILIES["written-out"], ids=lambda case: case.name)
def test_a_step_learns(case: ProgramCase) -> None:
    torch.manual_seed(0)
    small = tiny(case)
    made = MODELS[case.model](small.extents, "cpu", torch.float32)
    step = program.Step(made, made.module, trained=True)
    losses = [program._told(step()) for _ in range(4 * len(made.batches))]
    assert all(loss == loss for loss in losses)
    if step.update is not None:
        assert losses[-len(made.batches)] < losses[0]


@pytest.mark.parametrize("case", FAMILIES["transformers"], ids=lambda case: case.name)
def test_models_of_transformers_make_steps(case: ProgramCase) -> None:
    pytest.importorskip("transformers")
    from einops_fast.profiles.programs import pretrained  # noqa: F401

    torch.manual_seed(0)
    made = MODELS[case.model](tiny(case).extents, "cpu", torch.float32)
    step = program.Step(made, made.module, trained=case.trained)
    first, second = program._told(step()), program._told(step())
    assert (second < first) if case.trained else (second == first)


def test_ours_in_a_process(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    case = tiny(CASES["two-einsums"])
    monkeypatch.setattr(ProgramCase, "scaled", lambda self, device, dtype: case)
    monkeypatch.setitem(program.COMPILERS, "ours", lambda made: program.einops_fast.compile(made.module, then="eager"))
    monkeypatch.setattr(program, "SECONDS", 0.01)
    eager, ours = (
        list(program.measured(Job("two-einsums", what, "float32", True, "cpu", 1), torch)) for what in ("eager", "ours")
    )
    assert ours[-1].fused == 1
    assert ours[-1].step > 0
    assert eager[-1].losses == pytest.approx(ours[-1].losses, rel=1e-5)
    with pytest.raises(program.Unavailable):
        program.COMPILERS["attention()"](
            MODELS["manual_gpt"](tiny(CASES["nanogpt"]).extents, "cpu", program.torch.float32)
        )


def test_rows_and_table(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is the fastest, another way's losses are wrong, and one process fails."""

    class Process:
        def __init__(self, study: str, job: Job, caches: Any, seconds: float) -> None:
            self.what = job.what

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None:
            pass

        def ready(self) -> None:
            pass

        def answer(self) -> dict[str, Any]:
            if self.what == "compile":
                raise RuntimeError("Traceback:\n  somewhere\nRuntimeError: no compiler")
            losses = [2.0, 1.0] if self.what != "max-autotune" else [2.0, 1.5]
            step = {"eager": 0.004, "ours": 0.002}.get(self.what, 0.003)
            found = Found(losses, 1.0, 1.5, 2.0, step, 0.0001, 0.001, 3_000_000_000, fused=2 * (self.what == "ours"))
            return asdict(found)

    monkeypatch.setattr(study_programs, "begun", Process)
    tested = ProgramsStudy()
    options = Options(only="nanogpt-lengths", peers=("compile", "max-autotune"))
    rows = [record for record in tested.measure(torch, options) if isinstance(record, Row)]
    found = {row.what: row for row in rows}
    assert set(found) == {"eager", "ours", "compile", "max-autotune"}
    assert found["compile"].failure == "RuntimeError: no compiler"
    assert found["max-autotune"].failure.startswith("wrong: losses differ by 50")
    assert found["ours"].best == "eager"
    assert found["ours"].to_best == pytest.approx(0.5)
    assert found["ours"].speedup == pytest.approx(2)
    [table] = tested.tables(rows)
    [cells] = [dict(zip(table.columns, line, strict=True)) for line in table.cells]
    assert cells["step, ms: eager / compile / ours / max-autotune"] == "4 / – / 2 / –"
    assert cells["peak, GB: eager / compile / ours / max-autotune"] == "3 / – / 3 / 3"
    assert cells["fused"] == "2 fused"
    assert table.summary == ("ours / the best of eager and compiled: 0.50, worst 0.50",)
    assert tested.charts(rows, []) == []
