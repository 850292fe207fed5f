"""The rows of each table of metrics, from what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from einops_fast.observing.calls import of_plan
from einops_fast.observing.fallbacks import copies, native_steps
from einops_fast.observing.kernel_metadata import kernel_rows
from einops_fast.observing.recording import PlanRecord, Recorder

Row = Mapping[str, Any]


def plan_columns(record: PlanRecord) -> dict[str, Any]:
    """What says which plan a row of any table is of."""
    plan = record.plan
    return {
        "label": record.label,
        "equation": plan.subscripts.text,
        "shapes": " ".join("×".join(map(str, operand.shape)) or "scalar" for operand in plan.operands),
        "dtype": plan.numerics.compute,
        "backend": plan.target.backend,
        "device": plan.target.device,
    }


def _plans(recorder: Recorder) -> list[Row]:
    """A row per plan: what it costs as predicted and as measured."""
    return [
        {
            **plan_columns(record),
            "strides": " ".join("×".join(map(str, operand.strides)) or "scalar" for operand in record.plan.operands),
            "inside": int(record.inside),
            "calls": record.times.calls,
            "first_seconds": record.times.first,
            "median_seconds": record.times.median,
            "total_seconds": record.times.total,
            "predicted_seconds": record.plan.seconds,
            "floor_seconds": record.floor,
            "path": " ".join(str(pair).replace(" ", "") for pair in record.plan.path),
            "steps": " ".join(step.kind for step in record.explanation.steps),
            "flops": record.explanation.flops,
            "moved_bytes": record.explanation.moved_bytes,
            "copied_bytes": record.explanation.copied_bytes,
        }
        for record in recorder.plans
    ]


def _steps(recorder: Recorder) -> list[Row]:
    """A row per step of a plan: what it does, and which operands it copies, and why."""
    return [
        {
            **plan_columns(record),
            "step": at,
            "kind": step.kind,
            "computes": step.equation,
            "shape": "×".join(map(str, step.shape)) or "scalar",
            "batch_m_n_k": "×".join(map(str, step.gemm)) if step.gemm else "",
            "calls": times.calls,
            "median_seconds": times.median,
            "total_seconds": times.total,
            "predicted_seconds": step.cost.seconds,
            "flops": step.cost.flops,
            "moved_bytes": step.cost.moved,
            "copied_bytes": step.cost.copied,
            "operands": "; ".join(f"{read} {words}" for read, words in zip(step.reads, step.operands, strict=False)),
        }
        for record in recorder.plans
        for at, (step, times) in enumerate(zip(record.explanation.steps, record.steps, strict=True))
    ]


def _kernels(recorder: Recorder) -> list[Row]:
    """A row per way that a step is run by a kernel of ours or may be: the choice, and the kernel that was compiled."""
    return [
        {**plan_columns(record), "step": at, "calls": record.steps[at].calls, **row}
        for record in recorder.plans
        for at, (run, cost) in enumerate(zip(record.runs, record.plan.costs, strict=True))
        for row in kernel_rows(run, cost.moved)
    ]


def _fallbacks(recorder: Recorder) -> list[Row]:
    """A row per reason why something isn't as fast as it might be: a category, and the reason in words."""
    rows: list[Row] = []
    for record in recorder.plans:
        counted = Counter(
            [*native_steps(record.plan), *((found.category, found.why) for found in copies(record.plan, record.runs))]
        )
        rows += [
            {**plan_columns(record), "category": category, "reason": reason, "calls": record.times.calls * count}
            for (category, reason), count in counted.items()
        ]
    left: Counter[tuple[str, ...]] = Counter()
    for (backend, equation, label, _, reason), count in recorder.native.items():
        left[backend, equation, label, reason] += count
    for (backend, equation, label, reason), count in left.items():
        what = {"label": label, "equation": equation, "shapes": "", "dtype": "", "backend": backend, "device": ""}
        rows.append({**what, "category": "native", "reason": reason, "calls": count})
    return rows


def _fusions(recorder: Recorder) -> list[Row]:
    """A row per part of a compiled program that was fused, or looked like it but wasn't."""
    return [
        {
            "what": found.what,
            "where": found.where,
            "fused": int(not found.reason),
            "pattern": found.pattern,
            "sizes": " ".join(f"{name}={size}" for name, size in found.sizes.items()),
            "saved_bytes": found.saved,
            "reason": found.reason,
            "at": found.at,
        }
        for found in recorder.fusions
    ]


def _calls(recorder: Recorder) -> list[Row]:
    """A row per kind of call: all that it takes to make it again."""
    rows = [
        {"label": record.label, "calls": record.times.calls, **of_plan(record).columns()} for record in recorder.plans
    ]
    return [*rows, *({"label": label, "calls": None, **call.columns()} for label, call in recorder.calls)]


MAKERS: dict[str, Callable[[Recorder], list[Row]]] = {
    "plans": _plans,
    "steps": _steps,
    "kernels": _kernels,
    "fallbacks": _fallbacks,
    "fusions": _fusions,
    "calls": _calls,
}
"""By the name of the table."""
