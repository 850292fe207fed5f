"""Short attention: a program has all queries and keys of a batch element at once, or of several one after the other.

Of those, a bias that they share is loaded once. In contrast to Hopper's kernels, several programs share a
multiprocessor, so that one computes while another waits for its arrays. All gradients are made in one pass: nothing is
read or computed twice, and no kernel comes before it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call
from einops_fast.backends.triton.attention.general.gradients import row_logs, score_gradient, store_sum, weights_again
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
    store_keys,
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
    scale_of,
    scored,
    seed_of,
)
from einops_fast.backends.triton.device.offsets import counted, kept_type


@triton.jit
def _elements_of(sharing, summed, parts, axes: tl.constexpr):
    """Return the first batch element of a program, and which of those that share its bias it goes through.

    ``sharing`` has sizes of the batch axes that the bias has and of those that it lacks, 1 for the others, and
    row-major strides of the batch axes. ``summed`` elements share a bias, in ``parts``.
    """
    first = counted(tl.program_id(0), sharing[0], sharing[2], 0, axes)
    length = tl.cdiv(summed, parts)
    begin = tl.program_id(1) * length
    return first, begin, min(begin + length, summed)


@triton.jit
def _sharer(first, step, sharing, axes: tl.constexpr):
    """Return number ``step`` of the batch elements that share a bias with the first one."""
    return first + counted(step, sharing[1], sharing[2], 0, axes)


@triton.jit
def _loaded(number, element, q, k, v, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
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
def _bias_of(number, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Load the bias of a batch element, whole."""
    head = head_of(number, number, call, f)
    return bias_at(tl.arange(0, block_m)[:, None], tl.arange(0, block_n)[None, :], head, call, f)


@triton.jit
def _result_of_element(number, bias, arrays, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Write the result of one batch element, and the logarithms of its rows' sums."""
    acc: tl.constexpr = kept_type(f)
    q, k, v, out, lse = arrays
    strides = call.strides
    head, i, j, queries, keys, values = _loaded(
        number, number // shared_size(call.sizes, f), q, k, v, call, f, block_m, block_n
    )
    scores = products(queries, keys, f, "head")
    segments = query_segments(i, head, call, f), key_segments(j, head, call, f)
    score, _ = scored(scores, i, j, head, call, f, bias)
    score = tl.where(allowed(i, j, segments, head, call, f), score, float("-inf"))
    score = score * factor_of(call, f)
    most = tl.max(score, 1)[:, None]
    if f.sinks:
        place = counted(number, call.sizes, strides.sinks, 0, f.axes)
        sink = tl.load(call.extras.sinks + place).to(acc) * LOG2E
        most = tl.maximum(most, sink)
    # A row that sees nothing, or weights of -inf only.
    reference = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(score - reference)
    total = tl.sum(weights, 1)[:, None]
    if f.sinks:
        total += tl.exp2(sink - reference)
    if f.dropout:
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
    lengths, numbers, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write the result and the logarithms of rows' sums; ``sharing`` is ``None`` where a program has one element."""
    call = Call(extras, strides, sizes, lengths, numbers)
    arrays = (q, k, v, out, lse)
    if sharing is None:
        _result_of_element(tl.program_id(0), None, arrays, call, f, block_m, block_n)
    else:
        first, begin, end = _elements_of(sharing, summed, parts, f.axes)
        bias = _bias_of(first, call, f, block_m, block_n)
        # What doesn't depend on the element stays where it is: outside the loop, it would take registers.
        for step in tl.range(begin, end, disable_licm=True):
            _result_of_element(_sharer(first, step, sharing, f.axes), bias, arrays, call, f, block_m, block_n)


@triton.jit
def _row_deltas(terms, log, d_lse, delta, head, i, call, f: tl.constexpr):
    """Return ``delta`` of each row, from the ``terms``, products of its weights and their gradients: all keys are here.

    Elsewhere it is a sum over the rounded result, which where gradients nearly cancel is most of their error.
    """
    exists = i < head.q_len
    strides = call.strides.lse
    total = tl.sum(terms, 1)[:, None]
    if d_lse is not None:
        total -= tl.load(query_rows(d_lse, strides, head, 0, i, call, f), mask=exists, other=0)
    total = tl.where(log == float("inf"), 0.0, total)
    if delta is not None:
        tl.store(query_rows(delta, strides, head, 0, i, call, f), total, mask=exists)
    return total


@triton.jit
def _gradient(weights, rows, factor, f: tl.constexpr, kind: tl.constexpr):
    """Multiply a matrix with the features of rows, and both with a factor."""
    found = added(no_sums(weights.shape[0], f, kind), weights, rows, f, kind)
    return found[0] * factor, found[1] * factor


@triton.jit
def _gradients_of_element(
    total, number, bias, arrays, gradients, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr
):
    """Write the gradients of one batch element, and add that of its scores before the softcap to ``total``."""
    q, k, v, d_out, lse, d_lse, delta = arrays
    dq, dk, dv, d_bias = gradients
    strides = call.strides
    head, i, j, queries, keys, values = _loaded(number, number, q, k, v, call, f, block_m, block_n)
    d_rows = load_queries(d_out, strides.d_out, head, 0, i, None, call, f, "v_head")
    log = row_logs(lse, head, 0, i, i < head.q_len, call, f)
    scores = products(queries, keys, f, "head")
    d_weights = products(d_rows, values, f, "v_head")
    segments = query_segments(i, head, call, f), key_segments(j, head, call, f)
    seed = seed_of(call, f)
    weights, kept, derivative = weights_again(scores, log, i, j, segments, seed, head, call, f, True, bias)
    row_delta = _row_deltas(kept * d_weights, log, d_lse, delta, head, i, call, f)
    d_score = score_gradient(weights, kept, d_weights, row_delta, f)
    zero = tl.full((), 0, tl.int64)
    if d_bias is not None:
        place = counted(number, call.sizes, strides.d_bias, 0, f.axes) + (i + zero) * strides.d_bias[f.axes]
        place += (j + zero) * strides.d_bias[f.axes + 1]
        exists = (i < head.q_len) & (j < head.kv_len)
        tl.store(d_bias + place, d_score.to(d_bias.dtype.element_ty), mask=exists)
    factor = scale_of(call, f)
    key = tl.arange(0, block_n)[:, None]
    if dv is not None:
        kept = tl.trans(kept.to(d_rows[0].dtype))
        d_values = added(no_sums(block_n, f, "v_head"), kept, d_rows, f, "v_head")
        dv = dv + counted(number, call.sizes, strides.dv, 0, f.axes)
        store_keys(dv, strides.dv, key, key < head.kv_len, d_values, f, "v_head")
    gradient = (d_score * derivative).to(queries[0].dtype)
    if dk is not None:
        d_keys = _gradient(tl.trans(gradient), queries, factor, f, "head")
        dk = dk + counted(number, call.sizes, strides.dk, 0, f.axes)
        store_keys(dk, strides.dk, key, key < head.kv_len, d_keys, f, "head")
    if dq is not None:
        d_queries = _gradient(gradient, keys, factor, f, "head")
        store_queries(dq, strides.dq, head, 0, i, d_queries, None, call, f, "head")
    return total + d_score


@triton.jit(do_not_specialize=[*RUNTIME, "summed", "parts"])
def short_gradients_kernel(
    q, k, v, d_out, lse, d_lse, delta, dq, dk, dv, d_bias, sums, extras, strides, sizes, sharing, summed, parts,
    lengths, numbers, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write all gradients that there are arrays for; and ``delta``, if there is one for it.

    That of a bias with all axes goes to ``d_bias``, of others to ``sums``, in ``parts``.
    """
    call = Call(extras, strides, sizes, lengths, numbers)
    arrays = (q, k, v, d_out, lse, d_lse, delta)
    gradients = (dq, dk, dv, d_bias)
    total = tl.zeros((block_m, block_n), kept_type(f))
    if sharing is None:
        _gradients_of_element(total, tl.program_id(0), None, arrays, gradients, call, f, block_m, block_n)
    else:
        first, begin, end = _elements_of(sharing, summed, parts, f.axes)
        bias = _bias_of(first, call, f, block_m, block_n)
        # What doesn't depend on the element stays where it is: outside the loop, it would take registers.
        for step in tl.range(begin, end, disable_licm=True):
            number = _sharer(first, step, sharing, f.axes)
            total = _gradients_of_element(total, number, bias, arrays, gradients, call, f, block_m, block_n)
        if sums is not None:
            part = tl.program_id(1) * (tl.full((), 0, tl.int64) + strides.parts[0])
            into = sums + counted(first, sizes, strides.d_bias, 0, f.axes) + part
            store_sum(into, total, 0, 0, call, f)
