"""Logits of a linear layer, some rows at a time: their losses, and all gradients from theirs, which overwrites them.

Their memory is our own, and laid out so that the library's products are fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.backends.torch import operator as torch_operator
from einops_fast.backends.torch.ops.cross_entropy import RowLoss, cross_entropy_by_kernel, write_gradient

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


_LOGITS = 1 << 17
"""Logits of a piece for each thread: they stay in its cache from one function to the next."""

_FEW_ROWS = 16
"""Rows of a piece where rows are long: so many that computing them takes longer than calling the functions."""


def as_rows(x: Any) -> Any:
    """``(..., features)`` as ``(rows, features)``, or as it is, where that would be a copy or isn't known yet."""
    if x.dim() == 2 or (x.dim() > 2 and torch.compiler.is_compiling()):
        return x
    try:
        return x.view(prod(x.shape[:-1]), x.shape[-1])
    except RuntimeError:
        return x


def row_parts(x: Any, size: int) -> Sequence[Any]:
    """Views of the rows of ``(..., features)``, in order, of at most so many each.

    They are cut where rows don't lie evenly; parts that go beyond, of more than two axes, have about half of them all.
    """
    if x.dim() == 2:
        parts: Sequence[Any] = x.split(size)
        return parts
    inner = max(prod(x.shape[1:-1]), 1)
    if inner <= size and len(x) != 1:
        parts = x.split(min(size // inner, -(-len(x) // 2) or 1))
        return parts
    even = -(-inner // -(-inner // size))
    return [part for each in x.unbind() for part in row_parts(as_rows(each), even)]


def chunk_rows(x: Any, matrix: Any, *, gradients: bool) -> int:
    """How many rows to take at a time.

    The gradient of the matrix is read and written again for each chunk: the larger it is, the larger are these. Where
    there are a few too many to add it up in few digits, float32 would take as much memory again: rather that goes to
    larger chunks.
    """
    rows, (classes, features), size = int(prod(x.shape[:-1])), map(int, matrix.shape), int(matrix.itemsize)
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
    x: Any, matrix: Any, bias: Any, target: Any, loss: RowLoss, size: int, d_losses: Any, wanted: tuple[bool, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """The loss of each row and, for the given gradients of these, those of ``x``, ``matrix`` and ``bias``.

    What isn't wanted is empty.
    """
    classes = matrix.shape[0]
    chunks = row_parts(as_rows(x), size)
    counts = [prod(each.shape[:-1]) for each in chunks]
    parts, width = _aligned(classes, x.itemsize) if torch_operator.on_gpu(x) else ([slice(classes)], classes)
    room = x.new_empty(max(counts), width)
    wide = torch.promote_types(x.dtype, torch.float32)
    dtypes = x.dtype, x.dtype if len(chunks) <= _ROUNDINGS else wide, wide
    of_x, of_matrix, of_bias = wanted
    dx, d_matrix, d_bias = gradients_like(x, matrix, bias, wanted, dtypes)
    if of_bias:
        d_bias.zero_()
    # Views are made once, not for each chunk: making them takes the host as long as queueing the products.
    of_parts = [
        (matrix[part], d_matrix[part] if of_matrix else None, None if bias is None else bias[part]) for part in parts
    ]
    nothing = [None] * len(chunks)
    of_chunks = zip(
        chunks,
        target.split(counts),
        nothing if d_losses is None else d_losses.split(counts),
        dx.flatten(0, -2).split(counts) if of_x else nothing,
        strict=True,
    )
    found: list[Any] = []
    logits = room
    for chunk, own_target, back, into_x in of_chunks:
        # A copy only of several pieces, which are shorter than a chunk: to add up a product of each is slower.
        given = chunk.flatten(0, -2)
        if logits is room or len(logits) != len(given):
            logits = room[: len(given), :classes]
            views = [logits[:, part] for part in parts]
        for view, (rows, _, offset) in zip(views, of_parts, strict=True):
            multiply(given, rows.T, view, offset)
        first = not found
        found.append(losses_over_logits(loss, logits, own_target, back))
        if of_x:
            for at, (view, (rows, _, _)) in enumerate(zip(views, of_parts, strict=True)):
                multiply(view, rows, into_x, into_x if at else None)
        if of_matrix:
            for view, (_, into, _) in zip(views, of_parts, strict=True):
                multiply(view.T, given, into, None if first else into)
        if of_bias:
            d_bias += logits.sum(0, dtype=wide)
    del room, logits, views, given  # before there is a second matrix
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
    """Memory for gradients, that of an ``x`` of several axes in C order; nothing for those that aren't wanted."""

    def like(each: Any, dtype: Any) -> Any:
        order = torch.preserve_format if each.dim() <= 2 else torch.contiguous_format
        return torch.empty_like(each, dtype=dtype, memory_format=order)

    given = zip((x, matrix, bias), wanted, dtypes, strict=True)
    return tuple(like(each, dtype) if really else x.new_empty(0) for each, really, dtype in given)


def losses_over_logits(loss: RowLoss, logits: Any, target: Any, d_losses: Any = None) -> Any:
    """Return the loss of each row of ``(rows, classes)``; write gradients, of ``d_losses``, over the logits."""
    if not loss.has_kernels(logits, target):
        return _by_torch(loss, logits, target, d_losses)
    weights, numbers = loss.weights(), loss[1:]
    losses, logs = cross_entropy_by_kernel.compute(logits, target, loss.weight, weights, 1, *numbers, False)
    if d_losses is not None:
        write_gradient(logits, target, loss.weight, weights, logs, d_losses, 1, *numbers)
    return losses


def _by_torch(loss: RowLoss, logits: Any, target: Any, d_losses: Any) -> Any:
    """As the kernels do it, for some rows at a time, whose logarithms become the gradient in the cache."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    weight = None if loss.weight is None else loss.weight.to(dtype)
    target = target.long()
    counts = target != loss.ignore_index
    back: Any = None
    number: Any = None
    if d_losses is not None:
        back = torch.where(counts, d_losses.to(dtype), 0.0)
        number = torch.where(counts, target, 0)[:, None]
    found = []
    size = max(_LOGITS * torch.get_num_threads() // logits.shape[1], _FEW_ROWS)
    for start in range(0, len(logits), size):
        at = slice(start, start + size)
        part = logits[at]
        lse = part.to(dtype).logsumexp(1) if loss.z_loss else None
        logs = torch.log_softmax(part, 1, dtype)
        found.append(_losses(loss, logs, target[at], counts[at], weight, lse))
        if back is not None:
            _to_gradient(loss, logs, number[at], back[at], weight, lse)
            part.copy_(logs)
    return torch.cat(found) if found else logits.new_empty(0, dtype=dtype)


def _losses(loss: RowLoss, logs: Any, target: Any, counts: Any, weight: Any, lse: Any) -> Any:
    losses = F.nll_loss(logs, target, weight, ignore_index=loss.ignore_index, reduction="none")
    if loss.smoothing:
        spread = logs.sum(1) if weight is None else logs @ weight
        each = loss.smoothing / logs.shape[1] * spread
        losses = (1 - loss.smoothing) * losses - torch.where(counts, each, 0.0)
    return losses if lse is None else losses + torch.where(counts, loss.z_loss * lse.square(), 0.0)


def _to_gradient(loss: RowLoss, logs: Any, number: Any, back: Any, weight: Any, lse: Any) -> None:
    """Write the gradient of the logits over their logarithms, of those of losses and the classes that count."""
    share, classes = loss.smoothing, logs.shape[1]
    own = back if weight is None else back * weight[number[:, 0]]
    factor = own
    if share:
        own = (1 - share) * own
        factor = own + back * (share if weight is None else share / classes * weight.sum())
    if lse is not None:
        factor = factor + 2 * loss.z_loss * lse * back
    logs.exp_().mul_(factor[:, None])
    if share:
        each = back.new_ones(1).expand(classes) if weight is None else weight
        logs.addr_(back, each, alpha=-share / classes)
    logs.scatter_add_(1, number, -own[:, None])
