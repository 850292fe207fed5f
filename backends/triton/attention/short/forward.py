"""Short attention: a program has all queries and keys of a batch element at once, or of several one after the other.

Of those, a bias that they share is loaded once. In contrast to Hopper's kernels, several programs share a
multiprocessor, so that one computes while another waits for its arrays.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Lengths, Numbers
from einops_fast.backends.triton.attention.general.loading import (
    added,
    head_of,
    load_keys,
    load_queries,
    no_sums,
    of_element,
    products,
    query_rows,
    shared_size,
    store_queries,
)
from einops_fast.backends.triton.attention.general.score import (
    LN2,
    LOG2E,
    allowed,
    bias_at,
    dropped,
    factor_of,
    key_segments,
    query_segments,
    scored,
    seed_of,
)
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["bias_of", "elements_of", "loaded", "sharer", "short_forward_kernel"]


@triton.jit
def elements_of(sharing, summed, parts, axes: tl.constexpr):
    """Return the first batch element of a program, and which of those that share its bias it goes through.

    ``sharing`` has sizes of the batch axes that the bias has and of those that it lacks, 1 for the others, and
    row-major strides of the batch axes. So many elements, ``summed``, share a bias, and are divided into ``parts``.
    """
    first = counted(tl.program_id(0), sharing[0], sharing[2], 0, axes)
    length = tl.cdiv(summed, parts)
    begin = tl.program_id(1) * length
    return first, begin, min(begin + length, summed)


@triton.jit
def sharer(first, step, sharing, axes: tl.constexpr):
    """Return number ``step`` of the batch elements that share a bias with the first one."""
    return first + counted(step, sharing[1], sharing[2], 0, axes)


@triton.jit
def loaded(number, element, q, k, v, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Load what is known of a batch element, its positions, and all of its queries, keys and values.

    ``element`` counts those that have keys of their own.
    """
    strides = call.strides
    head = head_of(number, number, call, f)
    i = tl.arange(0, block_m)[:, None]
    j = tl.arange(0, block_n)[None, :]
    queries = load_queries(q, strides.q, head, 0, i, None, call, f, "head")
    keys = load_keys(of_element(k, strides.k, element, call, f), strides.k, 0, 0, head, call, f, "head", block_n)
    values = load_keys(of_element(v, strides.v, element, call, f), strides.v, 0, 0, head, call, f, "v_head", block_n)
    return head, i, j, queries, keys, values


@triton.jit
def bias_of(number, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Load the bias of a batch element, whole."""
    head = head_of(number, number, call, f)
    return bias_at(tl.arange(0, block_m)[:, None], tl.arange(0, block_n)[None, :], head, call, f)


@triton.jit
def _element(number, bias, arrays, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Write the result of one batch element, and the logarithms of its rows' sums."""
    acc: tl.constexpr = kept_type(f)
    q, k, v, out, lse = arrays
    strides = call.strides
    head, i, j, queries, keys, values = loaded(
        number, number // shared_size(call.sizes, f), q, k, v, call, f, block_m, block_n
    )
    scores = products(queries, keys, f, "head")
    segments = query_segments(i, head, call, f), key_segments(j, head, call, f)
    score, _ = scored(scores, i, j, head, call, f, bias)
    score = tl.where(allowed(i, j, segments, head, call, f), score, float("-inf"))
    score = score * factor_of(call, f)
    most = tl.max(score, 1)[:, None]
    if field(f, "sinks"):
        place = counted(number, call.sizes, strides.sinks, 0, field(f, "axes"))
        sink = tl.load(call.extras.sinks + place).to(acc) * LOG2E
        most = tl.maximum(most, sink)
    # A row that sees nothing, or weights of -inf only.
    reference = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(score - reference)
    total = tl.sum(weights, 1)[:, None]
    if field(f, "sinks"):
        total += tl.exp2(sink - reference)
    if field(f, "dropout"):
        weights = dropped(weights, i, j, seed_of(call, f), head, call, f)
    divisor = tl.where(total == 0, 1.0, total)
    found = added(no_sums(block_m, f, "v_head"), weights.to(values[0].dtype), values, f, "v_head")
    found = found[0] / divisor, found[1] / divisor
    store_queries(out, strides.out, head, 0, i, found, None, call, f, "v_head")
    logs = tl.where(total == 0, float("-inf"), (most + tl.log2(divisor)) * LN2)
    tl.store(query_rows(lse, strides.lse, head, 0, i, call, f), logs, mask=i < head.q_len)


@triton.jit(do_not_specialize=[*RUNTIME, "summed", "parts"])
def short_forward_kernel(
    q, k, v, out, lse, extras, strides, sizes, sharing, summed, parts,
    q_len, kv_len, heads, together, q_rows, kv_rows, scale, cap, left, right, drop,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write the result and the logarithms of rows' sums.

    Args:
        sharing, summed, parts: see :func:`elements_of`; ``sharing`` is ``None`` where a program has one element.
    """
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    call = Call(extras, strides, sizes, lengths, Numbers(scale, cap, left, right, drop))
    axes: tl.constexpr = field(f, "axes")
    arrays = (q, k, v, out, lse)
    if sharing is None:
        _element(tl.program_id(0), None, arrays, call, f, block_m, block_n)
    else:
        first, begin, end = elements_of(sharing, summed, parts, axes)
        bias = bias_of(first, call, f, block_m, block_n)
        # What doesn't depend on the element stays where it is: outside the loop, it would take registers.
        for step in tl.range(begin, end, disable_licm=True):
            _element(sharer(first, step, sharing, axes), bias, arrays, call, f, block_m, block_n)
