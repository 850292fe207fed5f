"""The sum of results that were computed from parts of the keys, always in the same order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["combine_kernel"]


@triton.jit(do_not_specialize=["q_len"])
def combine_kernel(
    parts_out, parts_lse, out, lse, strides, sizes, q_len,
    f: tl.constexpr, parts: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Write one row of the result: that of each part counts by its share in the sum of all weights.

    ``parts_out`` and ``parts_lse`` lie in row-major order, part by part.
    """
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    zero = tl.full((), 0, tl.int64)
    row = tl.program_id(0) + zero
    element = row // q_len
    i = row % q_len
    rows = strides.parts[1] + zero
    part = tl.arange(0, parts)
    logs = tl.load(parts_lse + row + part * rows)
    most = tl.max(logs, 0)
    reference = tl.where(most == float("-inf"), 0.0, most)
    shares = tl.exp(logs - reference)
    total = tl.sum(shares, 0)
    column = tl.arange(0, columns)
    exists = column < field(f, "v_head_dim")
    places = (row + part * rows)[:, None] * field(f, "v_head_dim") + column[None, :]
    found = tl.load(parts_out + places, mask=exists[None, :], other=0)
    divisor = tl.where(total == 0, 1.0, total)
    value = tl.sum(found * (shares / divisor)[:, None], 0).to(acc)
    place = out + counted(element, sizes, strides.out, 0, axes) + i * (zero + strides.out[axes])
    tl.store(place + column * strides.out[axes + 1], value.to(out.dtype.element_ty), mask=exists)
    log = tl.where(total == 0, float("-inf"), reference + tl.log(divisor))
    tl.store(lse + counted(element, sizes, strides.lse, 0, axes) + i * (zero + strides.lse[axes]), log)
