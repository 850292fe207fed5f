"""What travels between the process that reports and those that measure: options there, records back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from einops_fast.profiles.cases import AnyCase
    from einops_fast.profiles.timing.ceilings import Work
    from einops_fast.profiles.timing.measure import Timing

ALL = "all cases"  # Stands for the case in a row about whatever keeps a way or a framework from being measured at all


@dataclass(frozen=True)
class Options:
    """What to measure; empty means the study's own choice."""

    device: str = ""
    threads: int = 0
    dtypes: tuple[str, ...] = ()
    cases: str = "public"  # a family of the study's cases, or the path of a file with others
    only: str = ""  # parts of the names of the cases to measure, separated by commas
    peers: tuple[str, ...] = ()
    quick: bool = False
    forward_only: bool = False
    trace: str = ""  # folder for a trace of every case; none is written without one


def phase(backward: bool) -> str:
    """Return the phase of a call, as tables, ranges and traces name it."""
    return "backward" if backward else "forward"


@dataclass(frozen=True)
class Row:
    """One way to compute one case in one framework."""

    framework: str
    case: str
    what: str  # the way: a mode, an implementation
    dtype: str = ""
    equation: str = ""  # as it is called
    sizes: str = ""  # shapes of operands and result
    seconds: float | None = None  # median time; `None` if the way failed
    spread: float | None = None  # interquartile range of the rounds, in seconds
    speedup: float | None = None  # time of the native way over this one
    floor: float | None = None  # seconds that the device needs at least
    failure: str = ""  # why the row doesn't count; empty if it does
    backward: bool = False  # forward and backward were timed, and the gradients checked
    guest: bool = False  # a failure of this way isn't held against the run
    best: str = ""  # the fastest of the other ways
    to_best: float | None = None  # time of this way over that one
    kernels: str = ""  # what ran
    host: float | None = None  # seconds until a call returns, where that isn't the time itself: on a GPU
    # bytes of operands and results, which are moved at least; of backward, those of both passes.
    moved: int | None = None
    flops: int | None = None  # floating-point operations of the best order
    error: float | None = None  # the largest of the result, or of result and gradients, relative to their size
    peak_bytes: int | None = None  # the most that the call holds at once beside its operands, its result included
    # seconds of one call by kernel; by operator on a CPU.
    kernel_seconds: dict[str, float] = field(default_factory=dict, hash=False)
    # seconds by part of a program whose calls don't all take the same time.
    phases: dict[str, float] = field(default_factory=dict, hash=False)
    details: str = ""  # the traceback of the failure
    chosen: str = ""  # which implementation ours was

    @classmethod
    def of(
        cls, framework: str, case: AnyCase, dtype: str, timing: Timing, work: Work | None = None, **others: Any
    ) -> Row:
        """Return the row of a timing, with the work of its case and whatever else is known."""
        same = ("seconds", "spread", "speedup", "failure", "host", "error", "details")
        known = {"equation": case.called, "sizes": case.sizes, "guest": timing.absent}
        known |= {name: getattr(timing, name) for name in same}
        known |= asdict(work) if work else {}
        return cls(framework, case.name, timing.name, dtype, **{**known, **timing.others, **others})

    @property
    def task(self) -> str:
        """What a study measures at a time, in words: ``torch float16 mx0 backward``."""
        return f"{self.framework} {self.dtype} {self.case} {phase(self.backward)}"

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured. Of two rows with the same key the later one counts."""
        return self.framework, self.dtype, self.backward, self.case, self.what


def is_ours(what: str) -> bool:
    """Return whether a way is our implementation: one that begins with ``fast_``, or is just ``ours``."""
    return what.startswith("fast_") or what == "ours"


def is_own(what: str) -> bool:
    """Return whether a way is ours, another call of ours, or kernels of ours alone: no peer."""
    return is_ours(what) or what in ("contract_expression", "patched", "triton")


def skipped(framework: str, what: str, why: str, *, dtype: str = "", details: str = "", guest: bool = True) -> Row:
    """Return the row of a way, or of a framework, that can't be measured here; by default nobody's fault."""
    return Row(framework, ALL, what, dtype, failure=why, guest=guest, details=details)


@dataclass(frozen=True)
class Machine:
    """What a framework was measured on, and with."""

    device: str
    threads: int
    versions: dict[str, str] = field(hash=False)  # by package
    gpu: bool = False
    framework: str = ""
    environment: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Note:
    """Something that the reader of a table has to know."""

    text: str


@dataclass(frozen=True)
class Extent:
    """How many cases, counted once per dtype and direction, a framework's process is going to measure."""

    cases: int


@dataclass(frozen=True)
class Ceiling:
    """What a device reaches in a dtype."""

    bandwidth: float  # bytes per second of a large copy
    flops: float  # FLOP/s of a large matrix product
    framework: str = ""
    dtype: str = ""


Record = Row | Machine | Note | Extent | Ceiling

_KINDS: dict[str, type[Record]] = {each.__name__.lower(): each for each in (Row, Machine, Note, Extent, Ceiling)}


def encode(record: Record) -> str:
    """Return a record as one line of JSON."""
    return json.dumps({type(record).__name__.lower(): asdict(record)})


def decode(line: str) -> Record:
    """Return the record of a line."""
    [(kind, values)] = json.loads(line).items()
    return _KINDS[kind](**values)
