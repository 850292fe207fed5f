"""Writing the result for few queries: at once, or put together from what several programs have left."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.attention.decode.work import outer_of, slot_of

_ROWS = gl.constexpr(8)
"""Rows that results are put together for at once."""


class _Rows(NamedTuple):
    """Rows of a tile: which of the heads that share keys and which query each is, and whether there is such a row."""

    head: Any
    query: Any
    exists: Any


@gluon.constexpr_function
def _parts_at_once(tiling):
    """So many results that they fit in the registers four times."""
    return 512 // max(128, tiling.v_head)


@gluon.jit
def _rows(row, numbers, tiling: gl.constexpr):
    head = row // tiling.queries
    query = row % tiling.queries
    return _Rows(head, query, (head < numbers.share) & (query < numbers.q_len))


@gluon.jit
def _offsets(tile, rows, places, numbers, tiling: gl.constexpr):
    """Of rows, in an array that has them."""
    a, b, c = outer_of(tile, numbers, tiling)
    outer = a.to(gl.int64) * places.first + b.to(gl.int64) * places.second + c.to(gl.int64) * places.third
    inner = rows.query.to(gl.int64) * places.position
    if tiling.shared:
        inner += rows.head.to(gl.int64) * places.third
    return outer + inner


@gluon.jit
def _with_sinks(value, most, total, offsets, exists, sinks, tiling: gl.constexpr):
    """Rows divided by the sum of all weights, that of the sinks included; and the logarithm of this sum.

    ``value`` and ``total`` are in units of ``exp2(most)``.
    """
    if tiling.sinks:
        sink = gl.load(sinks + offsets, mask=exists, other=0) * 1.4426950408889634
        new = gl.maximum(most, sink)
        reference = gl.where(new == float("-inf"), 0.0, new)
        fade = gl.exp2(most - reference)
        total = total * fade + gl.exp2(sink - reference)
        value = value * gl.convert_layout(fade, gl.SliceLayout(1, value.type.layout))[:, None]
        most = new
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), most + gl.log2(divisor))
    return value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None], logs


@gluon.jit
def store(value, most, total, tile, start, arrays, numbers, tiling: gl.constexpr):
    """Write rows of the result from row ``start`` of a tile on."""
    count: gl.constexpr = value.shape[0]
    rows = _rows(start + gl.arange(0, count, layout=most.type.layout), numbers, tiling)
    sinks = 0
    if tiling.sinks:
        sinks = _offsets(tile, rows, numbers.sinks, numbers, tiling)
    value, logs = _with_sinks(value, most, total, sinks, rows.exists, arrays.sinks, tiling)
    places = _offsets(tile, rows, numbers.lse, numbers, tiling)
    gl.store(arrays.lse + places, logs * 0.6931471805599453, mask=rows.exists)
    rows = _rows(start + gl.arange(0, count, layout=gl.SliceLayout(1, value.type.layout)), numbers, tiling)
    column = gl.arange(0, tiling.v_head, layout=gl.SliceLayout(0, value.type.layout))
    exists = rows.exists[:, None] & (column < tiling.v_head_dim)[None, :]
    places = _offsets(tile, rows, numbers.out, numbers, tiling)[:, None] + column[None, :]
    gl.store(arrays.out + places, value.to(arrays.out.dtype.element_ty), mask=exists)


@gluon.jit
def keep(value, most, total, slot, arrays, numbers, tiling: gl.constexpr):
    """Leave a program's result for a tile where the last one finds it."""
    row = gl.arange(0, tiling.rows, layout=most.type.layout)
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), most + gl.log2(divisor))
    gl.store(arrays.logs + slot * tiling.rows + row, logs)
    value = value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None]
    row = gl.arange(0, tiling.rows, layout=gl.SliceLayout(1, value.type.layout))
    column = gl.arange(0, tiling.v_head, layout=gl.SliceLayout(0, value.type.layout))
    places = ((slot * tiling.rows + row) * tiling.v_head_dim)[:, None] + column[None, :]
    exists = _rows(row, numbers, tiling).exists[:, None] & (column < tiling.v_head_dim)[None, :]
    gl.store(arrays.parts + places, value, mask=exists)


@gluon.jit
def _kept(at, parts, first, row, column, arrays, numbers, tiling: gl.constexpr, layout: gl.constexpr):
    """Some of the results of programs for a tile, and the logarithms of their sums."""
    part = at + gl.arange(0, _parts_at_once(tiling), layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    exists = (part < parts)[:, None] & _rows(row, numbers, tiling).exists[None, :]
    slots = slot_of(first + part, (part == 0).to(gl.int32)) * tiling.rows
    places = slots[:, None] + row[None, :]
    logs = gl.load(arrays.logs + places, mask=exists, other=float("-inf"))
    exists = exists[:, :, None] & (column < tiling.v_head_dim)
    return gl.load(arrays.parts + (places * tiling.v_head_dim)[:, :, None] + column, mask=exists, other=0.0), logs


@gluon.jit
def put_together(tile, first, parts, arrays, numbers, tiling: gl.constexpr):
    """Write the rows of a tile that programs from ``first`` on have worked on."""
    chunk: gl.constexpr = _parts_at_once(tiling)
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    of_logs: gl.constexpr = gl.SliceLayout(2, layout)
    of_sums: gl.constexpr = gl.SliceLayout(0, layout)
    of_rows: gl.constexpr = gl.SliceLayout(0, of_logs)
    column = gl.arange(0, tiling.v_head, layout=gl.SliceLayout(0, of_sums))[None, :][None, :, :]
    for start in range(0, tiling.rows, _ROWS):
        row = start + gl.arange(0, _ROWS, layout=of_rows)
        most = gl.full([_ROWS], float("-inf"), gl.float32, layout=of_rows)
        total = gl.full([_ROWS], 0.0, gl.float32, layout=of_rows)
        sums = gl.full([_ROWS, tiling.v_head], 0.0, gl.float32, layout=of_sums)
        # Each has a long way: so three are on it while one is added.
        found, logs = _kept(0, parts, first, row, column, arrays, numbers, tiling, layout)
        second, second_logs = _kept(chunk, parts, first, row, column, arrays, numbers, tiling, layout)
        third, third_logs = _kept(2 * chunk, parts, first, row, column, arrays, numbers, tiling, layout)
        for at in range(0, parts, chunk):
            fourth, fourth_logs = _kept(at + 3 * chunk, parts, first, row, column, arrays, numbers, tiling, layout)
            new = gl.maximum(most, gl.max(logs, 0))
            reference = gl.where(new == float("-inf"), 0.0, new)
            shares = gl.exp2(logs - reference[None, :])
            fade = gl.exp2(most - reference)
            total = total * fade + gl.sum(shares, 0)
            sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, of_sums))[:, None]
            sums += gl.sum(found * shares[:, :, None], 0)
            most = new
            found, logs = second, second_logs
            second, second_logs = third, third_logs
            third, third_logs = fourth, fourth_logs
        store(sums, most, total, tile, start, arrays, numbers, tiling)
