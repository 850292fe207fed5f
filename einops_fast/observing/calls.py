"""What was called, in enough detail to call it again: equations, operators and attention, with layouts and options.

`einops-fast tune` does so ahead. Options and layouts are JSON, so that they can be cells of a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from einops_fast.errors import EinsumError
from einops_fast.observing import observers

if TYPE_CHECKING:
    from einops_fast.backends.base import Backend
    from einops_fast.observing.recording import PlanRecord

KINDS = ("einsum", "operator", "attention")
"""What can be called."""


class Layout(NamedTuple):
    """An array without values; strides are in elements. Whether there is to be a ``gradient`` of it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    gradient: bool = False


class Called(NamedTuple):
    """One kind of call."""

    kind: str  # one of `KINDS`
    what: str  # the equation, the operator's name, or the pattern of an attention
    arrays: tuple[Layout | None, ...]  # the operands; `None` in place of one that wasn't given
    options: str  # all else that was asked for, as JSON
    backend: str  # the framework's name
    device: str  # of the arrays
    direction: str  # `'forward'`, `'both'` with gradients, or `'backward'` where it is a gradient's own

    @classmethod
    def of(cls, kind: str, what: str, backend: Backend, arrays: Sequence[Any], options: Mapping[str, Any]) -> Called:
        """Return what a call with these arrays, of which some may be ``None``, is known by."""
        records = backend.name == "torch" and sys.modules["torch"].is_grad_enabled()
        found: list[Layout | None] = []
        for each in arrays:
            if each is None:
                found.append(None)
                continue
            own = backend.inspect(each)
            found.append(Layout(own.shape, own.strides, own.dtype, records and bool(each.requires_grad)))
        device = str(getattr(next(each for each in arrays if each is not None), "device", "cpu"))
        direction = "both" if any(each is not None and each.gradient for each in found) else "forward"
        return cls(kind, what, tuple(found), _text(options), backend.name, device, direction)

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Called:
        """Return what a row of a table says."""
        try:
            arrays = tuple([None if each is None else _layout(each) for each in json.loads(row["arrays"])])
            given = json.loads(row["options"])
            if row["kind"] not in KINDS or not isinstance(given, dict) or not any(arrays):
                raise ValueError(f"no kind of call is {row['kind']!r}")
            return cls(
                row["kind"], row["what"], arrays, _text(given), row["backend"], row["device"], row["direction"]
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise EinsumError(f"a row of the table of calls can't be read: {error}") from None

    @property
    def given(self) -> dict[str, Any]:
        """The options."""
        found: dict[str, Any] = json.loads(self.options)
        return found

    def columns(self) -> dict[str, str]:
        """Return the row of a table."""
        arrays = [None if each is None else each._asdict() for each in self.arrays]
        return {**self._asdict(), "arrays": _text(arrays)}

    def __str__(self) -> str:
        shapes = " ".join("–" if each is None else "×".join(map(str, each.shape)) or "scalar" for each in self.arrays)
        return f"{self.what} of {shapes}"


def tell(kind: str, what: str, backend: Backend, arrays: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Tell recorders of a call, unless an array has no strides; see :meth:`Called.of`."""
    try:
        call = Called.of(kind, what, backend, arrays, options)
    except Exception:  # of a nested tensor or a sparse one, say: the call itself says what is wrong
        return
    for recorder in observers.active():
        recorder.called(call)


def of_plan(record: PlanRecord) -> Called:
    """Return the contraction that a plan was made for."""
    plan = record.plan
    target, numerics = plan.target, plan.numerics
    wanted = record.gradients or (target.gradients,) * len(plan.operands)
    arrays = [
        Layout(each.shape, each.strides, each.dtype, target.gradients and gradient)
        for each, gradient in zip(plan.operands, wanted, strict=True)
    ]
    options = {
        "order": "C" if target.in_order else "K",
        "memory": [plan.subscripts.output.index(label) for label in target.memory],
        "path": [list(pair) for pair in plan.path] if len(arrays) > 2 else "auto",
        "dtype": None if all(each.dtype == numerics.compute for each in arrays) else numerics.compute,
        "precision": record.precision,
    }
    direction = "backward" if record.backward else "both" if target.gradients else "forward"
    return Called(
        "einsum", plan.subscripts.equation, tuple(arrays), _text(options), target.backend, target.device, direction
    )


def _layout(given: Mapping[str, Any]) -> Layout:
    shape, strides = (tuple([int(each) for each in given[name]]) for name in ("shape", "strides"))
    if len(shape) != len(strides) or min(shape, default=0) < 0:
        raise ValueError(f"no array has shape {shape} and strides {strides}")
    return Layout(shape, strides, str(given["dtype"]), bool(given["gradient"]))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
