"""What the kernels take: the constants that they're specialised for, and arrays, strides and numbers in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

RUNTIME = ["lengths", "numbers"]
"""Arguments of the kernels that must not be compiled for: they change from call to call."""


@dataclass(frozen=True)
class Features:
    """Everything that the kernels are specialised for, apart from the tiles."""

    axes: int  # batch axes
    shared: int  # how many of them, the last ones, k and v lack
    # features
    head_dim: int
    v_head_dim: int
    # the same in two parts that are powers of two, of which the second may be 0
    head: tuple[int, int]
    v_head: tuple[int, int]
    folded: bool = True  # the score is the product times a positive number, which is left to the exponential
    # whether keys far before or after the facing one are hidden
    left: bool = False
    right: bool = False
    bottom_right: bool = False  # the last query faces the last key
    # whether there is such
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    segments: bool = False
    dropout: bool = False
    # whether there is one, and whether it varies along queries and along keys
    bias: tuple[bool, bool] | None = None
    mask: tuple[bool, bool] | None = None
    page_size: int = 0  # keys in a page; 0 without pages
    wide: bool = False  # offsets inside a tile need 64 bits
    wide_scores: bool = False  # offsets in the bias and the mask do
    double: bool = False  # scores, sums and numbers are float64. `scale`, `cap` and `drop` are then constants.
    # of the scores and of dropout, for float64 only
    scale: float = 0.0
    cap: float = 0.0
    drop: float = 0.0
    precision: str = "ieee"  # of float32 products: `'ieee'` or `'tf32'`
    upcast: bool = False  # multiply in float32, since Triton's interpreter is wrong about products of bfloat16

    @property
    def irregular(self) -> bool:
        """Whether positions alone don't say which keys a query sees."""
        return self.mask is not None or self.segments


class Extras(NamedTuple):
    """Arrays besides q, k, v and the results; ``None`` for those that there aren't."""

    bias: Any = None
    mask: Any = None
    slopes: Any = None
    sinks: Any = None
    q_segments: Any = None
    kv_segments: Any = None
    q_starts: Any = None
    kv_starts: Any = None
    cached: Any = None
    table: Any = None
    seed: Any = None


NO_EXTRAS = Extras()
"""None at all."""


class Strides(NamedTuple):
    """Strides in elements: of the batch axes, then of positions, then of features or, of scores, of keys.

    ``pages`` has those of a page of k, a page of v, of the block table's rows, and of its columns. ``parts`` has those
    from one part of the result to the next, and of the logarithms. ``end`` is there for Triton 3.6: of a tuple that got
    into a branch or a loop, it loses each 1 in those inside it that come after its own last constant, which this is.
    """

    q: Any = None
    k: Any = None
    v: Any = None
    out: Any = None
    lse: Any = None
    d_out: Any = None
    dq: Any = None
    dk: Any = None
    dv: Any = None
    bias: Any = None
    d_bias: Any = None
    mask: Any = None
    slopes: Any = None
    sinks: Any = None
    q_segments: Any = None
    kv_segments: Any = None
    pages: Any = None
    parts: Any = None
    end: Any = None


class Lengths(NamedTuple):
    """Queries and keys (of the longest sequence), batch elements that programs are counted over, how many of these
    are worked on together, and positions of queries and of keys that there are (of all sequences)."""

    q: Any
    kv: Any
    heads: Any
    together: Any
    q_rows: Any
    kv_rows: Any


class Numbers(NamedTuple):
    """Scale, softcap, keys seen to the left and to the right, probability of dropping."""

    scale: float
    cap: float
    left: int
    right: int
    drop: float


class Call(NamedTuple):
    """What every device function is told of a call; made in a kernel, as Triton 3.6 has no function return a None."""

    extras: Any
    strides: Any
    sizes: Any
    lengths: Any
    numbers: Any


class Head(NamedTuple):
    """What a program knows of the batch element that it works on; made on the device."""

    number: Any  # position in the batch, row-major; in a packed tile, one for each row
    # first query and number of queries
    q_start: Any
    q_len: Any
    # the same of keys
    kv_start: Any
    kv_len: Any
    shift: Any  # the key that query 0 faces
    # pointers to what belongs to the element
    bias: Any
    mask: Any
    slope: Any  # of the linear bias
    q_segments: Any
    kv_segments: Any
    table: Any


class Tile(NamedTuple):
    """What a program of the general kernels knows of the tile that it owns; made on the device."""

    own: Any  # its features, and in a tile of queries what else is loaded of these
    positions: Any
    segments: Any
    seed: Any
    head: Any
    others: Any  # arrays that it goes through block by block
