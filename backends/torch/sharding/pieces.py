"""Attention of runs of a sequence: what queries see of keys, in calls of plain tensors, and what several calls make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import torch

from einops_fast.attention.options import Options

Runs = Sequence[tuple[int, int]]
"""Parts of a sequence that lie side by side: where each begins in the whole, and its length."""


_ALL = 1 << 62
"""As many positions as no sequence has: without a window."""


class Reach(NamedTuple):
    """Which keys queries see: of query ``i``, those from ``i + shift - before`` to ``i + shift + after``."""

    shift: int
    before: int
    after: int


class Piece(NamedTuple):
    """One call: where its queries and its keys begin among those that are there, how many they are, and options."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    options: Options


def reach_of(options: Options, queries: int, keys: int) -> Reach:
    """Return what is seen in sequences of these lengths."""
    from_end = "bottom_right" in (options.causal, options.alignment)
    before, after = (_ALL if side is None else side for side in options.window or (None, None))
    return Reach(keys - queries if from_end else 0, before, min(after, 0) if options.causal else after)


def pieces_of(options: Options, reach: Reach, queries: Runs, keys: Runs) -> list[Piece]:
    """Return the calls that runs of queries and of keys take; their keys end where the last query sees one."""
    plain = options._replace(causal=False, alignment=None, window=None)
    if queries == keys and len(keys) > 1 and reach == (0, _ALL, 0):  # what is causal in the whole is so side by side
        every = 0, sum(count for _, count in keys)
        return [Piece(every, every, plain._replace(causal=True))]
    found, at = [], 0
    for start, count in queries:
        first, place = start + reach.shift, 0
        for begin, length in keys:
            low, high = max(begin, first - reach.before), min(begin + length, first + count + reach.after)
            if low < high and count:
                skipped, stop = max(0, low - reach.after - first), min(count, high + reach.before - first)
                own = _facing(plain, reach, first + skipped, first + stop, low, high)
                found.append(Piece((at + skipped, stop - skipped), (place + low - begin, high - low), own))
            place += length
        at += count
    if len(found) > 1 and all(each.options == plain for each in found):
        rows, columns = sorted({each.queries for each in found}), sorted({each.keys for each in found})
        if len(found) == len(rows) * len(columns) and _adjoin(rows) and _adjoin(columns):  # all see all: one call
            return [Piece(_joined(rows), _joined(columns), plain)]
    return found


def _joined(spans: Runs) -> tuple[int, int]:
    return spans[0][0], sum(count for _, count in spans)


def _adjoin(spans: Runs) -> bool:
    return all(start + count == after for (start, count), (after, _) in pairwise(spans))


def _facing(plain: Options, reach: Reach, first: int, stop: int, low: int, high: int) -> Options:
    """Return the options of queries that face keys from ``first`` on, for keys from ``low`` to ``high``.

    The last query is said to face the last key, and the window counts from there.
    """
    late = high - stop
    before = None if stop - 1 - reach.before <= low else reach.before + late
    after = None if high - 1 <= first + reach.after else reach.after - late
    if before is after is None:
        return plain
    if after == 0:
        square = (first, stop) == (low, high) and before is None
        window = None if before is None else (before, None)
        return plain._replace(causal=True if square else "bottom_right", window=window)
    return plain._replace(alignment="bottom_right", window=(before, after))


def merged(one: tuple[Any, Any], other: tuple[Any, Any], axis: int) -> tuple[Any, Any]:
    """Return the result of all keys, and the log of its denominator, from those of two calls that each saw some keys.

    ``axis`` is that of the features in the results.
    """
    largest = torch.maximum(one[1], other[1]).detach()
    largest = torch.where(largest == -inf, 0.0, largest)
    parts = [torch.exp(lse - largest) for _, lse in (one, other)]
    total = parts[0] + parts[1]
    some = torch.where(total == 0, 1.0, total)
    result, more = (out * (part / some).unsqueeze(axis) for (out, _), part in zip((one, other), parts, strict=True))
    return result + more, torch.where(total == 0, -inf, torch.log(some) + largest)


def kept(seed: Any, places: Sequence[Any], p: float) -> Any:
    """Return which weights aren't dropped: those at the same positions of the whole arrays, wherever they are.

    Args:
        seed: a number of 31 bits, in an array of int64 with one element.
        places: the positions along each axis; those of the keys come last.
        p: the probability of dropping one.
    """
    *rows, columns = places
    number = seed = seed.reshape(())
    for place in rows:
        number = _mixed(number[..., None] + place + 1, 0xFFFFFFFF)
    found = _mixed(columns + seed, 0xFFFFFFFF).to(torch.int32) ^ _mixed(number, 0xFFFFFFFF).to(torch.int32)[..., None]
    return _mixed(found, -1).bitwise_and_(0x7FFFFFFF) >= int(p * 2**31)


def _mixed(numbers: Any, bits: int) -> Any:
    """Hash numbers of 32 bits, so that each bit of a result depends on all bits given: Wellons' lowbias32."""
    found = numbers & bits
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        found = found ^ ((found >> shift) & (0xFFFFFFFF >> shift))
        if factor is not None:
            found = found * (factor if bits > 0 else factor - ((factor >> 31) << 32))
            found = found & bits if bits > 0 else found
    return found
