"""Which tensors steps write to, and the last step of a plan that writes there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch.autocast import any_autocast
from einops_fast.backends.torch.steps import TorchSteps, permuting, product_into, with_batch
from einops_fast.backends.torch.types import PLAIN
from einops_fast.planning.destinations import matrices_of, merged_strides, steps_into
from einops_fast.planning.layout import reach
from einops_fast.planning.steps import Arrange, Cast, Diagonal, Fused, Gemm, Multiply, Select, Step, Sum, View
from einops_fast.planning.target import Operand
from einops_fast.runtime.tuning import current_mode

_HALVES = ("float16", "bfloat16")

_WORTH_A_CALL = 1 << 13
"""Elements whose copy takes as long as one more call."""


class TorchDestinations(TorchSteps):
    """The steps that write to a tensor that there is already."""

    def destination(self, out: Any, operands: Sequence[Any]) -> Any:
        if type(out) not in PLAIN or out.is_neg() or out.is_conj():
            return None
        storage, whole = out.untyped_storage().data_ptr(), None
        for each in operands:
            if each.untyped_storage().data_ptr() == storage:
                whole = whole or _extent(out)
                begin, end = _extent(each)
                if begin < whole[1] and whole[0] < end:
                    return None
        return out

    def writing(self, step: Step, out: Operand, adds: bool) -> Run | None:
        if any_autocast():
            return None
        if isinstance(step, Gemm):
            into = self._gemm_into(step, out, adds)
            if into is not None:
                return into
        if isinstance(step, Fused):
            return self._fused_into(step, out, adds)
        if isinstance(step, Multiply) and not step.summed:
            left, right = self.arrange(step.left), self.arrange(step.right)
            if not adds:
                return lambda a, b, out: torch.mul(left(a), right(b), out=out)
            return lambda a, b, out, beta: (out if beta == 1 else out.mul_(beta)).addcmul_(left(a), right(b))
        if adds:
            made = self.emit(step)

            def add(*arrays: Any) -> None:
                *operands, out, beta = arrays
                torch.add(made(*operands), out, alpha=beta, out=out)

            return add
        if isinstance(step, Sum):
            axes = step.axes
            return lambda a, out: torch.sum(a, axes, dtype=a.dtype, out=out)
        if isinstance(step, Cast):
            return lambda a, out: out.copy_(a)
        if isinstance(step, (Diagonal, Select, View)):
            view = permuting(step.how.perm) if isinstance(step, View) else self.emit(step)
            return lambda a, out: out.copy_(view(a))
        return None

    def _fused_into(self, step: Fused, out: Operand, adds: bool) -> Run | None:
        """Return a kernel's result written to ``out`` in C order, the library's to any, or added to it."""
        from einops_fast.backends.torch.memory import TorchMemory
        from einops_fast.backends.triton.contraction.choice import Choice, left_to_library

        order, mode = tuple(range(len(step.shape))), current_mode()
        calls = steps_into(step.library, len(step.reads), self, out, order, adds)
        if adds or left_to_library(step, mode) or step.strides is not None or not out.contiguous:
            return calls if adds or left_to_library(step, mode) else None
        library = self.library(step)
        copied: Run = lambda *arrays: arrays[-1].copy_(library(*arrays[:-1]))  # noqa: E731
        placed = step.replace(placed=True, any_order=False)
        return Choice(placed, calls or copied, TorchMemory(), self.float32_precision(), mode)

    def _gemm_into(self, step: Gemm, out: Operand, adds: bool) -> Run | None:
        """Return the product written to the matrices that ``out`` is made up of, if torch makes no copy for that."""
        found = matrices_of(step, out)
        if found is None or (step.m == step.n == 1 and not step.batch):
            return None
        batch, strides, m, n = found.batch, found.strides, step.m, step.n
        if out.dtype in _HALVES and (1 in (m, n) or not Operand((*batch, m, n), strides, out.dtype).contiguous):
            return None  # oneDNN copies it
        left = self._matrices(step.left, step.transpose_left)
        right = self._matrices(step.right, step.transpose_right)
        view, loops, product = self.arrange(found.view), max(len(batch) - 1, 0), torch.bmm if batch else torch.mm
        merges = step.buffer is None and merged_strides(list(zip(batch, strides[:-2], strict=True)), (prod(batch),))
        if loops and merges:
            view, loops = self.arrange(Arrange(found.view.perm, (prod(batch), m, n))), 0
            left, right = _in_a_stack(left, batch), _in_a_stack(right, batch)
        elif loops and step.buffer is None and prod((batch[-1], m, n)) < _WORTH_A_CALL:
            return None
        elif found.splits:
            left, right = _split(left, batch), _split(right, batch)
        elif batch:
            left, right = with_batch(left, step.left, batch[-1]), with_batch(right, step.right, batch[-1])
        add = torch.Tensor.baddbmm_ if batch else torch.Tensor.addmm_

        def into(a: Any, b: Any, out: Any, beta: Any = 0) -> None:
            run: Any = product if beta == 0 else lambda a, b, out: add(out, a, b, beta=beta)
            product_into(run, left(a), right(b), view(out), loops)

        return into


def _extent(array: Any) -> tuple[int, int]:
    """Return the first address of a tensor's elements, and that behind the last."""
    begin = array.data_ptr()
    return begin, begin + reach(array.shape, array.stride()) * array.element_size()


def _split(arranged: Run, batch: tuple[int, ...]) -> Run:
    """Make several batch axes of one."""

    def run(a: Any) -> Any:
        matrices = arranged(a)
        return matrices.expand(prod(batch), -1, -1).unflatten(0, batch)

    return run


def _in_a_stack(arranged: Run, batch: tuple[int, ...]) -> Run:
    """Make one batch axis of all."""

    def run(a: Any) -> Any:
        matrices = arranged(a)
        return matrices.expand(*batch, -1, -1).reshape(-1, *matrices.shape[-2:])

    return run
