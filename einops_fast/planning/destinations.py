"""Compile a plan so that its last step writes to an array that there is already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from einops_fast.planning.layout import readable_by_gemm
from einops_fast.planning.plan import Plan, in_turn
from einops_fast.planning.steps import Arrange, Gemm, Step, View
from einops_fast.planning.target import Operand

if TYPE_CHECKING:
    from einops_fast.backends.base import Backend


def slowest_first(out: Operand) -> tuple[int, ...]:
    """Return the axes of ``out`` as they lie in memory: a result in C order with its axes so lies as ``out`` does."""
    return tuple(sorted(range(len(out.shape)), key=lambda at: -abs(out.strides[at])))


def compile_into(
    plan: Plan, backend: Backend, out: Operand, order: tuple[int, ...], adds: bool
) -> Callable[..., Any] | None:
    """Return what takes the operands and ``out``, and writes the result there; ``None``: that has to be copied to it.

    ``order`` are the axes of ``out`` in the order of the plan's result. With ``adds`` it takes a number, too, by which
    ``out`` is multiplied before the result is added.
    """
    shape, count = tuple([plan.sizes[label] for label in plan.subscripts.output]), len(plan.operands)
    if tuple([out.shape[at] for at in order]) != shape or out.dtype != plan.numerics.result:
        return None
    if 0 in plan.sizes.values() or not shape or overlaps(out):
        return None
    return steps_into(plan.steps, count, backend, out, order, adds)


def steps_into(
    made: Sequence[Step], count: int, backend: Backend, out: Operand, order: tuple[int, ...], adds: bool
) -> Callable[..., Any] | None:
    """Do the same as :func:`compile_into` for steps that read ``count`` arrays."""
    steps = list(made)
    # The view of a result is made of where that is written to.
    while len(steps) > 1 and isinstance(view := steps[-1], View) and view.reads == (count + len(steps) - 2,):
        steps.pop()
        perm = view.how.perm or tuple(range(len(order)))
        order = tuple([order[perm.index(at)] for at in range(len(perm))])
    strides = tuple([out.strides[at] for at in order])
    write = backend.writing(steps[-1], Operand(steps[-1].shape, strides, out.dtype), adds)
    if write is None:
        return None
    if order != tuple(range(len(order))):
        write = _turning(write, backend.arrange(Arrange(order)), len(steps[-1].reads))
    # Slots of the operands, of out and the number, and of what steps make.
    more = 1 + adds
    program = [(backend.emit(step), _moved(step.reads, count, more)) for step in steps[:-1]]
    program.append((write, (*_moved(steps[-1].reads, count, more), *range(count, count + more))))
    return in_turn(program, count + more)


def _turning(write: Callable[..., Any], turned: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return what gives ``write`` the array at a place with its axes in another order."""

    def run(*arrays: Any) -> None:
        write(*arrays[:place], turned(arrays[place]), *arrays[place + 1 :])

    return run


def _moved(reads: Sequence[int], count: int, more: int) -> tuple[int, ...]:
    return tuple([slot if slot < count else slot + more for slot in reads])


def overlaps(array: Operand) -> bool:
    """Return whether elements of an array may be one and the same."""
    end = 1
    for stride, size in sorted([(abs(stride), size) for size, stride in zip(array.shape, array.strides, strict=True)]):
        if size > 1:
            if stride < end:
                return True
            end += (size - 1) * stride
    return False


class Matrices(NamedTuple):
    """How an array is seen as the matrices of a product."""

    view: Arrange
    batch: tuple[int, ...]
    strides: tuple[int, ...]
    splits: bool  # the batch axis of the step is several ones here, to which the operands have to be brought, too


def matrices_of(step: Gemm, out: Operand) -> Matrices | None:
    """Return how ``out`` is seen as the matrices of a product; ``None`` if BLAS can't write there.

    >>> step = Gemm((0, 1), "abc", (2, 3, 4), Arrange(), Arrange(), (), 6, 4, 5)
    >>> matrices_of(step, Operand((2, 3, 4), (36, 12, 1), "float32"))
    Matrices(view=Arrange(perm=None, shape=(6, 4), moves=''), batch=(), strides=(12, 1), splits=False)
    """
    perm = None if step.buffer is None else step.buffer.perm
    axes = [(out.shape[at], out.strides[at]) for at in perm or range(len(out.shape))]
    batches = [step.batch]
    if len(step.batch) == 1:
        count = next((at for at in range(len(axes)) if prod([size for size, _ in axes[:at]]) == step.batch[0]), 0)
        batches.append(tuple([size for size, _ in axes[:count]]))
    for batch in batches:
        shape = (*batch, step.m, step.n)
        strides = merged_strides(axes, shape)
        if strides is not None:
            if not readable_by_gemm(step.m, strides[-2], step.n, strides[-1]):
                return None
            how = Arrange(perm, None if shape == tuple([size for size, _ in axes]) else shape)
            return Matrices(how, batch, strides, batch != step.batch)
    return None


def merged_strides(axes: Sequence[tuple[int, int]], shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of axes, sizes and strides, where neighbours are merged to a shape; ``None`` if they can't be.

    >>> merged_strides([(2, 36), (3, 12), (4, 1)], (6, 4)), merged_strides([(2, 40), (3, 12), (4, 1)], (6, 4))
    ((12, 1), None)
    """
    rest, strides = [axis for axis in axes if axis[0] > 1], list[int]()
    for size in reversed(shape):
        extent, stride = 1, 1
        while extent < size and rest:
            own, step = rest.pop()
            if extent > 1 and step != stride * extent:
                return None
            stride = stride if extent > 1 else step
            extent *= own
        if extent != size:
            return None
        strides.insert(0, stride)
    return None if rest else tuple(strides)
