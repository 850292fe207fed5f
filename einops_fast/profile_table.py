"""A profile as a table: a line for every equation, shapes and label, the one that takes most time first."""

from __future__ import annotations

from dataclasses import dataclass

from einops_fast.explanation import aligned, scaled
from einops_fast.hints import hints
from einops_fast.recording import PlanRecord, Recorder

__all__ = ["Profile", "ProfileRow"]


@dataclass(frozen=True)
class ProfileRow:
    """All calls of one plan under one label.

    Attributes:
        equation: as it was called.
        shapes: of the operands.
        dtype: that was computed in.
        device: of the operands.
        label: the innermost :func:`einops_fast.metrics.label` around the calls.
        inside: the calls are part of another row's, and in no total.
        calls: how many there were.
        seconds: of one call; the median, ``None`` where it couldn't be taken.
        total: seconds of all calls.
        floor: seconds that the device needs at least for one, by the rates that times are predicted with.
        copied: bytes that each call copies.
        hints: what to change.
    """

    equation: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    device: str
    label: str
    inside: bool
    calls: int
    seconds: float | None
    total: float
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
            record.inside,
            record.times.calls,
            record.times.median,
            record.times.total,
            record.floor,
            record.explanation.copied_bytes,
            tuple(hints(record)),
        )


class Profile:
    """What :func:`einops_fast.profile` has seen, so far or in all. Print it, or look at ``rows``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def rows(self) -> list[ProfileRow]:
        """A row per equation, shapes, strides, dtypes and label; the one that took most time first."""
        rows = [ProfileRow.of(record) for record in self._recorder.plans if record.times.calls]
        return sorted(rows, key=lambda row: -row.total)

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(row.total for row in self.rows if not row.inside)

    def __str__(self) -> str:
        rows = self.rows
        if not rows:
            return "no einsum went through einops_fast"
        cells = [["equation", "shapes", "dtype", "device", "label", "calls", "one call", "all", "% of floor", "copied"]]
        for row in rows:
            cells.append(
                [
                    f"  in it: {row.equation}" if row.inside else row.equation,
                    ", ".join("×".join(map(str, shape)) or "scalar" for shape in row.shapes),
                    row.dtype,
                    row.device,
                    row.label,
                    str(row.calls),
                    "–" if row.seconds is None else scaled(row.seconds, "s"),
                    scaled(row.total, "s"),
                    "–" if row.of_floor is None else f"{100 * row.of_floor:.0f}",
                    scaled(row.copied, "B"),
                ]
            )
        calls = sum(row.calls for row in rows if not row.inside)
        lines = [
            *aligned(cells, left=5),
            "",
            f"{calls} {'call' if calls == 1 else 'calls'} took {scaled(self.seconds, 's')}",
        ]
        for row in rows:
            told = [f"  {hint}" for hint in row.hints]
            if told:
                lines += ["", f"{row.equation}:", *told]
        return "\n".join(lines)
