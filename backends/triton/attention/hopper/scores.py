"""What a softcap, a bias and a mask make of scores in Hopper's kernels, and how bias and mask get there.

One that varies along both positions comes in tiles, copied by the hardware together with a block of keys (or of
queries). Of any other, the few numbers that a block needs are loaded by those who need them.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.attention.hopper.pipes import fetch, flat
from einops_fast.backends.triton.attention.hopper.tiles import BIAS, MASK
from einops_fast.backends.triton.device.indexing import field

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)

LOWEST = gl.constexpr(-(2.0**20))
"""The score of all keys of a row that has only lower ones, as in the general kernels."""

_LOW = gl.constexpr(-(2.0**20) + 64)
"""What low scores are lower than: far enough over the logarithm of a sum of as many lowest ones as there may be."""

_HARDLY = gl.constexpr(2.0**-149)
"""What low scores are multiplied with, to be 0 but where they are infinite: the least number over 0."""


class Added(NamedTuple):
    """Bias and mask: their descriptors or tiles in shared memory, or addresses of those without tiles."""

    bias: Any
    mask: Any


@gluon.jit
def added_tiles(arrays, tiling: gl.constexpr):
    """Shared memory for so many stages of what comes in tiles, addresses of what doesn't; 0 for what there isn't."""
    count: gl.constexpr = tiling.stages * tiling.groups
    bias = 0
    if tiling.bias_tiles:
        bias = gl.allocate_shared_memory(arrays.bias.dtype, [count] + arrays.bias.block_type.shape, arrays.bias.layout)
    elif tiling.bias is not None:
        bias = arrays.bias
    mask = 0
    if tiling.mask_tiles:
        mask = gl.allocate_shared_memory(arrays.mask.dtype, [count] + arrays.mask.block_type.shape, arrays.mask.layout)
    elif tiling.mask is not None:
        mask = arrays.mask
    return Added(bias, mask)


@gluon.jit
def fetch_added(arrays, tiles, stage, full, element, row, column, numbers, tiling: gl.constexpr):
    """Have the tiles of a block copied, one for each warp group: ``tiling.added_bytes`` in all."""
    groups: gl.constexpr = tiling.groups
    down: gl.constexpr = 0 if tiling.turned else 64
    across: gl.constexpr = 64 if tiling.turned else 0
    for group in gl.static_range(groups):
        at = stage * groups + group
        i = row + down * group
        j = column + across * group
        if tiling.bias_tiles:
            fetch(arrays.bias, tiles.bias, at, full, element, i, BIAS, numbers, tiling, j)
        if tiling.mask_tiles:
            fetch(arrays.mask, tiles.mask, at, full, element, i, MASK, numbers, tiling, j)


@gluon.jit
def _tile(buffers, at, layout: gl.constexpr, tiling: gl.constexpr):
    tile = flat(buffers, at)
    if tiling.turned:
        tile = tile.permute((1, 0))
    return tile.load(layout)


@gluon.jit
def _few(pointer, places, along: gl.constexpr, element, i, j, numbers):
    """What a block needs of an array that varies along one position at most."""
    element = element.to(gl.int64)
    c = element % numbers.third
    b = element // numbers.third % numbers.second
    a = element // numbers.third // numbers.second
    pointer += a * places.first + b * places.second + c * places.third
    if along[0]:
        return gl.load(pointer + i.to(gl.int64) * places.position, mask=i < numbers.q_len, other=0)
    elif along[1]:
        return gl.load(pointer + j.to(gl.int64) * places.position, mask=j < numbers.kv_len, other=0)
    else:
        return gl.load(pointer)


@gluon.jit
def bias_of(tiles, at, element, i, j, layout: gl.constexpr, numbers, tiling: gl.constexpr):
    """The bias of a block of scores, as it lies in memory; 0 if there is none.

    It is tile ``at`` of ``tiles``, or these are its address. Of ``i`` and ``j``, one is a column, the other a row.
    """
    bias = 0.0
    if tiling.bias_tiles:
        bias = _tile(tiles, at, layout, tiling)
    elif tiling.bias is not None:
        bias = _few(tiles, numbers.bias, field(tiling, "bias"), element, i, j, numbers)
    return bias


@gluon.jit
def mask_of(tiles, at, element, i, j, layout: gl.constexpr, numbers, tiling: gl.constexpr):
    """The same of the mask."""
    mask = 0
    if tiling.mask_tiles:
        mask = _tile(tiles, at, layout, tiling)
    elif tiling.mask is not None:
        mask = _few(tiles, numbers.mask, field(tiling, "mask"), element, i, j, numbers)
    return mask


@gluon.jit
def added_of(tiles, stage, group: gl.constexpr, element, i, j, layout: gl.constexpr, numbers, tiling: gl.constexpr):
    """Bias and mask of a warp group's block of scores; see :func:`bias_of`."""
    at = stage * tiling.groups + group
    bias = bias_of(tiles.bias, at, element, i, j, layout, numbers, tiling)
    return bias, mask_of(tiles.mask, at, element, i, j, layout, numbers, tiling)


@gluon.jit
def _squashed(scores, numbers):
    """``tanh(scale * scores / cap)``."""
    # tanh(x) = 1 - 2 / (1 + exp(2 x)); both numbers have log2(e) in them, of which this needs one more.
    return 1.0 - 2.0 / (1.0 + gl.exp2(scores * (numbers.scale / numbers.cap * 2.8853900817779268)))


@gluon.jit
def scored(products, bias, numbers, tiling: gl.constexpr):
    """Scores, what to multiply them with to have them as powers of two, and their derivative by scaled products."""
    scores = products
    factor = numbers.scale
    slope = 1.0
    if tiling.softcap:
        scores = _squashed(scores, numbers)
        slope = 1.0 - scores * scores
        factor = numbers.cap
    if tiling.bias is not None:
        # A low bias is infinite as a power of two.
        nothing = gl.zeros_like(scores)
        bias = bias.to(gl.float32)
        if not tiling.bias_tiles:
            bias = nothing + bias
        scores = gl.fma(scores, nothing + factor * LN2, bias)
        factor = LOG2E
    return scores, factor, slope


@gluon.jit
def highest(scores, bias, tiling: gl.constexpr):
    """The highest score of each row, which is :data:`LOWEST` where all are low, but not where all are infinite."""
    most = gl.max(scores, 1)
    if tiling.bias is not None and bias.dtype != gl.float16:  # which has none that are low
        most = gl.where((most < _LOW) & (most > float("-inf")), LOWEST, most)
    return most


@gluon.jit
def powers(scores, factor, logs, bias, tiling: gl.constexpr):
    """``2 ** (factor * scores - logs)``: weights.

    Of rows with low scores only, that is of :data:`LOWEST` in place of each finite one. To look at each score takes too
    long; so these rows have another factor, and are told by ``logs``: their highest score, or the logarithm of the sum.
    """
    if tiling.bias is not None and bias.dtype != gl.float16:
        low = logs < (LOWEST + _LOW) / 2 * LOG2E
        factor = gl.where(low, _HARDLY, factor)
        logs = gl.where(low, logs - LOWEST * LOG2E, logs)
    nothing = gl.zeros_like(scores)
    return gl.exp2(gl.fma(scores, nothing + factor, nothing - logs))


@gluon.jit
def hidden(values, mask, value: gl.constexpr, tiling: gl.constexpr):
    """``values``, but ``value`` where the mask says so."""
    if tiling.mask is not None:
        values = gl.where(mask != 0, values, value)
    return values
