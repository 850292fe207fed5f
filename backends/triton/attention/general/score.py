"""Device functions from the product of queries and keys to scores and weights, in the order of the specification.

Positions ``i`` of queries and ``j`` of keys are tiles of rank 2, with size 1 along the other's axis: so the same
functions serve a tile with queries along its first axis, and one with keys along it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import kept_type

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _number(f: tl.constexpr, name: tl.constexpr, otherwise):
    """Of float64, the constant of that name, which keeps its digits only as a tensor; a scalar argument has 24 bits."""
    if f.double:
        number = tl.full((), field(f, name), tl.float64)
    else:
        number = otherwise
    return number


@triton.jit
def scale_of(call, f: tl.constexpr):
    """Return what products of queries and keys are multiplied with."""
    return _number(f, "scale", call.numbers.scale)


@triton.jit
def factor_of(call, f: tl.constexpr):
    """Return what is left to multiply a score with, to have it as a power of two."""
    if f.folded:
        factor = scale_of(call, f) * LOG2E
    else:
        factor = 1.0
    return factor


@triton.jit
def _tanh(x):
    small = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    size = (1.0 - small) / (1.0 + small)
    # Near 0, the difference has lost its digits.
    square = x * x
    rest = 62.0 / 2835 - square * (1382.0 / 155925 - square * (21844.0 / 6081075))
    near = x * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 - square * (17.0 / 315 - square * rest))))
    return tl.where(square < 0.01, near, tl.where(x < 0, -size, size))


@triton.jit
def _score_places(i, j, strides, f: tl.constexpr, along: tl.constexpr):
    """Return offsets in a bias or a mask; an axis along which it doesn't vary stays of size 1."""
    zero = tl.full((), 0, tl.int32)
    if f.wide_scores:
        zero = tl.full((), 0, tl.int64)
    places = tl.full((1, 1), 0, tl.int32) + zero
    if along[0]:
        places = places + (i + zero) * strides[f.axes]
    if along[1]:
        places = places + (j + zero) * strides[f.axes + 1]
    return places


@triton.jit
def _score_exists(i, j, head, along: tl.constexpr):
    exists = tl.full((1, 1), True, tl.int1)
    if along[0]:
        exists = exists & (i < head.q_len)
    if along[1]:
        exists = exists & (j < head.kv_len)
    return exists


@triton.constexpr_function
def _lowest(features):
    """What scores with lower biases become: so that, times log2(e), they are finite, and the logarithm of a row's sum
    tells its weights. Of keys that see nothing else all weigh the same then, as without the floor once a bias has no
    digits for products. Biases of float16 aren't that low."""
    return -(2.0**49) if features.double else -(2.0**20)


@triton.jit
def bias_at(i, j, head, call, f: tl.constexpr):
    """Load the bias of a tile of scores; 0 beyond the last query and the last key."""
    along: tl.constexpr = f.bias
    places = head.bias + _score_places(i, j, call.strides.bias, f, along)
    return tl.load(places, mask=_score_exists(i, j, head, along), other=0)


@triton.jit
def scored(products, i, j, head, call, f: tl.constexpr, bias=None):
    """Return scores as powers of two once times :func:`factor_of`, and their derivative by the scaled product.

    ``bias`` is the tile's, where it has been loaded before.
    """
    derivative = 1.0
    if f.folded:
        score = products
    else:
        score = products * scale_of(call, f)
        if f.softcap:
            cap = _number(f, "cap", call.numbers.cap)
            bent = _tanh(score / cap)
            score = cap * bent
            derivative = 1.0 - bent * bent
        if f.bias is not None:
            if bias is None:
                added = bias_at(i, j, head, call, f)
            else:
                added = bias
            score = score + added.to(kept_type(f))
        if f.alibi:
            score = score - head.slope * tl.abs(i + head.shift - j).to(kept_type(f))
        if f.bias is not None and head.bias.dtype.element_ty != tl.float16:
            lowest: tl.constexpr = _lowest(f)
            score = tl.where((score < lowest) & (score > float("-inf")), lowest, score)
        score = score * LOG2E
    return score, derivative


@triton.jit
def query_segments(i, head, call, f: tl.constexpr):
    """Load the segment of each query; 0 if there are none. Those beyond the last one are compared with nothing."""
    segments = 0
    if f.segments:
        segments = _segments_at(head.q_segments, call.strides.q_segments[f.axes], i, head.q_len)
    return segments


@triton.jit
def key_segments(j, head, call, f: tl.constexpr):
    """Load the same of keys."""
    segments = 0
    if f.segments:
        segments = _segments_at(head.kv_segments, call.strides.kv_segments[f.axes], j, head.kv_len)
    return segments


@triton.jit
def _segments_at(pointer, stride, positions, count):
    return tl.load(pointer + positions * (tl.full((), 0, tl.int64) + stride), mask=positions < count, other=0)


@triton.jit
def allowed(i, j, segments, head, call, f: tl.constexpr):
    """Tell which queries see which keys; ``segments`` are those of both."""
    seen = j < head.kv_len
    if f.right:
        seen = seen & (j <= i + (head.shift + call.numbers.right))
    if f.left:
        seen = seen & (j >= i + (head.shift - call.numbers.left))
    if f.segments:
        seen = seen & (segments[0] == segments[1])
    if f.mask is not None:
        along: tl.constexpr = f.mask
        mask = tl.load(
            head.mask + _score_places(i, j, call.strides.mask, f, along), mask=_score_exists(i, j, head, along), other=0
        )
        if f.double:
            # Triton lays out the factors of a product by the smallest elements among what they are made of, and can't
            # multiply float64 laid out for 8 bits; it doesn't look beyond a sum.
            mask = tl.sum(mask[:, :, None], 2)
        seen = seen & (mask != 0)
    return seen


@triton.jit
def drawn(seed, number, i, j):
    """Draw numbers from 0 to 1 for places in the batch and among the scores: Philox, with the place as counter.

    Seven rounds are enough to pass all tests of randomness (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405).
    """
    nothing = i * 0 + j * 0
    number = (number + tl.full((), 0, tl.int64)).to(tl.int32)
    bits, _, _, _ = tl.philox(seed, nothing + j, nothing + i, nothing + number, nothing, 7)
    return tl.uint_to_uniform_float(bits)


@triton.jit
def seed_of(call, f: tl.constexpr):
    """Load what random numbers begin with; 0 if there are none."""
    seed = 0
    if f.dropout:
        seed = tl.load(call.extras.seed)
    return seed


@triton.jit
def dropped(weights, i, j, seed, head, call, f: tl.constexpr):
    """Set some weights to 0 and make the others up for it; the same ones for the same places."""
    kept = drawn(seed, head.number, i, j) >= call.numbers.drop
    return tl.where(kept, weights / (1.0 - _number(f, "drop", call.numbers.drop)), 0.0)
