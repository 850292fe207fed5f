"""Logits of a linear layer, some rows at a time: their losses, and all gradients from theirs, which overwrites them.

Their memory is our own, and laid out so that the library's products are fast.
"""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.backends import torch_operator
from einops_fast.backends.torch_row_losses import RowLoss

__all__ = ["chunk_rows", "gradients_like", "in_chunks", "multiply"]

_BYTES = 1 << 28
"""Of the logits of a chunk with gradients; without, half of that."""

_ROWS = 256
"""Chunks are multiples of so many rows, as the tiles of the libraries' products are."""

_LINE = 128
"""Rows of logits begin at multiples of so many bytes."""

_VECTOR = 16
"""What cuBLAS's fast kernels read at once, in bytes."""

_ROUNDINGS = 4
"""Chunks whose parts of a gradient may be added in a dtype of few digits; those of more are in float32."""

_WIDENS = torch.version.cuda is not None and hasattr(torch.ops.aten.addmm, "dtype_out")
"""Whether the products of few digits can be added up in float32, on a GPU."""


def chunk_rows(x: Any, matrix: Any, *, gradients: bool) -> int:
    """How many rows to take at a time.

    The gradient of the matrix is read and written again for each chunk: the larger it is, the larger are these. Where
    there are a few too many to add it up in few digits, float32 would take as much memory again: rather that goes to
    larger chunks.
    """
    rows, (classes, features), size = int(x.shape[0]), map(int, matrix.shape), int(matrix.itemsize)
    if not torch_operator.on_gpu(x):
        size = max(size, 4)  # torch's functions have them in float32, too
    gradient, row = classes * features * size, max(classes * size, 1)
    room = _BYTES + gradient // 2 if gradients else _BYTES // 2
    most = max(room // row, 1)
    chunks = max(-(-rows // most), 1)
    if gradients and size < 4 and chunks > _ROUNDINGS and rows * row <= _ROUNDINGS * (room + gradient):
        chunks = _ROUNDINGS
    even = max(-(-rows // chunks), 1)
    return -(-even // _ROWS) * _ROWS if most >= _ROWS else even


def in_chunks(
    x: Any, matrix: Any, bias: Any, target: Any, row_loss: RowLoss, size: int, d_losses: Any, wanted: tuple[bool, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """The loss of each row and, for the given gradients of these, those of ``x``, ``matrix`` and ``bias``.

    What isn't wanted is empty.
    """
    rows, classes = x.shape[0], matrix.shape[0]
    size = min(size, rows)
    parts, width = _aligned(classes, x.itemsize) if torch_operator.on_gpu(x) else ([slice(classes)], classes)
    room = x.new_empty(size, width)
    wide = torch.promote_types(x.dtype, torch.float32)
    dtypes = x.dtype, x.dtype if size * _ROUNDINGS >= rows else wide, wide
    dx, d_matrix, d_bias = gradients_like(x, matrix, bias, wanted, dtypes)
    d_bias.zero_()
    found = []
    for start in range(0, rows, size):
        chunk = slice(start, min(start + size, rows))
        logits = room[: chunk.stop - start, :classes]
        for part in parts:
            multiply(x[chunk], matrix[part].T, logits[:, part], None if bias is None else bias[part])
        found.append(row_loss(logits, target[chunk], None if d_losses is None else d_losses[chunk]))
        if wanted[0]:
            into = dx[chunk]
            for at, part in enumerate(parts):
                multiply(logits[:, part], matrix[part], into, into if at else None)
        for part in parts if wanted[1] else ():
            into = d_matrix[part]
            multiply(logits[:, part].T, x[chunk], into, into if start else None)
        if wanted[2]:
            d_bias += logits.sum(0, dtype=wide)
    del room, logits  # before there is a second matrix
    return torch.cat(found), (dx, d_matrix.to(x.dtype), d_bias.to(x.dtype))


def _aligned(classes: int, size: int) -> tuple[list[slice], int]:
    """The parts of all classes to multiply by, and how wide rows of logits are.

    cuBLAS has fast kernels only for whole vectors of 16 bytes, both at which rows begin and of which they have: what is
    left is a part of its own. It comes first, as sums that the larger part is added to are rounded less.
    """
    vector, line = max(_VECTOR // size, 1), max(_LINE // size, 1)
    body = classes // vector * vector
    parts = [slice(body, classes), slice(body)]
    return [each for each in parts if each.stop > (each.start or 0)], -(-classes // line) * line


def multiply(a: Any, b: Any, out: Any, plus: Any = None) -> None:
    """``a @ b + plus`` into ``out``, which may be ``plus`` itself, and in float32."""
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out) if plus is None else torch.addmm(plus, a, b, out=out)
    elif _WIDENS and a.is_cuda:
        wide = {"out_dtype": out.dtype, "out": out}
        torch.mm(a, b, **wide) if plus is None else torch.addmm(plus, a, b, **wide)
    else:
        out.copy_(a @ b) if plus is None else torch.add(plus, a @ b, out=out)


def gradients_like(
    x: Any, matrix: Any, bias: Any, wanted: tuple[bool, ...], dtypes: tuple[Any, ...] = (None, None, None)
) -> tuple[Any, ...]:
    """Memory for gradients; nothing for those that aren't wanted."""
    given = zip((x, matrix, bias), wanted, dtypes, strict=True)
    return tuple(torch.empty_like(each, dtype=dtype) if really else x.new_empty(0) for each, really, dtype in given)
