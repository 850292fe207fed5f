"""The choice of an implementation on a GPU: by prediction, by what is on disk, or by measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from einops_fast.attention.choice import Decision, Undecided
from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionSpec
from einops_fast.runtime.choosing import Chooser, Record, circumstances, recall
from einops_fast.runtime.measuring import ATTENTION, record_of, time_runs

if TYPE_CHECKING:
    from einops_fast.backends.torch.attention.implementations.clock import TorchClock

_BY_TIME = "measured to be the fastest"


def choose_by_time(
    answers: Sequence[tuple[str, Implementation | str]],
    plan: Plan,
    mode: str,
    arrays: Sequence[Any] | None,
    clock: TorchClock,
) -> Decision:
    """Choose the fastest of the implementations that can do a problem, which are one at least."""
    able = [answer for _, answer in answers if isinstance(answer, Implementation)]
    spec, on = plan.spec, clock.ceilings()
    predicted = {way.name: way.seconds(spec, on) for way in able}
    able.sort(key=lambda way: predicted[way.name])
    if len(able) == 1:
        return Decision(able[0], "the only one that can", answers, predicted)
    by_name = {way.name: way for way in able}
    kind = problem_class(spec)
    key = {
        "problem": _summary(spec),
        "class": kind,
        "dtype": spec.dtype,
        **circumstances(clock.device_name(), clock.versions()),
        # Who could do it then: a choice among fewer says nothing of one that came later.
        "candidates": sorted(by_name),
    }
    # Calls that differ in sizes only pay together for compiling.
    alike = "attention", spec.device, json.dumps({**kind, "heads": 0, "q_len": 0, "kv_len": 0}, sort_keys=True)

    if mode == "auto" and arrays is not None and clock.may_measure():
        return _at_once(able, answers, Undecided(able, predicted, key, alike))

    def near() -> Sequence[Implementation]:
        return _near(able, predicted, mode)

    def measured(ways: Sequence[Implementation]) -> Record | None:
        assert arrays is not None
        makers = {way.name: partial(clock.run_of, way, plan, arrays) for way in ways}
        with clock.aside():
            times = time_runs(makers, clock, ATTENTION)
        return record_of(times, list(makers), [way.name for way in ways if way.preferred], ATTENTION)

    choice = Chooser[Implementation](mode, whole_calls=True).choose(
        key,
        by_name.get,
        near,
        lambda: able[0],
        able[0],
        measured,
        lambda: arrays is not None and clock.may_measure(),
    )
    if choice.record is not None:
        return Decision(choice.way, _BY_TIME, answers, predicted, _times(choice.record))
    why = "predicted to be the fastest"
    if choice.way is not able[0]:
        why += " by far"
    return Decision(choice.way, why, answers, predicted, final=choice.final)


def _at_once(
    able: Sequence[Implementation], answers: Sequence[tuple[str, Implementation | str]], undecided: Undecided
) -> Decision:
    """Return what computes calls that don't wait, and what they choose from; the best prediction comes first."""
    predicted = undecided.predicted
    libraries = sorted([way for way in able if not way.compiles], key=lambda way: way.plans)
    # One that plans each shape is better than one that holds all scores.
    library = next((way for way in libraries if way.efficiency), libraries[0] if libraries else None)
    if library is None:
        return Decision(able[0], "predicted to be the fastest of those that compile, as all do", answers, predicted)
    record, chosen = recall(undecided.key, "auto"), None
    ways = [way for way in _near(able, predicted, "auto") if not way.plans]
    if record is not None and any(way.name == record["choice"] and not way.plans for way in able):
        chosen = next(way for way in able if way.name == record["choice"])
        if not chosen.compiles:
            return Decision(chosen, _BY_TIME, answers, predicted, _times(record))
        ways = [chosen]
    ways = [library, *[way for way in ways if way is not library]]
    if len(ways) == 1:
        return Decision(library, "predicted to be the fastest by far", answers, predicted)
    why = "at once, while it isn't known yet which one is the fastest"
    return Decision(
        library, why, answers, predicted, final=False, undecided=replace(undecided, ways=ways, chosen=chosen)
    )


def _near(able: Sequence[Implementation], predicted: Mapping[str, float], mode: str) -> Sequence[Implementation]:
    """Return the candidates that aren't predicted to take much longer than the best, in a mode of measuring.

    Kernels that hold no scores are compared with each other only: what many small kernels take is predicted badly, and
    must keep none of those from being measured.
    """
    fused = [way for way in able if way.efficiency]
    near = {
        way.name
        for ways in (able, fused)
        for way in ways
        if predicted[way.name] <= ATTENTION.margin["always" if mode == "always" else "auto"] * predicted[ways[0].name]
    }
    return [way for way in able if way.name in near]


def problem_class(spec: AttentionSpec) -> dict[str, Any]:
    """Return what problems have in common that share one measurement; ready for JSON."""

    def rounded(size: int) -> int:
        return size if size <= 16 else 1 << (size - 1).bit_length()

    def fastest(strides: tuple[int, ...]) -> int | None:
        return next((at - len(strides) for at, stride in enumerate(strides) if stride == 1), None)

    def broadcast(shape: tuple[int, ...] | None) -> list[bool] | None:
        return None if shape is None else [size == 1 for size in shape[-3:]]

    return {
        "heads": rounded(prod(spec.batch)),
        "shared": spec.group,
        "q_len": rounded(spec.q_len),
        "kv_len": rounded(spec.kv_len),
        "head_dim": spec.head_dim,
        "v_head_dim": spec.v_head_dim,
        "dtype": spec.dtype,
        "causal": spec.causal,
        "alignment": spec.alignment if spec.q_len != spec.kv_len else "",
        "window": [None if side is None else rounded(side) for side in spec.window],
        "softcap": bool(spec.softcap),
        "dropout": bool(spec.dropout_p),
        "bias": broadcast(spec.bias),
        "mask": broadcast(spec.mask),
        "features": sorted(
            name
            for name in ("alibi", "sinks", "segments", "varlen", "cache", "lse", "gradients", "bias_gradient",
                         "deterministic", "transforms")
            if getattr(spec, name)
        ),
        "page_size": spec.page_size,
        "fastest": [fastest(strides) for strides in spec.strides],
    }  # fmt: skip


def _summary(spec: AttentionSpec) -> str:
    """Return the class in a line, for people; the rest of the key tells what it leaves out."""
    found = problem_class(spec)
    named = [name for name in ("causal", "softcap", "dropout", "bias", "mask") if found[name]]
    window = [] if spec.window == (None, None) else [f"window {found['window']}"]
    shape = f"heads {found['heads']} q_len {found['q_len']} kv_len {found['kv_len']}"
    return " ".join([
        "attention", shape, f"head_dim {spec.head_dim}/{spec.v_head_dim}", *named, *window, *found["features"]
    ])  # fmt: skip


def _times(record: Mapping[str, Any]) -> dict[str, float]:
    found = record.get("candidates")
    return {name: seconds for name, seconds in found.items() if seconds is not None} if isinstance(found, dict) else {}
