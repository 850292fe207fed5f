"""Device functions for rows that are kept in several tiles side by side, their pieces.

A tile has a power of two of columns. In one tile, a row of 5000 elements would have 8192, of which a third is nothing:
registers and instructions that load no bytes. Five tiles of 1024 have hardly more than the row. All pieces have the
same shape, and so the same threads at the same places; they are added up place by place before threads exchange
anything.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.rows.tiles import load_parameter

__all__ = ["load_parameters", "most_of", "piece_columns", "pieces_exist", "sums_of_two", "total_of"]


@triton.jit
def piece_columns(at, block: tl.constexpr):
    """The columns of a piece."""
    return at * block + tl.arange(0, block)


@triton.jit
def pieces_exist(there, columns, block: tl.constexpr, pieces: tl.constexpr):
    """Which elements of each piece there are, of rows of which some are ``there``."""
    exist = ()
    for at in tl.static_range(pieces):
        exist += (there[:, None] & (piece_columns(at, block) < columns)[None, :],)
    return exist


@triton.jit
def load_parameters(array, strides, columns, block: tl.constexpr, pieces: tl.constexpr):
    """The pieces of what all rows share, see :func:`~einops_fast.backends.triton.rows.tiles.load_parameter`."""
    found = ()
    for at in tl.static_range(pieces):
        found += (load_parameter(array, strides, piece_columns(at, block), columns),)
    return found


@triton.jit
def total_of(tiles):
    """The sum of tiles, place by place."""
    total = tiles[0]
    for at in tl.static_range(1, len(tiles)):
        total += tiles[at]
    return total


@triton.jit
def most_of(tiles):
    """The largest of the elements of tiles at each place."""
    most = tiles[0]
    for at in tl.static_range(1, len(tiles)):
        most = tl.maximum(most, tiles[at])
    return most


@triton.jit
def _both_sums(first, second, more_first, more_second):
    return first + more_first, second + more_second


@triton.jit
def sums_of_two(first, second):
    """The sums of the rows of two tiles. Threads exchange both at once, and wait for each other once."""
    return tl.reduce((first, second), 1, _both_sums)
