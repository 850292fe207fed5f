"""Tiles that are worth trying for kernels that work along rows: those of the rule in :mod:`rows`, then neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from math import gcd
from typing import Any

from einops_fast.backends.triton.contest import Call
from einops_fast.backends.triton.rows import (
    Rows,
    RowTiling,
    column_tiling,
    fitting,
    gradient_tiling,
    loss_tiling,
    row_tiling,
    sums_tiling,
)
from einops_fast.backends.triton.tiling import power_of_two

__all__ = [
    "column_tilings",
    "element_tilings",
    "gradient_tilings",
    "loss_tilings",
    "row_call",
    "row_tilings",
    "sums_tilings",
    "typical",
]

_MOST = 6
"""Tilings that compete: each has to be compiled."""


def typical(rows: Rows) -> Rows:
    """Rows that stand for all of a class, for which one measurement is enough.

    Their numbers are rounded up to powers of two, but exact up to 16; those of columns aren't.

    >>> typical(Rows((3, 1000), ((8192, 8, 1),), 8, False)).sizes
    (3, 1024)
    """
    return replace(rows, sizes=tuple([size if size <= 16 else power_of_two(size) for size in rows.sizes]))


def row_call(operator: str, rows: Rows, features: Any, mode: str, in_place: bool = False) -> Call:
    """A kind of call for :class:`~einops_fast.backends.triton.contest.Contest`.

    Args:
        operator: its name.
        rows: typical ones.
        features: those of the kernel, a dataclass. Numbers that aren't whole make no difference for time, but for 0.
        mode: of :func:`einops_fast.autotune`.
        in_place: a result is written over what is read.
    """
    values = {each.name: getattr(features, each.name) for each in fields(features)}
    values = {name: bool(value) if isinstance(value, float) else value for name, value in values.items()}
    strides = [" ".join(map(_stride, each)) for each in rows.strides]
    named = [value if isinstance(value, str) else name for name, value in values.items() if value is True or value]
    named = [each for each in named if isinstance(values.get(each, ""), (bool, str)) and each != "eps"]
    apart = [] if rows.strides[0][-1] == 1 else [f"strides {strides[0]}"]
    text = f"{operator}, {'·'.join(map(str, rows.sizes))} rows of {rows.columns}"
    return Call(", ".join([text, *named, *apart]), {"features": values, "strides": strides}, mode, in_place)


def _stride(stride: int) -> str:
    """A stride as far as it matters which addresses are multiples of how much."""
    return str(stride) if stride < 2 else f"{gcd(stride, 16)}n"


def _rivals(rule: RowTiling, others: Iterable[RowTiling], fit: Callable[[RowTiling], RowTiling]) -> list[RowTiling]:
    """The rule's first, and each once."""
    return list(dict.fromkeys(map(fit, (rule, *others))))[:_MOST]


def _warps(tiling: RowTiling, *factors: float) -> list[RowTiling]:
    """The same tiles with other numbers of warps, where there are any."""
    found = [int(tiling.warps * factor) for factor in factors]
    return [replace(tiling, warps=each) for each in found if 1 <= each <= 32]


def row_tilings(rows: Rows, size: int, live: int, arrays: int, shared: int) -> list[RowTiling]:
    """For rows that are read, reduced and written; see :func:`~einops_fast.backends.triton.rows.row_tiling`.

    Args:
        rows: how they lie.
        size: bytes of an element.
        live: how many values per element are kept.
        arrays: how many are read.
        shared: bytes of shared memory that a program may have.
    """
    rule = row_tiling(rows, size, live)
    others = _warps(rule, 0.5, 2)
    if rule.whole:
        if rule.rows > 1:
            others += [replace(rule, rows=rule.rows // 2), *_warps(replace(rule, rows=rule.rows // 2), 0.5)]
        others += [replace(rule, rows=2 * rule.rows)] if rows.count > rule.rows else []
        if rule.block > 2048 and rows.contiguous:
            others.append(RowTiling(1, rule.block // 2, False, 1, rule.warps))
    elif rule.parts > 1:
        others += [replace(rule, parts=_parts(rows, rule, 2 * rule.parts)), replace(rule, parts=1)]
    else:
        others += [replace(rule, block=rule.block // 2), replace(rule, stages=1 if rule.stages > 1 else 3)]
    return _rivals(rule, others, lambda tiling: fitting(tiling, arrays, size, shared))


def _parts(rows: Rows, tiling: RowTiling, wanted: int) -> int:
    """About as many parts as wanted, none of them without a block."""
    blocks = -(-rows.columns // tiling.block)
    return -(-blocks // -(-blocks // min(wanted, blocks)))


def sums_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """For sums of rows too long to be kept."""
    rule = sums_tiling(rows)
    return _rivals(rule, _warps(rule, 0.5, 2), lambda tiling: fitting(tiling, arrays, size, shared))


def gradient_tilings(rows: Rows, size: int, sums: int, arrays: int, shared: int) -> list[RowTiling]:
    """For whole rows that are also added up; none if they are too long."""
    rule = gradient_tiling(rows, size, sums)
    if rule is None:
        return []
    others = [*_warps(rule, 2, 0.5), replace(rule, programs=2 * rule.programs)]
    others.append(replace(rule, stages=1 if rule.stages > 1 else 2))
    if rule.rows > 1:
        others.append(replace(rule, rows=rule.rows // 2))
    return _rivals(rule, others, lambda tiling: fitting(tiling, arrays, size, shared))


def loss_tilings(rows: Rows, size: int, gradient: bool, shared: int) -> list[RowTiling]:
    """For rows that are only read, or for a gradient of which no sums are needed."""
    rule = loss_tiling(rows, size, gradient)
    others = _warps(rule, 2, 0.5)
    if not rule.whole:
        double = replace(rule, block=2 * rule.block)
        others += [double, replace(double, warps=2 * double.warps), replace(rule, stages=3)]
    return _rivals(rule, others, lambda tiling: fitting(tiling, 1, size, shared))


def column_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """For sums down the columns."""
    rule = column_tiling(rows)
    others = [
        *_warps(rule, 2, 0.5),
        *([replace(rule, rows=rule.rows // 2)] if rule.rows > 1 else []),
        replace(rule, rows=2 * rule.rows),
        replace(rule, parts=max(1, rule.parts // 2)),
    ]
    return _rivals(rule, others, lambda tiling: fitting(tiling, arrays, size, shared))


def element_tilings(rows: Rows, size: int) -> list[RowTiling]:
    """For work on each element alone, of so many bytes."""
    rule = replace(column_tiling(rows, size), parts=1, stages=1)
    others = [
        *_warps(rule, 2, 0.5),
        *([replace(rule, rows=rule.rows // 2)] if rule.rows > 1 else []),
        replace(rule, rows=2 * rule.rows),
    ]
    return _rivals(rule, others, lambda tiling: tiling)
