"""Which ways to run a fused step are worth trying: kernels of our own with some tilings, reading operands or copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.contraction.boxes.tilings import box_tilings, loose
from einops_fast.backends.triton.contraction.chain import tilings as chain_tilings
from einops_fast.backends.triton.contraction.copies import Copy, with_copies
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.contraction.library import Candidate
from einops_fast.backends.triton.contraction.loops import tilings as reduction_tilings
from einops_fast.backends.triton.contraction.loops.tilings import Reduction
from einops_fast.backends.triton.contraction.pointers import tilings as contraction_tilings
from einops_fast.backends.triton.contraction.pointers.tilings import Contraction
from einops_fast.backends.triton.contraction.problems import as_reduction, layouts, problem, with_more_rows
from einops_fast.backends.triton.contraction.threads.tilings import fma_tilings
from einops_fast.backends.triton.contraction.ways import (
    ANY_SIZE,
    ORDER,
    BoxCandidate,
    CopyCandidate,
    KernelCandidate,
    Order,
)
from einops_fast.backends.triton.launching.launch import copies_boxes, interpreted
from einops_fast.backends.triton.launching.measuring import works
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, is_integer
from einops_fast.planning.steps import Fused

__all__ = ["kernel_candidate", "kernel_candidates"]

_BOXES_WORTH_TRYING = 4
"""Tilings that are tried of the kernel that has boxes copied by the hardware."""

_COPIES_WORTH_TRYING = 2
"""Tilings of each kernel that are tried on copied operands."""

_THIN = 8
"""Products for each element of operands and result up to which products of matrices are tried as loops, too."""


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


class _Family(NamedTuple):
    """Ways of one kind, which are looked for when they are asked for.

    Attributes:
        begins: how their names do.
        order: which of its orders the result has; ``None`` if that differs.
        members: finds them.
        named: finds those of a name, and maybe others.
    """

    begins: str
    order: int | None
    members: Callable[[], Sequence[Candidate]]
    named: Callable[[str], Iterable[Candidate]]


def kernel_candidates(step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> list[Candidate]:
    """Kernels for a step, the one predicted to be fastest first.

    Args:
        step: the step.
        dtype: of its operands and its result.
        on: ceilings of the device.
        precision: of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
    """
    return _all(_families(step, dtype, on, precision))


def kernel_candidate(name: str, step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> Candidate | None:
    """The one of this name, if there is such a one; in less time than it takes to find all."""
    if name.startswith(ANY_SIZE):
        way = generic_kernel(step, dtype, on, precision)
        return way if way is not None and way.name == name else None
    return _named(name, _families(step, dtype, on, precision))


def _all(families: Iterable[_Family]) -> list[Candidate]:
    return sorted((way for family in families for way in family.members()), key=lambda way: way.seconds)


def _named(name: str, families: Iterable[_Family]) -> Candidate | None:
    order = name.partition(ORDER)[2]
    for family in families:
        if name.startswith(family.begins) and (family.order is None or order == str(family.order or "")):
            for way in family.named(name):
                if way.name == name:
                    return way
    return None


def _families(step: Fused, dtype: str, on: Ceilings, precision: str) -> Iterator[_Family]:
    direct = partial(_direct, step, layouts(step), dtype, on, precision)
    yield from direct()
    yield from _as_loops(step, dtype, on)
    if not is_integer(dtype):
        for copies, then in with_copies(step, ITEM_SIZES[dtype], _on_tensor_cores(dtype, precision)):
            yield _on_copies(copies, then, lambda: _working(_all(direct())), dtype, on, precision)


def _on_tensor_cores(dtype: str, precision: str) -> bool:
    return ITEM_SIZES[dtype] == 2 or (dtype == "float32" and precision != "ieee")


def _on_copies(
    copies: dict[int, Copy], then: Fused, other: Callable[[], Candidate], dtype: str, on: Ceilings, precision: str
) -> _Family:
    """Kernels that read copies; each copy is made in the way that is predicted to be the fastest."""
    begins = CopyCandidate.described(copies)

    def first() -> dict[int, Candidate]:
        return {at: _all(_direct(copy.step, [copy.strides], dtype, on, precision))[0] for at, copy in copies.items()}

    def kernels() -> Iterator[_Family]:
        return _direct(then, layouts(then), dtype, on, precision)

    def members() -> Sequence[Candidate]:
        found: dict[object, list[Candidate]] = {}
        made = first()
        for each in _all(kernels()):
            found.setdefault(each.kind, []).append(CopyCandidate(made, each, other))
        return [way for of_kind in found.values() for way in of_kind[:_COPIES_WORTH_TRYING]]

    def named(name: str) -> Sequence[Candidate]:
        kernel = _named(name.removeprefix(begins), kernels())
        return [] if kernel is None else [CopyCandidate(first(), kernel, other)]

    return _Family(begins, None, members, named)


def _as_loops(step: Fused, dtype: str, on: Ceilings) -> Iterator[_Family]:
    """Kernels for products of matrices that have few products for each element: tiles may take longer than loops."""
    orders = layouts(step)
    loops = problem(step, orders[0])
    if not isinstance(loops, Contraction) or loops.epilogue is not None:
        return
    _, m, n, k = loops.extents
    if m * n * k > _THIN * (m * k + k * n + m * n):
        return
    for order, strides in enumerate(orders):
        way = partial(KernelCandidate, Order(order, step, strides, False, dtype))
        reductions = partial(reduction_tilings.tilings, as_reduction(step, strides), ITEM_SIZES[dtype], on)
        yield _family("reduction", order, way, reductions)


def _direct(
    step: Fused, orders: Sequence[tuple[int, ...]], dtype: str, on: Ceilings, precision: str
) -> Iterator[_Family]:
    """Kernels that read the operands as they lie, for a result with one of these strides.

    Other orders than the first are for kernels that don't store that one as fast as any.
    """
    item = ITEM_SIZES[dtype]
    step, swapped = with_more_rows(step)
    problems = [problem(step, strides) for strides in orders]
    first, others = problems[0], problems[1:]
    for order, (strides, loops) in enumerate(zip(orders, problems, strict=True)):
        placed = Order(order, step, strides, swapped, dtype)
        way = partial(KernelCandidate, placed)
        if isinstance(loops, Reduction):
            reductions = partial(reduction_tilings.tilings, loops, item, on)
            yield _family("reduction", order, way, reductions)
            if order == 0 and not any(tiling.scattered for _, tiling in reductions()):
                return
        elif isinstance(loops, Contraction):
            assert isinstance(first, Contraction)
            tilings = partial(contraction_tilings.tilings, loops, dtype, on, precision)
            regrouped = first.along_batch or first.torn
            if copies_boxes() and not is_integer(dtype) and (order == 0 or regrouped or _fuller_boxes(first, others)):
                box = partial(BoxCandidate, placed, other=partial(_fastest, way, tilings), units=on.units)
                yield _family("contraction of boxes", order, box, partial(_boxes, loops, item, on))
            if order > 0 and not regrouped:
                continue
            if dtype == "float32" and precision != "tf32" and not interpreted():
                yield _family("contraction by threads", order, way, partial(fma_tilings, loops, on))
            yield _family("contraction ", order, way, tilings)
        else:
            chains = partial(chain_tilings.tilings, loops, dtype, on, precision)
            yield _family("chain", order, way, chains)
            if order == 0 and not any(tiling.scattered for _, tiling in chains()):
                return


def _fuller_boxes(loops: Contraction, others: Iterable[object]) -> bool:
    """Whether the hardware can't write this result, or rows and columns are fewer axes in another order of it."""
    free = [len(each.rows) + len(each.columns) for each in others if isinstance(each, Contraction)]
    return loose(loops) or any(axes < len(loops.rows) + len(loops.columns) for axes in free)


def _family(
    begins: str, order: int, way: Callable[..., Candidate], tilings: Callable[..., Iterable[tuple[float, Any]]]
) -> _Family:
    """Return one way for each tiling.

    Args:
        begins, order: what is common to them.
        way: takes predicted seconds and a tiling.
        tilings: finds all, or those of a name.
    """

    def members() -> Sequence[Candidate]:
        return [way(*each) for each in tilings()]

    def named(name: str) -> Iterable[Candidate]:
        return (way(*each) for each in tilings(name=name.partition(ORDER)[0]))

    return _Family(begins, order, members, named)


def _boxes(loops: Contraction, item: int, on: Ceilings, name: str = "") -> Sequence[tuple[float, BoxTiling]]:
    return box_tilings(loops, item, on)[:_BOXES_WORTH_TRYING]


def _fastest(
    way: Callable[..., KernelCandidate], tilings: Callable[[], Iterable[tuple[float, Any]]]
) -> KernelCandidate:
    return _working([way(*each) for each in tilings()])


def _working(ways: Sequence[AnyCandidate]) -> AnyCandidate:
    """The first of several that compiles; if none does, the first, which then says why."""
    return next((way for way in ways if works(way)), ways[0])
