"""A profile as a table: a line for every equation, shapes and label, the one that takes most time first."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from einops_fast.explanation import scaled
from einops_fast.observing.hints import hints
from einops_fast.observing.recording import PlanRecord, Recorder
from einops_fast.observing.tables import aligned


@dataclass(frozen=True)
class ProfileRow:
    """All calls of one plan under one label.

    Attributes:
        equation: as it was called.
        shapes: of the operands.
        dtype: that was computed in.
        device: of the operands.
        label: the innermost :func:`einops_fast.metrics.label` around the calls.
        caller: file and line of the calls in the user's own code; of several the most frequent, and how many others.
        inside: the calls are part of another row's, and in no total.
        calls: how many there were.
        seconds: of one call; the median, ``None`` where it couldn't be taken.
        total: seconds of all calls.
        native: seconds of the framework's own einsum on the same operands; ``None`` where it wasn't timed.
        floor: seconds that the device needs at least for one, by the rates that times are predicted with.
        copied: bytes that each call copies.
        hints: what to change.
    """

    equation: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    device: str
    label: str
    caller: str
    inside: bool
    calls: int
    seconds: float | None
    total: float
    native: float | None
    floor: float
    copied: int
    hints: tuple[str, ...]

    @property
    def of_floor(self) -> float | None:
        """The floor as a part of the time: 1 is all that the device can do."""
        return self.floor / self.seconds if self.seconds else None

    @classmethod
    def of(cls, record: PlanRecord) -> ProfileRow:
        """The row of a record."""
        plan = record.plan
        return cls(
            plan.subscripts.text,
            tuple(operand.shape for operand in plan.operands),
            plan.numerics.compute,
            f"{plan.target.backend} {plan.target.device}",
            record.label,
            _most_frequent(record.callers),
            record.inside,
            record.times.calls,
            record.times.median,
            record.times.total,
            record.native,
            record.floor,
            record.explanation.copied_bytes,
            tuple(hints(record)),
        )


@dataclass(frozen=True)
class NativeRow:
    """Patched calls that went to the framework's own function.

    Attributes:
        function: of which framework, or ``'torch.sdpa'``.
        equation: as it was called.
        label: as in :class:`ProfileRow`.
        caller: as there.
        reason: why.
        calls: how many there were.
    """

    function: str
    equation: str
    label: str
    caller: str
    reason: str
    calls: int


class Profile:
    """What :func:`einops_fast.profile` has seen, so far or in all. Print it, or look at ``rows``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ended = 0.0

    def end(self) -> None:
        """Stop the clock of the program's time."""
        self._ended = perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds that the program has run, without those that went into timing native functions."""
        return (self._ended or perf_counter()) - self._recorder.began - self._recorder.aside

    @property
    def native(self) -> list[NativeRow]:
        """A row for calls that were left to the framework's own function, the most frequent first."""
        rows = [NativeRow(*key, calls) for key, calls in self._recorder.native.items()]
        return sorted(rows, key=lambda row: -row.calls)

    @property
    def attention_calls(self) -> int:
        """How many patched calls of attention were ours."""
        return sum(self._recorder.attended.values())

    @property
    def rows(self) -> list[ProfileRow]:
        """A row per equation, shapes, strides, dtypes and label; the one that took most time first."""
        rows = [ProfileRow.of(record) for record in self._recorder.plans if record.times.calls]
        return sorted(rows, key=lambda row: -row.total)

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(row.total for row in self.rows if not row.inside)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as JSON takes them."""
        rows = {name: [asdict(row) for row in getattr(self, name)] for name in ("rows", "native")}
        return rows | {name: getattr(self, name) for name in ("attention_calls", "seconds", "elapsed")}

    def __str__(self) -> str:
        rows, native = self.rows, self.native
        lines: list[str] = []
        if rows:
            lines += [*aligned([_HEAD, *[self._cells(row) for row in rows]], left=6), ""]
            calls = sum(row.calls for row in rows if not row.inside)
            lines.append(f"{_counted(calls)} took {scaled(self.seconds, 's')} of {scaled(self.elapsed, 's')}")
        if self.attention_calls:
            where = ", ".join(f"{at or 'a library'}: {count}" for (_, at), count in self._recorder.attended.items())
            lines.append(f"{_counted(self.attention_calls)} of attention by einops_fast ({where})")
        if native:
            lines.append(f"{_counted(sum(row.calls for row in native))} left to the framework's own function:")
            cells = [[row.function, row.equation, row.caller, row.reason, str(row.calls)] for row in native]
            lines += aligned([["function", "equation", "caller", "why", "calls"], *cells], left=4)
        if not lines:
            return "no einsum went through einops_fast"
        for row in rows:
            told = [f"  {hint}" for hint in row.hints]
            if told:
                lines += ["", f"{row.equation}:", *told]
        return "\n".join(lines)

    def _cells(self, row: ProfileRow) -> list[str]:
        return [
            f"  in it: {row.equation}" if row.inside else row.equation,
            ", ".join("×".join(map(str, shape)) or "scalar" for shape in row.shapes),
            row.dtype,
            row.device,
            row.label,
            row.caller,
            str(row.calls),
            "–" if row.seconds is None else scaled(row.seconds, "s"),
            "–" if row.native is None else scaled(row.native, "s"),
            scaled(row.total, "s"),
            f"{100 * row.total / self.elapsed:.0f}",
            "–" if row.of_floor is None else f"{100 * row.of_floor:.0f}",
            scaled(row.copied, "B"),
        ]


_HEAD = [
    "equation", "shapes", "dtype", "device", "label", "caller",
    "calls", "one call", "native", "all", "% of program", "% of floor", "copied",
]  # fmt: skip


def _most_frequent(callers: Counter[str]) -> str:
    (first, _), *others = callers.most_common()
    return f"{first} and {len(others)} more" if others else first


def _counted(calls: int) -> str:
    return f"{calls} {'call' if calls == 1 else 'calls'}"
