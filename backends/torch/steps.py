"""What each step of a plan becomes on torch tensors: views, products by ``mm`` and ``bmm``, and sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import repeat
from math import prod
from typing import Any

import torch

from einops_fast.backends.base import Backend, Run, as_is
from einops_fast.backends.blocked_copies import LEAST, block_extents, copy_in_blocks
from einops_fast.backends.torch.einsum.pieces import recorded_in_pieces
from einops_fast.backends.torch.types import HALVES, may_read_values, unrecorded
from einops_fast.planning.steps import Arrange, Cast, Diagonal, Gemm, Multiply, Select, Sum, View
from einops_fast.planning.target import Operand

_COLUMNS = 64
"""Columns of a matrix that lies transposed, up to which a copy reads all of them side by side."""

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers in place of elements, by bytes: NumPy has no bfloat16, and nothing is computed."""

_SHARED = 1 << 21
"""Elements from which on threads are worth starting; of fewer, all threads copy as torch does."""

_MOST_THREADS = 8
"""More don't copy faster, since all of them take the interpreter's lock between two blocks."""


class TorchSteps(Backend):
    """The steps that are the same whoever has planned them."""

    def contiguous(self, array: Any) -> Any:
        """The array in C order."""
        if array.dim() == 2 and array.shape[1] <= _COLUMNS and array.stride(0) == 1 and array.shape[1] > 1:
            # Torch transposes a whole matrix with one thread, in square blocks; a stack of them it copies as it lies.
            return array.unsqueeze(0).contiguous().squeeze(0)
        # Smaller ones aren't worth a look.
        return _in_c_order(array) if array.numel() >= LEAST else array.contiguous()

    def arrange(self, how: Arrange) -> Run:
        permuted, contiguous = permuting(how.perm), self.contiguous
        if how.shape is None:
            return (lambda a: contiguous(permuted(a))) if how.moves else permuted
        shape = _one_by_one(how.shape)
        if how.moves:
            return lambda a: contiguous(permuted(a)).view(*shape)
        return (lambda a: a.reshape(*shape)) if permuted is as_is else lambda a: permuted(a).reshape(*shape)

    def cast(self, step: Cast) -> Run:
        dtype = getattr(torch, step.dtype)
        if step.in_order:
            return lambda a: a.to(dtype, memory_format=torch.contiguous_format)
        return lambda a: a.to(dtype)

    def sums_of(self, part: Any, shape: tuple[int, ...]) -> Any:
        return part.new_zeros(shape)

    def in_pieces(self, run: Any, operands: Sequence[Any]) -> Run:
        wanted = torch.is_grad_enabled() and any(each.requires_grad for each in operands)
        return recorded_in_pieces(run) if wanted else run

    def diagonal(self, step: Diagonal) -> Run:
        # Each diagonal() takes two axes away and puts theirs last; keep account of where the rest went.
        axes = list(range(sum(map(len, step.groups))))
        pairs = []
        for end, *others in step.groups:
            for other in others:
                pairs.append((axes.index(end), axes.index(other)))
                axes = [axis for axis in axes if axis not in (end, other)] + [end]
        perm = tuple([axes.index(end) for end, *_ in step.groups])
        permuted = permuting(None if perm == tuple(range(len(perm))) else perm)

        def run(a: Any) -> Any:
            for first, second in pairs:
                a = a.diagonal(0, first, second)
            return permuted(a)

        return run

    def select(self, step: Select) -> Run:
        axes = sorted(step.axes, reverse=True)

        def run(a: Any) -> Any:
            for axis in axes:
                a = a.select(axis, 0)
            return a

        return run

    def sum(self, step: Sum) -> Run:
        axes = step.axes
        return lambda a: a.sum(axes, dtype=a.dtype)

    def view(self, step: View) -> Run:
        perm = _one_by_one(tuple(range(len(step.shape))) if step.how.perm is None else step.how.perm)
        return (lambda a: self.contiguous(a.permute(*perm))) if step.how.moves else (lambda a: a.permute(*perm))

    def multiply(self, step: Multiply) -> Run:
        left, right = self.arrange(step.left), self.arrange(step.right)
        if not step.summed:
            return lambda a, b: left(a) * right(b)
        if step.block:
            # Imported here because only such steps need it.
            from einops_fast.backends.torch.einsum.blocks import sum_in_blocks

            return lambda a, b: sum_in_blocks(left(a), right(b), step.summed, step.block)
        axes = tuple(range(-step.summed, 0))

        def run(a: Any, b: Any) -> Any:
            if a.dtype in HALVES:
                # As in a GEMM, products and sums are kept in float32 until the end.
                return (left(a).float() * right(b)).sum(axes).to(a.dtype)
            # torch would sum integers in int64.
            return (left(a) * right(b)).sum(axes, dtype=a.dtype)

        return run

    def gemm(self, step: Gemm) -> Run:
        if not step.batch and step.m == step.n == 1 and step.buffer is None:
            return self._dot(step)
        left = self._matrices(step.left, step.transpose_left)
        right = self._matrices(step.right, step.transpose_right)
        product: Run = torch.bmm if step.batch else torch.mm
        if len(step.batch) > 1 and step.buffer is None:
            product = torch.matmul
        if (step.m == 1) != (step.n == 1) and step.buffer is None:
            product = _times_column(product, step.m == 1)
        if step.batch:
            left = with_batch(left, step.left, step.batch[-1])
            right = with_batch(right, step.right, step.batch[-1])
        shape = step.shape
        if step.buffer is None:
            if shape == (*step.batch, step.m, step.n):
                return product if left is right is as_is else lambda a, b: product(left(a), right(b))
            sizes = _one_by_one(shape)
            return lambda a, b: product(left(a), right(b)).view(*sizes)
        view = self.arrange(step.buffer)
        loops = len(step.batch) - 1

        def into(a: Any, b: Any) -> Any:
            result = a.new_empty(shape)
            product_into(product, left(a), right(b), view(result), loops)
            return result

        return into

    def _dot(self, step: Gemm) -> Run:
        vector = (step.k,)
        left = self.arrange(Arrange(step.left.perm, vector, step.left.moves))
        right = self.arrange(Arrange(step.right.perm, vector, step.right.moves))
        shape = step.shape
        if not shape:
            return lambda a, b: torch.dot(left(a), right(b))
        return lambda a, b: torch.dot(left(a), right(b)).view(shape)

    def _matrices(self, how: Arrange, transpose: bool) -> Run:
        arranged = self.arrange(how)
        return (lambda a: arranged(a).mT) if transpose else arranged


def _in_c_order(array: Any) -> Any:
    """``array.contiguous()``, through NumPy in blocks where another axis becomes the fastest: see `blocked_copies`.

    What autograd or a transform has to see is left to torch, as are other devices.
    """
    threads = min(torch.get_num_threads(), _MOST_THREADS)
    bits = _BITS.get(array.element_size())
    if (
        (threads > 1 and array.numel() < _SHARED)
        or bits is None
        or not may_read_values(array)
        or array.layout is not torch.strided
        or (array.requires_grad and torch.is_grad_enabled())
        or array.is_complex()
        or array.is_neg()
        or (array.dim() == 2 and array.stride() == (1, array.shape[0]))  # a matrix, which torch copies in blocks, too
    ):
        return array.contiguous()
    extents = block_extents(tuple(array.shape), array.stride(), array.element_size())
    if extents is None:
        return array.contiguous()
    result = array.new_empty(array.shape)
    target, source = (each.detach().view(bits).numpy() for each in (result, array))
    copy_in_blocks(target, source, extents, threads)
    return result


_LONG = 48
"""Products of halves, from which on torch without oneDNN is faster by a dot for each row than by columns at a time."""

_FEW = 8
"""Rows that have a dot each even where they have gaps."""


def _times_column(product: Run, row: bool) -> Run:
    """A matrix times a column, or with ``row`` a row times a matrix, by the faster of torch's loops for halves.

    Without oneDNN these are up to 25 times as long for rows, and the strides of an axis of one element decide which of
    them torch takes: a dot for each row, or columns times numbers.
    """

    def run(a: Any, b: Any) -> Any:
        if not a.is_cpu or a.dtype not in without_onednn():
            return product(a, b)
        matrix, vector = (b.mT, a.squeeze(-2)) if row else (a, b.squeeze(-1))
        rows, length = matrix.shape[-2:]
        dots = rows < _FEW or (length >= _LONG and matrix.stride(-1) == 1)
        result = product(matrix, vector.unsqueeze(-2).mT if dots else vector.unsqueeze(-1))
        return result.squeeze(-1).unsqueeze(-2) if row else result

    return run


def stacked_product(step: Gemm, operands: Sequence[Operand]) -> Run:
    """Return the product of the operands of a plan, with several batch axes that merge, as one call and three views.

    ``torch.matmul`` takes twice as long on the host to find out that they merge.
    """
    count, views = prod(step.batch), []
    sides = (step.left, step.transpose_left), (step.right, step.transpose_right)
    for (how, turned), operand in zip(sides, operands, strict=True):
        axes = [(operand.shape[at], operand.strides[at]) for at in how.perm or range(len(operand.shape))]
        *batch, first, second = axes
        matrix = (second, first) if turned else (first, second)
        by = next((stride for size, stride in reversed(batch) if size > 1), 0)
        views.append(((count, matrix[0][0], matrix[1][0]), (by, matrix[0][1], matrix[1][1])))
    (left, left_by), (right, right_by) = views
    bmm, sizes = torch.bmm, step.shape
    return lambda a, b: bmm(a.as_strided(left, left_by), b.as_strided(right, right_by)).view(*sizes)


@cache
def without_onednn() -> tuple[torch.dtype, ...]:
    """Which halves this CPU multiplies without oneDNN."""
    known = torch.ops.mkldnn
    asked = zip(HALVES, ("_is_mkldnn_fp16_supported", "_is_mkldnn_bf16_supported"), strict=True)
    with unrecorded():
        return tuple([dtype for dtype, name in asked if not getattr(known, name, lambda: True)()])


def product_into(product: Run, a: Any, b: Any, result: Any, loops: int) -> None:
    """Loop over the first axes of a stack of matrices; an operand that lacks one has size 1 there."""
    if loops <= 0:
        product(a, b, out=result)
        return
    count = result.shape[0]
    lefts = a.unbind(0) if a.shape[0] == count else repeat(a[0], count)
    rights = b.unbind(0) if b.shape[0] == count else repeat(b[0], count)
    for left, right, part in zip(lefts, rights, result.unbind(0), strict=True):
        product_into(product, left, right, part, loops - 1)


def with_batch(arranged: Run, how: Arrange, batch: int) -> Run:
    """Return what expands an operand that lacks the batch axis, which bmm wants on both; that copies nothing."""
    if how.shape is not None and len(how.shape) >= 3 and how.shape[-3] == 1 != batch:
        return lambda a: arranged(a).expand(*[-1] * (len(how.shape or ()) - 3), batch, -1, -1)
    return arranged


def permuting(perm: tuple[int, ...] | None) -> Run:
    """Return what brings the axes into another order."""
    if perm is None:
        return as_is
    *others, rows, columns = range(max(len(perm), 2))
    if perm == (*others, columns, rows):
        return lambda a: a.mT  # the same in less time
    axes = _one_by_one(perm)
    return lambda a: a.permute(*axes)


def _one_by_one(numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """What to give to a tensor's ``permute``, ``view`` or ``reshape``: torch takes less time to read no tuple."""
    return numbers or ((),)
