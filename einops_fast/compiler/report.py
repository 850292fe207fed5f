"""What a compiled program's graphs were searched for, what was fused in them, and why the rest wasn't."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from einops_fast.observing.observers import active
from einops_fast.observing.pictures import Picture, Pictured, bars
from einops_fast.observing.tables import plain_table

REASONS = (
    "different loop order",
    "broadcast",
    "different offset",
    "different numel",
    "value used elsewhere",
    "random numbers",
    "dtype",
    "mutation",
    "unsupported option",
    "not worth it",
    "unknown",
)
"""Why something isn't fused."""


@dataclass(frozen=True)
class Fusion:
    """A part of a program that was fused, or that looks like it but stays as it is.

    Attributes:
        what: such as ``'attention'``.
        where: file and line of the program.
        pattern: the call that stands for it now; empty if it wasn't fused.
        sizes: extent of each axis of the pattern; of one that changes, its symbol.
        saved: bytes that needn't be written and read any more in a forward pass; ``None`` if that isn't known.
        reason: why it wasn't fused, of :data:`REASONS`; empty if it was.
        at: the call in the graph that can't be followed.
    """

    what: str
    where: str
    pattern: str = ""
    sizes: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    saved: int | None = None
    reason: str = ""
    at: str = ""


@dataclass(eq=False)
class FusionLog(Pictured):
    """What was fused, and what wasn't, in all that was compiled in a block of :func:`fusions`."""

    fused: list[Fusion] = field(default_factory=list)
    missed: list[Fusion] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as JSON takes them."""
        return {name: [vars(each) for each in getattr(self, name)] for name in ("fused", "missed")}

    def plot(self) -> Picture:
        """Return a bar for each fusion, as long as the bytes that it saves; what was missed is red."""
        rows = [(f"{each.what}, {each.where}", float(each.saved or 1), self._saved(each)) for each in self.fused]
        rows += [(f"{each.what}, {each.where}", 0.0, f"{each.reason}, at {each.at}") for each in self.missed]
        told = f"{len(self.fused)} fused, {len(self.missed)} missed (red)"
        return bars("What torch.compile fused: bytes saved in a forward pass", told, rows)

    @staticmethod
    def _saved(fusion: Fusion) -> str:
        saved = "" if fusion.saved is None else f"saves {fusion.saved:,} bytes: "
        return saved + fusion.pattern

    def __str__(self) -> str:
        rows = [["fused", each.what, each.where, each.pattern] for each in self.fused]
        rows += [["missed", each.what, each.where, f"{each.reason}, at {each.at}"] for each in self.missed]
        return plain_table(["", "what", "where", "pattern or reason"], rows) if rows else "nothing to fuse was compiled"


_logs: list[FusionLog] = []  # changed and copied as a whole, so that threads need no lock


def _in_fork() -> None:
    """Leave to the parent what it has logged."""
    for log in _logs:
        log.fused.clear()
        log.missed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)


@contextmanager
def fusions() -> Iterator[FusionLog]:
    """Log what is fused while programs are compiled in a ``with`` block, by ``torch.compile(backend='einops_fast')``.

    Example:
        >>> import einops_fast
        >>> with einops_fast.fusions() as log:
        ...     pass
        >>> log.fused, log.missed
        ([], [])
    """
    log = FusionLog()
    _logs.append(log)
    try:
        yield log
    finally:
        _logs.remove(log)


def tell(found: Fusion) -> None:
    """Add something to all logs, and tell recorders of it."""
    for recorder in active():
        recorder.fusion(found)
    for log in [*_logs]:
        (log.missed if found.reason else log.fused).append(found)
