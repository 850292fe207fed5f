"""Copying into C order on a CPU, block by block, where an array lies in another order.

NumPy and torch write along the copy. Where what lies side by side in the array is far apart there, each cache line is
read from memory once for every element in it. A block of some hundred elements both along the array and along the copy
stays in the cache until all of its lines are used up; that is the blocking of a matrix transposition, for any axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np

LEAST = 1 << 18
"""Elements from which on it pays."""

_SIDE = 256
"""Elements of a block along the array, and along the copy."""

_LINES, _PAGES = 8192, 512
"""Cache lines that stay in the cache between two uses; and how many if each is in a page of its own."""

_PAGE = 2048
"""Bytes from one line to the next from which on they are hardly ever in the same page of memory."""

_SHORT = 4
"""An axis with fewer elements isn't worth a thought: so often a line is read at most."""


@lru_cache(maxsize=1024)
def block_extents(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[int, ...] | None:
    """How large blocks are; ``None`` where a copy as a whole takes no longer.

    Args:
        shape, strides: of the array, in the order of axes of the copy; strides in elements.
        item: bytes of an element.
    """
    moving = [axis for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)) if size > 1 and stride]
    if prod(shape) < LEAST or not moving:
        return None
    along_array = sorted(moving, key=lambda axis: abs(strides[axis]))
    fastest, inside = along_array[0], range(along_array[0] + 1, len(shape))
    # What a copy as a whole reads before it comes back to a line, and how far it is from one line to the next.
    lines = prod([shape[axis] for axis in inside])
    apart = min((abs(strides[axis]) * item for axis in inside if axis in moving), default=0)
    if min(shape[fastest], shape[-1]) < _SHORT or lines < (_PAGES if apart >= _PAGE else _LINES):
        return None
    along_copy = range(len(shape) - 1, -1, -1)
    extents = [1] * len(shape)
    for order in (along_array, along_copy):
        run = 1
        for axis in order:
            extents[axis] = max(extents[axis], min(shape[axis], -(-_SIDE // run)))
            run *= extents[axis]
            if run >= _SIDE:
                break
    for axis in along_copy:
        extents[axis] = min(shape[axis], extents[axis] * max(1, _SIDE**2 // prod(extents)))
    return tuple(extents)


def copy_in_blocks(target: Any, source: Any, extents: Sequence[int], threads: int = 1) -> None:
    """Write one of NumPy's arrays into another one of its shape, in blocks of these extents.

    The threads that share the blocks are new ones in each call, as threads don't outlive a fork.
    """
    if threads == 1:
        _copy(target, source, _blocks(source.shape, extents))
        return
    # Imported here because most programs don't need it.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        shares = [islice(_blocks(source.shape, extents), first, None, threads) for first in range(threads)]
        for done in [pool.submit(_copy, target, source, share) for share in shares]:
            done.result()


def _copy(target: Any, source: Any, blocks: Iterable[tuple[slice, ...]]) -> None:
    for block in blocks:
        np.copyto(target[block], source[block])


def _blocks(shape: Sequence[int], extents: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    ways = [[slice(at, at + by) for at in range(0, size, by)] for size, by in zip(shape, extents, strict=True)]
    return product(*ways)
