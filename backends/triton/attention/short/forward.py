"""Short attention: a program has all queries and keys of a batch element at once, or of several one after the other.

Of those, a bias that they share is loaded once. In contrast to Hopper's kernels, several programs share a
multiprocessor, so that one computes while another waits for its arrays.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.loading import (
    head_of,
    load_keys,
    load_rows,
    product,
    query_rows,
    shared_size,
    store_rows,
)
from einops_fast.backends.triton.attention.general.score import (
    LN2,
    LOG2E,
    allowed,
    bias_at,
    dropped,
    factor_of,
    scored,
    segments_at,
)
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["bias_of", "both_segments", "elements_of", "loaded", "sharer", "short_forward_kernel"]


@triton.jit
def elements_of(sharing, summed, parts, axes: tl.constexpr):
    """The first batch element of a program, and which of those that share its bias it goes through.

    ``sharing`` has sizes of the batch axes that the bias has and of those that it lacks, 1 for the others, and
    row-major strides of the batch axes. So many elements, ``summed``, share a bias, and are divided into ``parts``.
    """
    first = counted(tl.program_id(0), sharing[0], sharing[2], 0, axes)
    length = tl.cdiv(summed, parts)
    begin = tl.program_id(1) * length
    return first, begin, min(begin + length, summed)


@triton.jit
def sharer(first, step, sharing, axes: tl.constexpr):
    """Number ``step`` of the batch elements that share a bias with the first one."""
    return first + counted(step, sharing[1], sharing[2], 0, axes)


@triton.jit
def loaded(
    number,
    element,
    arrays,
    extras,
    strides,
    sizes,
    lengths,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """What there is to know of a batch element, its positions, and all of its queries, keys and values.

    ``element`` counts those that have keys of their own.
    """
    axes: tl.constexpr = field(f, "axes")
    outer: tl.constexpr = axes - field(f, "shared")
    q, k, v = arrays
    head = head_of(number, number, extras, strides, sizes, lengths, f)
    i = tl.arange(0, block_m)[:, None]
    j = tl.arange(0, block_n)[None, :]
    queries = load_rows(
        query_rows(q, strides.q, sizes, head, 0, i, f, False),
        i < head.q_len, strides.q[axes + 1], field(f, "head"), field(f, "head_dim"), True,
    )  # fmt: skip
    keys = load_keys(
        k + counted(element, sizes, strides.k, 0, outer), strides.k, 0, 0, head, strides.pages[3],
        field(f, "head"), field(f, "head_dim"), f, block_n, True,
    )  # fmt: skip
    values = load_keys(
        v + counted(element, sizes, strides.v, 0, outer), strides.v, 0, 0, head, strides.pages[3],
        field(f, "v_head"), field(f, "v_head_dim"), f, block_n, True,
    )  # fmt: skip
    return head, i, j, queries, keys, values


@triton.jit
def both_segments(head, i, j, strides, f: tl.constexpr):
    """Of queries and of keys; 0 if there are none."""
    axes: tl.constexpr = field(f, "axes")
    of_queries = 0
    of_keys = 0
    if field(f, "segments"):
        of_queries = segments_at(head.q_segments, strides.q_segments[axes], i, head.q_len)
        of_keys = segments_at(head.kv_segments, strides.kv_segments[axes], j, head.kv_len)
    return of_queries, of_keys


@triton.jit
def bias_of(number, extras, strides, sizes, lengths, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """The bias of a batch element, whole."""
    head = head_of(number, number, extras, strides, sizes, lengths, f)
    return bias_at(tl.arange(0, block_m)[:, None], tl.arange(0, block_n)[None, :], head, strides, f)


@triton.jit
def _element(
    number,
    bias,
    arrays,
    extras,
    strides,
    sizes,
    lengths,
    numbers,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Write the result of one batch element, and the logarithms of its rows' sums."""
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    q, k, v, out, lse = arrays
    head, i, j, of_queries, of_keys, of_values = loaded(
        number, number // shared_size(sizes, f), (q, k, v), extras, strides, sizes, lengths, f, block_m, block_n
    )
    queries, more_queries = of_queries
    keys, more_keys = of_keys
    values, more_values = of_values
    exists = i < head.q_len
    products = product(queries, tl.trans(keys), tl.zeros((block_m, block_n), acc), f)
    if field(f, "in_two"):
        products = product(more_queries, tl.trans(more_keys), products, f)
    q_segments, kv_segments = both_segments(head, i, j, strides, f)
    score, _ = scored(products, i, j, head, strides, numbers, f, bias)
    score = tl.where(allowed(i, j, q_segments, kv_segments, head, strides, numbers, f), score, float("-inf"))
    score = score * factor_of(numbers, f)
    most = tl.max(score, 1)[:, None]
    if field(f, "sinks"):
        sink = tl.load(extras.sinks + counted(number, sizes, strides.sinks, 0, axes)).to(acc) * LOG2E
        most = tl.maximum(most, sink)
    # A row that sees nothing, or weights of -inf only.
    reference = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(score - reference)
    total = tl.sum(weights, 1)[:, None]
    if field(f, "sinks"):
        total += tl.exp2(sink - reference)
    if field(f, "dropout"):
        weights = dropped(weights, i, j, tl.load(extras.seed), head, numbers, f)
    divisor = tl.where(total == 0, 1.0, total)
    weights = weights.to(values.dtype)
    found = product(weights, values, tl.zeros((block_m, values.shape[1]), acc), f) / divisor
    more_found = 0.0
    if field(f, "v_in_two"):
        more_found = product(weights, more_values, tl.zeros((block_m, more_values.shape[1]), acc), f) / divisor
    store_rows(
        query_rows(out, strides.out, sizes, head, 0, i, f, False), exists, strides.out[axes + 1],
        found, more_found, field(f, "v_head"), field(f, "v_head_dim"),
    )  # fmt: skip
    logs = tl.where(total == 0, float("-inf"), (most + tl.log2(divisor)) * LN2)
    tl.store(query_rows(lse, strides.lse, sizes, head, 0, i, f, False), logs, mask=exists)


@triton.jit(do_not_specialize=[*RUNTIME, "summed", "parts"])
def short_forward_kernel(
    q,
    k,
    v,
    out,
    lse,
    extras,
    strides,
    sizes,
    sharing,
    summed,
    parts,
    q_len,
    kv_len,
    heads,
    together,
    q_rows,
    kv_rows,
    scale,
    cap,
    left,
    right,
    drop,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Write the result and the logarithms of rows' sums.

    Args:
        sharing, summed, parts: see :func:`elements_of`; ``sharing`` is ``None`` where a program has one element.
    """
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    arrays = (q, k, v, out, lse)
    if sharing is None:
        number = tl.program_id(0)
        _element(number, None, arrays, extras, strides, sizes, lengths, numbers, f, block_m, block_n)
    else:
        first, begin, end = elements_of(sharing, summed, parts, axes)
        bias = bias_of(first, extras, strides, sizes, lengths, f, block_m, block_n)
        # What doesn't depend on the element stays where it is: outside the loop, it would take registers.
        for step in tl.range(begin, end, disable_licm=True):
            _element(
                sharer(first, step, sharing, axes), bias, arrays, extras, strides, sizes, lengths, numbers,
                f, block_m, block_n,
            )  # fmt: skip
