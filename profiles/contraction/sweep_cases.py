"""A few contractions at sizes from small to large, for curves of throughput over size.

A case is called ``curve@size``; :func:`curve` takes its name apart. On a CPU those that it doesn't finish soon are
left out.
"""

from __future__ import annotations

from einops_fast.profiles.cases import Case, scaled

__all__ = ["SWEEP", "curve", "fitting"]


def _sizes(first: int, last: int) -> list[int]:
    """Powers of two."""
    return [1 << power for power in range(first.bit_length() - 1, last.bit_length())]


SWEEP: tuple[Case, ...] = (
    *(Case(f"matmul@{n}", "ik,kj->ij", ((n, n), (n, n))) for n in _sizes(64, 8192)),
    *(Case(f"scores@{n}", "bind,bjnd->bnij", ((8, n, 16, 64), (8, n, 16, 64))) for n in _sizes(64, 2048)),
    *(Case(f"values@{n}", "bnij,bjnd->bind", ((8, 16, n, n), (8, n, 16, 64))) for n in _sizes(64, 2048)),
    *(Case(f"rowdot@{n}", "bind,bind->bni", ((8, n, 16, 64), (8, n, 16, 64))) for n in _sizes(64, 16384)),
    *(Case(f"scale@{n}", "bij,bj->bij", ((64, n, 1024), (64, 1024))) for n in _sizes(16, 4096)),
)


def curve(name: str) -> tuple[str, int] | None:
    """The curve that a case is a point of, and its size; ``None`` for other cases.

    >>> curve('matmul@4096'), curve('mx0')
    (('matmul', 4096), None)
    """
    of, _, size = name.rpartition("@")
    return (of, int(size)) if of and size.isdigit() else None


def fitting(cases: tuple[Case, ...], device: str) -> tuple[Case, ...]:
    """The cases at the sizes that ``device`` can do; a point of a curve is left out rather than moved."""
    smaller = ((case, scaled(case, device)) for case in cases)
    return tuple(small for case, small in smaller if small is case or curve(case.name) is None)
