"""All gradients of short attention in one pass, in programs like those of :mod:`forward`.

Nothing is read or computed twice, and no kernel comes before it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import score_gradient, weights_again
from einops_fast.backends.triton.attention.general.bias_gradient import store_sum
from einops_fast.backends.triton.attention.general.loading import load_rows, product, query_rows, store_rows
from einops_fast.backends.triton.attention.general.score import LOG2E, scale_of
from einops_fast.backends.triton.attention.short.forward import bias_of, both_segments, elements_of, loaded, sharer
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["short_gradients_kernel"]


@triton.jit
def _row_logs(lse, strides, sizes, head, i, exists, f: tl.constexpr):
    """Logarithms of rows as powers of two, infinite where no key was seen."""
    log = tl.load(query_rows(lse, strides.lse, sizes, head, 0, i, f, False), mask=exists, other=float("-inf"))
    return tl.where(log == float("-inf"), float("inf"), log * LOG2E)


@triton.jit
def _row_deltas(terms, log, d_lse, delta, strides, sizes, head, i, exists, f: tl.constexpr):
    """Of each row, from the ``terms``, products of its weights and their gradients: all keys are here.

    Elsewhere it is a sum over the rounded result, which where gradients nearly cancel is most of their error.
    """
    total = tl.sum(terms, 1)[:, None]
    if d_lse is not None:
        total -= tl.load(query_rows(d_lse, strides.lse, sizes, head, 0, i, f, False), mask=exists, other=0)
    total = tl.where(log == float("inf"), 0.0, total)
    if delta is not None:
        tl.store(query_rows(delta, strides.lse, sizes, head, 0, i, f, False), total, mask=exists)
    return total


@triton.jit
def _element(
    total,
    number,
    bias,
    arrays,
    rows_arrays,
    gradients,
    extras,
    strides,
    sizes,
    lengths,
    numbers,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Write the gradients of one batch element; ``total`` with that of its scores before the softcap."""
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    q, k, v, d_out = arrays
    dq, dk, dv, d_bias = gradients
    head, i, j, of_queries, of_keys, of_values = loaded(
        number, number, (q, k, v), extras, strides, sizes, lengths, f, block_m, block_n
    )
    queries, more_queries = of_queries
    keys, more_keys = of_keys
    values, more_values = of_values
    exists = i < head.q_len
    d_rows, more_d_rows = load_rows(
        query_rows(d_out, strides.d_out, sizes, head, 0, i, f, False),
        exists, strides.d_out[axes + 1], field(f, "v_head"), field(f, "v_head_dim"), True,
    )  # fmt: skip
    lse, d_lse, delta = rows_arrays
    log = _row_logs(lse, strides, sizes, head, i, exists, f)
    products = product(queries, tl.trans(keys), tl.zeros((block_m, block_n), acc), f)
    d_weights = product(d_rows, tl.trans(values), tl.zeros((block_m, block_n), acc), f)
    if field(f, "in_two"):
        products = product(more_queries, tl.trans(more_keys), products, f)
    if field(f, "v_in_two"):
        d_weights = product(more_d_rows, tl.trans(more_values), d_weights, f)
    q_segments, kv_segments = both_segments(head, i, j, strides, f)
    seed = 0
    if field(f, "dropout"):
        seed = tl.load(extras.seed)
    weights, kept, derivative = weights_again(
        products, log, i, j, q_segments, kv_segments, seed, head, strides, numbers, f, True, bias
    )
    row_delta = _row_deltas(kept * d_weights, log, d_lse, delta, strides, sizes, head, i, exists, f)
    d_score = score_gradient(weights, kept, d_weights, row_delta, f)
    zero = tl.full((), 0, tl.int64)
    if d_bias is not None:
        place = counted(number, sizes, strides.d_bias, 0, axes) + (i + zero) * strides.d_bias[axes]
        place += (j + zero) * strides.d_bias[axes + 1]
        tl.store(d_bias + place, d_score.to(d_bias.dtype.element_ty), mask=exists & (j < head.kv_len))
    factor = scale_of(numbers, f)
    key = tl.arange(0, block_n)[:, None]
    if dv is not None:
        kept = tl.trans(kept.to(d_rows.dtype))
        d_values = product(kept, d_rows, tl.zeros((block_n, d_rows.shape[1]), acc), f)
        more_d_values = 0.0
        if field(f, "v_in_two"):
            more_d_values = product(kept, more_d_rows, tl.zeros((block_n, more_d_rows.shape[1]), acc), f)
        store_rows(
            dv + counted(number, sizes, strides.dv, 0, axes) + (key + zero) * strides.dv[axes], key < head.kv_len,
            strides.dv[axes + 1], d_values, more_d_values, field(f, "v_head"), field(f, "v_head_dim"),
        )  # fmt: skip
    gradient = (d_score * derivative).to(queries.dtype)
    if dk is not None:
        turned = tl.trans(gradient)
        d_keys = product(turned, queries, tl.zeros((block_n, queries.shape[1]), acc), f) * factor
        more_d_keys = 0.0
        if field(f, "in_two"):
            more_d_keys = product(turned, more_queries, tl.zeros((block_n, more_queries.shape[1]), acc), f) * factor
        store_rows(
            dk + counted(number, sizes, strides.dk, 0, axes) + (key + zero) * strides.dk[axes], key < head.kv_len,
            strides.dk[axes + 1], d_keys, more_d_keys, field(f, "head"), field(f, "head_dim"),
        )  # fmt: skip
    if dq is not None:
        d_queries = product(gradient, keys, tl.zeros((block_m, keys.shape[1]), acc), f) * factor
        more_d_queries = 0.0
        if field(f, "in_two"):
            more_d_queries = product(gradient, more_keys, tl.zeros((block_m, more_keys.shape[1]), acc), f) * factor
        store_rows(
            query_rows(dq, strides.dq, sizes, head, 0, i, f, False), exists, strides.dq[axes + 1],
            d_queries, more_d_queries, field(f, "head"), field(f, "head_dim"),
        )  # fmt: skip
    return total + d_score


@triton.jit(do_not_specialize=[*RUNTIME, "summed", "parts"])
def short_gradients_kernel(
    q,
    k,
    v,
    d_out,
    lse,
    d_lse,
    delta,
    dq,
    dk,
    dv,
    d_bias,
    sums,
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
    """Write all gradients that there are arrays for; and ``delta``, if there is one for it.

    Args:
        d_bias: for the gradient of a bias that has all axes.
        sums: for that of one that lacks some, in ``parts``, over the batch elements of each.
        sharing, summed, parts: see :func:`elements_of`; ``sharing`` is ``None`` where a program has one element.
    """
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    arrays = (q, k, v, d_out)
    rows_arrays = (lse, d_lse, delta)
    gradients = (dq, dk, dv, d_bias)
    total = tl.zeros((block_m, block_n), kept_type(f))
    if sharing is None:
        _element(
            total, tl.program_id(0), None, arrays, rows_arrays, gradients, extras, strides, sizes, lengths, numbers,
            f, block_m, block_n,
        )  # fmt: skip
    else:
        first, begin, end = elements_of(sharing, summed, parts, axes)
        bias = bias_of(first, extras, strides, sizes, lengths, f, block_m, block_n)
        # What doesn't depend on the element stays where it is: outside the loop, it would take registers.
        for step in tl.range(begin, end, disable_licm=True):
            total = _element(
                total, sharer(first, step, sharing, axes), bias, arrays, rows_arrays, gradients, extras, strides,
                sizes, lengths, numbers, f, block_m, block_n,
            )  # fmt: skip
        if sums is not None:
            part = tl.program_id(1) * (tl.full((), 0, tl.int64) + strides.parts[0])
            into = sums + counted(first, sizes, strides.d_bias, 0, axes) + part
            store_sum(into, total, 0, 0, strides, lengths, f)
