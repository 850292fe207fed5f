"""What travels between the process that reports and those that measure: options there, records back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einops_fast.profiles.cases import Case
    from einops_fast.profiles.measure import Timing

__all__ = ["Machine", "Note", "Options", "Record", "Row", "decode", "encode"]


@dataclass(frozen=True)
class Options:
    """What to measure; empty means the study's own choice."""

    device: str = ""
    threads: int = 0
    dtypes: tuple[str, ...] = ()
    cases: str = "public"
    only: str = ""
    peers: tuple[str, ...] = ()
    quick: bool = False
    backward: bool = False


@dataclass(frozen=True)
class Row:
    """One way to compute one case in one framework.

    Attributes:
        what: the way: a mode, an implementation.
        equation: as it is called.
        sizes: shapes of operands and result.
        seconds: median time; ``None`` if the way failed.
        spread: interquartile range.
        speedup: time of the native einsum over this one.
        floor: seconds that the device needs at least.
        failure: why the row doesn't count; empty if it does.
        backward: forward and backward were timed, and the gradients checked.
        guest: a failure of this way isn't held against the run.
        best: the fastest of the other ways.
        to_best: time of this way over that one.
        extra_bytes: what the call needs at most beside operands and result, on a GPU.
        kernels: what ran.
    """

    framework: str
    case: str
    what: str
    dtype: str = ""
    equation: str = ""
    sizes: str = ""
    seconds: float | None = None
    spread: float | None = None
    speedup: float | None = None
    floor: float | None = None
    failure: str = ""
    backward: bool = False
    guest: bool = False
    best: str = ""
    to_best: float | None = None
    extra_bytes: int | None = None
    kernels: str = ""

    @classmethod
    def of(cls, framework: str, case: Case, dtype: str, timing: Timing, floor: float | None = None) -> Row:
        """The row of a timing."""
        return cls(
            framework,
            case.name,
            timing.name,
            dtype,
            case.called,
            case.sizes,
            timing.seconds,
            timing.spread,
            timing.speedup,
            floor,
            timing.failure,
        )

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured. Of two rows with the same key the later one counts."""
        return self.framework, self.dtype, self.backward, self.case, self.what


@dataclass(frozen=True)
class Machine:
    """What a framework was measured on, and with."""

    device: str
    threads: int
    versions: dict[str, str] = field(hash=False)
    gpu: bool = False


@dataclass(frozen=True)
class Note:
    """Something that the reader of a table has to know."""

    text: str


Record = Row | Machine | Note

_KINDS: dict[str, type[Row] | type[Machine] | type[Note]] = {"row": Row, "machine": Machine, "note": Note}


def encode(record: Record) -> str:
    """One line of JSON."""
    return json.dumps({type(record).__name__.lower(): asdict(record)})


def decode(line: str) -> Record:
    """The record of a line."""
    [(kind, values)] = json.loads(line).items()
    return _KINDS[kind](**values)
