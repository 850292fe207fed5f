"""Which ways to run a fused step are worth trying, and the choice among them where a call waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from einops_fast.backends.triton.contraction.boxes import tilings as box_tilings
from einops_fast.backends.triton.contraction.chain import tilings as chain_tilings
from einops_fast.backends.triton.contraction.copies import Copy, with_copies
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.contraction.library import Candidate
from einops_fast.backends.triton.contraction.loops import tilings as loop_tilings
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers import tilings as pointer_tilings
from einops_fast.backends.triton.contraction.problems import (
    ChainProblem,
    Contraction,
    Loops,
    Reduction,
    as_reduction,
    layouts,
    problem,
    with_more_rows,
)
from einops_fast.backends.triton.contraction.threads import tilings as thread_tilings
from einops_fast.backends.triton.contraction.ways import (
    ANY_SIZE,
    ORDER,
    BoxCandidate,
    CopyCandidate,
    KernelCandidate,
    Order,
)
from einops_fast.backends.triton.launching.launch import copies_boxes, interpreted
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, is_complex, is_integer
from einops_fast.planning.steps import Fused
from einops_fast.runtime.choosing import Record
from einops_fast.runtime.measuring import CONTRACTIONS

if TYPE_CHECKING:
    from einops_fast.backends.triton.contraction.choice import StepProblem

__all__ = ["decide", "kernel_candidate", "kernel_candidates", "near"]

_BOXES_WORTH_TRYING = 4
"""Tilings that are tried of the kernel that has boxes copied by the hardware."""

_COPIES_WORTH_TRYING = 2
"""Tilings of each kernel that are tried on copied operands."""

_THIN = 8
"""Products for each element of operands and result up to which products of matrices are tried as loops, too."""

_LIBRARY_MARGIN, _KERNEL_MARGIN = 8.0, 5.0
"""How many times the best kernel the library may be predicted to take, and the other way round, to be measured. The
library needs no compiling; how it copes with odd strides isn't foreseen."""

_OF_KIND, _KIND_MARGIN = 2, 3.0
"""The best so many tilings of each kernel are also measured if they may take so many times as long as another one."""

_MOST, _MOST_LOOPS, _MOST_SMALL, _MOST_ALWAYS = 6, 10, 2, 24
"""The most tilings of each kernel that are measured: of most; of the reduction kernel, which is compiled in less time;
of any for a small problem; and in the mode ``'always'``."""

_seconds = attrgetter("seconds")

_KERNELS: dict[type, tuple[str, Any]] = {
    ChainProblem: ("chain", chain_tilings),
    Contraction: ("contraction ", pointer_tilings),
    Reduction: ("reduction", loop_tilings),
}
"""How names begin of the kernels that can run any problem of a kind, and the module that lists their tilings."""


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


class _Family(NamedTuple):
    """Ways of one kind, which are looked for when they are asked for.

    Their names start with ``begins``, their results have the order of this number, or any if it is ``None``;
    ``found`` takes a name, and returns the ways of that name and maybe others, or all for an empty one.
    """

    begins: str
    order: int | None
    found: Callable[[str], Sequence[Candidate]]


def kernel_candidates(step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> list[Candidate]:
    """Return kernels for a step on operands of a dtype, the one predicted to be fastest first.

    ``precision`` is that of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
    """
    return _all(_families(step, dtype, on, precision))


def kernel_candidate(name: str, step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> Candidate | None:
    """Return the one of this name, if there is such a one; in less time than it takes to find all."""
    if name.startswith(ANY_SIZE):
        way = generic_kernel(step, dtype, on, precision)
        return way if way is not None and way.name == name else None
    return _named(name, _families(step, dtype, on, precision))


def _all(families: Iterable[_Family]) -> list[Candidate]:
    return sorted((way for family in families for way in family.found("")), key=lambda way: way.seconds)


def _named(name: str, families: Iterable[_Family]) -> Candidate | None:
    order = name.partition(ORDER)[2]
    for family in families:
        if name.startswith(family.begins) and (family.order is None or order == str(family.order or "")):
            for way in family.found(name):
                if way.name == name:
                    return way
    return None


def _families(step: Fused, dtype: str, on: Ceilings, precision: str) -> Iterator[_Family]:
    direct = partial(_direct, step, layouts(step), dtype, on, precision)
    yield from direct()
    yield from _as_loops(step, dtype, on)
    if not is_integer(dtype) and not is_complex(dtype):
        on_tensor_cores = ITEM_SIZES[dtype] == 2 or (dtype == "float32" and precision != "ieee")
        for copies, then in with_copies(step, ITEM_SIZES[dtype], on_tensor_cores):
            yield _on_copies(copies, then, lambda: _working(_all(direct())), dtype, on, precision)


def _on_copies(
    copies: dict[int, Copy], then: Fused, other: Callable[[], Candidate], dtype: str, on: Ceilings, precision: str
) -> _Family:
    """Kernels that read copies; each copy is made in the way that is predicted to be the fastest."""
    begins = CopyCandidate.described(copies)

    def found(name: str) -> Sequence[Candidate]:
        kernels = _direct(then, layouts(then), dtype, on, precision)
        kernel = _named(name.removeprefix(begins), kernels) if name else None
        if name and kernel is None:
            return []
        made = {at: _all(_direct(copy.step, [copy.strides], dtype, on, precision))[0] for at, copy in copies.items()}
        if kernel is not None:
            return [CopyCandidate(made, kernel, other)]
        of_kinds: dict[object, list[Candidate]] = {}
        for each in _all(kernels):
            of_kinds.setdefault(each.kind, []).append(CopyCandidate(made, each, other))
        return [way for of_kind in of_kinds.values() for way in of_kind[:_COPIES_WORTH_TRYING]]

    return _Family(begins, None, found)


def _as_loops(step: Fused, dtype: str, on: Ceilings) -> Iterator[_Family]:
    """Kernels for products of matrices that have few products for each element: tiles may take longer than loops."""
    orders = layouts(step)
    loops = problem(step, orders[0], dtype)
    if not isinstance(loops, Contraction) or loops.epilogue is not None:
        return
    _, m, n, k = loops.extents
    if m * n * k > _THIN * (m * k + k * n + m * n):
        return
    for order, strides in enumerate(orders):
        way = partial(KernelCandidate, Order(order, step, strides, False, dtype))
        tilings = partial(loop_tilings.tilings, as_reduction(step, strides), dtype, on)
        yield _family("reduction", order, way, tilings)


def _direct(
    step: Fused, orders: Sequence[tuple[int, ...]], dtype: str, on: Ceilings, precision: str
) -> Iterator[_Family]:
    """Kernels that read the operands as they lie, for a result with one of these strides.

    Other orders than the first are for kernels that don't store that one as fast as any.
    """
    step, swapped = with_more_rows(step, dtype)
    problems = [problem(step, strides, dtype) for strides in orders]
    first = problems[0]
    regrouped = isinstance(first, Contraction) and first.regrouped
    with_boxes = copies_boxes() and not is_integer(dtype)
    by_threads = dtype == "float32" and precision != "tf32" and not interpreted()
    for order, (strides, loops) in enumerate(zip(orders, problems, strict=True)):
        placed = Order(order, step, strides, swapped, dtype)
        way = partial(KernelCandidate, placed)
        begins, module = _KERNELS[type(loops)]
        tilings = partial(module.tilings, loops, dtype, on, precision)
        if isinstance(loops, Contraction):
            if with_boxes and (order == 0 or regrouped or _fuller_boxes(problems)):
                box = partial(BoxCandidate, placed, other=partial(_fastest, way, tilings), units=on.units)
                yield _family("contraction of boxes", order, box, partial(_boxes, loops, dtype, on))
            if order > 0 and not regrouped:
                continue
            if by_threads:
                of_threads = partial(thread_tilings.tilings, loops, dtype, on, precision)
                yield _family("contraction by threads", order, way, of_threads)
        yield _family(begins, order, way, tilings)
        if order == 0 and not isinstance(loops, Contraction) and not any(tiling.scattered for _, tiling in tilings()):
            return


def _fuller_boxes(problems: Sequence[Loops]) -> bool:
    """Whether the hardware can't write the first result, or rows and columns are fewer axes in another order of it."""
    products = [each for each in problems if isinstance(each, Contraction)]
    axes, *others = [len(each.rows) + len(each.columns) for each in products]
    return box_tilings.loose(products[0]) or any(each < axes for each in others)


def _family(
    begins: str, order: int, way: Callable[..., Candidate], tilings: Callable[..., Iterable[tuple[float, Any]]]
) -> _Family:
    """One way for each tiling; ``way`` takes predicted seconds and a tiling, ``tilings`` the name of one."""
    return _Family(begins, order, lambda name: [way(*each) for each in tilings(name=name.partition(ORDER)[0])])


def _boxes(loops: Contraction, dtype: str, on: Ceilings, name: str = "") -> Sequence[tuple[float, Any]]:
    return box_tilings.tilings(loops, dtype, on)[:_BOXES_WORTH_TRYING]


def _fastest(
    way: Callable[..., KernelCandidate], tilings: Callable[[], Iterable[tuple[float, Any]]]
) -> KernelCandidate:
    return _working([way(*each) for each in tilings()])


def _working(ways: Sequence[AnyCandidate]) -> AnyCandidate:
    """The first of several that compiles; if none does, the first, which then says why."""
    return next((way for way in ways if works(way)), ways[0])


def near(problem: StepProblem, kernels: Sequence[Candidate] | None = None) -> list[Candidate]:
    """Return the ways of which one may be the fastest, by their predictions; the library where it has a chance."""
    if kernels is None:
        kernels = kernel_candidates(problem.step, problem.dtype, problem.on, problem.precision)
    libraries = problem.libraries
    least, other = min(way.seconds for way in kernels), libraries[0].seconds
    if least > _KERNEL_MARGIN * other:
        return libraries
    always = problem.mode == "always"
    margin = CONTRACTIONS.margin["always" if always else "auto"]
    found: list[Candidate] = []
    for way in kernels:
        # Of each kind some: how one does against another isn't foreseen so well.
        before = [each.kind for each in found].count(way.kind)
        loops = way.kind is ReductionTiling
        most = _MOST_ALWAYS if always else _MOST_SMALL if problem.small else _MOST_LOOPS if loops else _MOST
        if before < most and way.seconds <= max(margin, _KIND_MARGIN if before < _OF_KIND else 0.0) * least:
            found.append(way)
    # The library first: of what takes seconds, not all is timed.
    return libraries + found if other <= _LIBRARY_MARGIN * least else found


def decide(problem: StepProblem, operands: Sequence[Any]) -> Candidate:
    """Choose a way now, by operands on the current device."""

    def named(name: str) -> Candidate | None:
        way = problem.of_name(name)
        return way if way is not None and works(way) else None

    @cache
    def kernels() -> Sequence[Candidate]:
        return kernel_candidates(problem.step, problem.dtype, problem.on, problem.precision)

    def predicted() -> Candidate:
        return next(way for way in sorted([*problem.libraries, *kernels()], key=_seconds) if works(way))

    def measured(ways: Sequence[Candidate]) -> Record | None:
        return measure(ways, problem.preferred(ways), operands, problem.memory, problem.device, CONTRACTIONS)

    if interpreted():
        return kernels()[0]

    def worth_measuring() -> Sequence[Candidate]:
        found = near(problem, kernels())
        return found if len(found) > 1 else ()

    return problem.chooser.choose(problem.key(), named, worth_measuring, predicted, problem.library, measured).way
