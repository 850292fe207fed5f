"""The choice of an implementation on a GPU: by prediction, by what is on disk, or by measurement."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, Protocol

from einops_fast.attention.calls import GivenCall
from einops_fast.attention.choice import Decision
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionSpec
from einops_fast.budget import may_spend, spending
from einops_fast.choosing import Record, circumstances, measure_once, recall
from einops_fast.cost import Ceilings

__all__ = ["Clock", "choose_by_time", "problem_class"]

_MARGIN = {"auto": 2.5, "always": 8.0}
"""How many times the best prediction an implementation may be predicted to take and still be measured, by mode."""

_SLOW_MARGIN = {"auto": 1.2, "always": 8.0}
"""The same for one that takes many seconds to begin."""

_ROUNDS, _RUNS, _SPREAD = 7, 2, 1.25
"""Rounds, runs in each, and how many times the best an implementation may take before them to be in them.

Many short rounds: a device that gets hot slows down, and not only for those that come last.
"""

_BONUS = 1.02
"""How many times the best a preferred implementation may take, which is no more than two measurements differ by."""

_WALL_ROUNDS, _WALL_RUNS, _WALL_SPREAD = 11, 16, 1.1
"""The same of calls one after the other, by the host's clock: another process may have the processor meanwhile."""

_NO_WAIT = 5e-3
"""Seconds of the device's for which no host is still queueing calls: then these aren't measured."""

_BY_TIME = "measured to be the fastest"


class Clock(Protocol):
    """What measuring needs of a framework."""

    def may_measure(self) -> bool:
        """Whether calls can be timed now."""

    def device_name(self, device: str) -> str:
        """The model of the device."""

    def versions(self) -> dict[str, str]:
        """Of what the times depend on."""

    def ceilings(self, device: str) -> Ceilings:
        """What the device reaches."""

    def aside(self, device: str) -> AbstractContextManager[Any]:
        """A block that leaves no trace in the framework's state, random numbers included."""

    def run_of(self, way: Implementation, call: GivenCall) -> Callable[[], object]:
        """What makes such a call as its callers make it, with gradients if the spec has them, which go nowhere."""

    def settle(self, runs: Sequence[Callable[[], object]], device: str) -> None:
        """Keep the device at work by these in turns until it is as under load: its clock falls, for some by more."""

    def seconds(self, run: Callable[[], object], device: str, repeat: int) -> list[float]:
        """Times of some runs on the device."""

    def wall_seconds(self, run: Callable[[], object], device: str, calls: int) -> float:
        """Seconds for each of so many runs, one queued after the other, until the device is done."""


def choose_by_time(
    answers: Sequence[tuple[str, Implementation | str]],
    spec: AttentionSpec,
    device: str,
    mode: str,
    call: GivenCall | None,
    clock: Clock,
) -> Decision:
    """Choose the fastest implementation.

    Args:
        answers: what each one said; one can at least.
        spec: what to compute.
        device: where.
        mode: of measuring, see :func:`einops_fast.autotune`.
        call: the first one; without it nothing is measured.
        clock: what measures.
    """
    able = [answer for _, answer in answers if isinstance(answer, Implementation)]
    on = clock.ceilings(device)
    predicted = {way.name: way.seconds(spec, on) for way in able}
    able.sort(key=lambda way: predicted[way.name])
    best = Decision(able[0], "predicted to be the fastest", answers, predicted, final=True)
    if len(able) == 1:
        return Decision(able[0], "the only one that can", answers, predicted)
    by_name = {way.name: way for way in able}
    kind = problem_class(spec)
    key = {
        "problem": _summary(spec),
        "class": kind,
        "dtype": spec.dtype,
        **circumstances(clock.device_name(device), clock.versions()),
        # Who could do it then: a choice among fewer says nothing of one that came later.
        "candidates": sorted(by_name),
    }
    record = recall(key, mode)
    if record is not None and record["choice"] in by_name:
        return Decision(by_name[record["choice"]], _BY_TIME, answers, predicted, _times(record))
    # Calls that differ in sizes only share the time that measuring may take.
    budget = "attention", device, json.dumps({**kind, "heads": 0, "q_len": 0, "kv_len": 0}, sort_keys=True)
    in_time = mode != "auto" or may_spend(budget)
    if mode == "never" or call is None or not in_time or not clock.may_measure():
        return Decision(able[0], best.why, answers, predicted, final=mode == "never")
    near = _near([way for way in able if predicted[way.name] >= way.host[spec.gradients]] or able, predicted, mode)
    if len(near) == 1:
        return Decision(near[0], "predicted to be the fastest by far", answers, predicted)

    def measured() -> Record | None:
        times, walls = _measure(near, call, device, clock)
        if not times:
            return None
        longest = {name: max(times[name], walls[name]) for name in times}
        name = _best([way for way in near if way.name in times], times, longest)
        return {"choice": name, "seconds": longest[name], "candidates": longest}

    with spending(budget):
        record = measure_once(key, mode, by_name.__contains__, measured, whole_calls=True)
    if record is None:
        return best
    return Decision(by_name[record["choice"]], _BY_TIME, answers, predicted, _times(record))


def _best(ways: Sequence[Implementation], times: Mapping[str, float], longest: Mapping[str, float]) -> str:
    """The fastest: by the device's time of those that the host is about as fast with, if it's the host that counts."""
    most = min(longest.values()) * _WALL_SPREAD
    allowed = {way.name: 1.0 if way.preferred else _BONUS for way in ways if longest[way.name] <= most}
    return min(allowed, key=lambda name: times[name] * allowed[name])


def _near(able: Sequence[Implementation], predicted: Mapping[str, float], mode: str) -> Sequence[Implementation]:
    """Those predicted not to take much longer than the best, in a mode of measuring.

    Kernels that hold no scores are compared with each other only: what many small kernels take is predicted badly, and
    must keep none of those from being measured.
    """
    fused = [way for way in able if way.efficiency]
    near = {
        way.name
        for ways in (able, fused)
        for way in ways
        if predicted[way.name] <= (_SLOW_MARGIN if way.slow_to_begin else _MARGIN)[mode] * predicted[ways[0].name]
    }
    return [way for way in able if way.name in near]


def _measure(
    ways: Sequence[Implementation], call: GivenCall, device: str, clock: Clock
) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of the device's for each one that works, and of calls one after the other."""
    times: dict[str, list[float]] = {}
    runs: dict[str, Callable[[], object]] = {}
    with clock.aside(device):
        for way in ways:
            try:
                run = clock.run_of(way, call)
                clock.seconds(run, device, 2)  # compiles, and fills the pools of memory
                times[way.name] = clock.seconds(run, device, 3)
            except Exception:  # out of memory, say, or a library that can't after all: then it isn't a way
                continue
            runs[way.name] = run
        close = [name for name in runs if min(times[name]) <= _SPREAD * min(map(min, times.values()))]
        if len(close) > 1:
            clock.settle([runs[name] for name in close], device)
            times |= {name: [] for name in close}
            for _ in range(_ROUNDS):
                for name in close:
                    times[name] += clock.seconds(runs[name], device, _RUNS)
        medians = {name: statistics.median(each) for name, each in times.items()}
        walls = dict.fromkeys(medians, 0.0)
        if len(runs) > 1 and min(medians.values()) < _NO_WAIT:
            rounds = [
                [clock.wall_seconds(run, device, _WALL_RUNS) for run in runs.values()] for _ in range(_WALL_ROUNDS)
            ]
            # The least, as what disturbs a host only ever adds to its time.
            walls = {name: min(found) for name, found in zip(runs, zip(*rounds, strict=True), strict=True)}
    return medians, walls


def problem_class(spec: AttentionSpec) -> dict[str, Any]:
    """What problems have in common for which one measurement is enough; ready for JSON."""

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
    """The class in a line, for people; the rest of the key tells what it leaves out."""
    found = problem_class(spec)
    named = [name for name in ("causal", "softcap", "dropout", "bias", "mask") if found[name]]
    window = [] if spec.window == (None, None) else [f"window {found['window']}"]
    shape = f"heads {found['heads']} q_len {found['q_len']} kv_len {found['kv_len']}"
    return " ".join([
        "attention", shape, f"head_dim {spec.head_dim}/{spec.v_head_dim}", *named, *window, *found["features"]
    ])  # fmt: skip


def _times(record: Mapping[str, Any]) -> dict[str, float]:
    found = record.get("candidates")
    return dict(found) if isinstance(found, dict) else {}
