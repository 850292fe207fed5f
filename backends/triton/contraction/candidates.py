"""Which ways to run a fused step are worth trying, and the choice among them where a call waits for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from einops_fast.backends.triton.contraction.boxes import tilings as box_tilings
from einops_fast.backends.triton.contraction.chain import tilings as chain_tilings
from einops_fast.backends.triton.contraction.copies import with_copies
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
    BoxCandidate,
    CopyCandidate,
    KernelCandidate,
    Order,
)
from einops_fast.backends.triton.launching.launch import copies_boxes
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, is_complex, is_integer
from einops_fast.planning.steps import Fused
from einops_fast.runtime.choosing import Record
from einops_fast.runtime.measuring import CONTRACTIONS

if TYPE_CHECKING:
    from einops_fast.backends.triton.contraction.choice import StepProblem

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

_TILINGS: dict[type, Any] = {ChainProblem: chain_tilings, Contraction: pointer_tilings, Reduction: loop_tilings}
"""The module that lists tilings of the kernel that can run any problem of a kind."""


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


def kernel_candidates(step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> list[Candidate]:
    """Return kernels for a step on operands of a dtype, the one predicted to be fastest first.

    ``precision`` is that of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
    """
    direct = partial(_direct, step, layouts(step), dtype, on, precision)
    found = [*direct(), *_as_loops(step, dtype, on)]
    if not is_integer(dtype) and not is_complex(dtype):
        on_tensor_cores = ITEM_SIZES[dtype] == 2 or (dtype == "float32" and precision != "ieee")
        for copies, then in with_copies(step, ITEM_SIZES[dtype], on_tensor_cores):
            found += _on_copies(copies, then, lambda: _working(direct()), dtype, on, precision)
    return sorted(found, key=_seconds)


def kernel_candidate(name: str, step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> Candidate | None:
    """Return the one of this name, if there is such a one."""
    if name.startswith(ANY_SIZE):
        way = generic_kernel(step, dtype, on, precision)
        return way if way is not None and way.name == name else None
    return next((way for way in kernel_candidates(step, dtype, on, precision) if way.name == name), None)


def _on_copies(
    copies: dict[int, Fused], then: Fused, other: Callable[[], Candidate], dtype: str, on: Ceilings, precision: str
) -> Iterator[Candidate]:
    """Kernels that read copies; each copy is made in the way that is predicted to be the fastest."""
    made: dict[int, Candidate] = {
        at: _direct(copy, layouts(copy), dtype, on, precision)[0] for at, copy in copies.items()
    }
    of_kinds: dict[object, list[Candidate]] = defaultdict(list)
    for each in _direct(then, layouts(then), dtype, on, precision):
        of_kinds[each.kind].append(each)
    for of_kind in of_kinds.values():
        yield from (CopyCandidate(made, each, other) for each in of_kind[:_COPIES_WORTH_TRYING])


def _as_loops(step: Fused, dtype: str, on: Ceilings) -> Iterator[Candidate]:
    """Kernels for products of matrices that have few products for each element: tiles may take longer than loops."""
    orders = layouts(step)
    loops = problem(step, orders[0], dtype)
    if not isinstance(loops, Contraction) or loops.epilogue is not None:
        return
    _, m, n, k = loops.extents
    if m * n * k > _THIN * (m * k + k * n + m * n):
        return
    for order, strides in enumerate(orders):
        placed = Order(order, step, strides, False, dtype)
        for each in loop_tilings.tilings(as_reduction(step, strides), dtype, on):
            yield KernelCandidate(placed, *each)


def _direct(
    step: Fused, orders: Sequence[tuple[int, ...]], dtype: str, on: Ceilings, precision: str
) -> list[KernelCandidate]:
    """Kernels that read the operands as they lie, for a result with one of these strides, fastest first.

    Other orders than the first are for kernels that don't store that one as fast as any.
    """
    step, swapped = with_more_rows(step, dtype)
    problems = [problem(step, strides, dtype) for strides in orders]
    first = problems[0]
    regrouped = isinstance(first, Contraction) and first.regrouped
    with_boxes = copies_boxes() and not is_integer(dtype)
    by_threads = dtype == "float32" and precision != "tf32" and not interpreted()
    found: list[KernelCandidate] = []
    for order, (strides, loops) in enumerate(zip(orders, problems, strict=True)):
        placed = Order(order, step, strides, swapped, dtype)
        way = partial(KernelCandidate, placed)
        tilings = partial(_TILINGS[type(loops)].tilings, loops, dtype, on, precision)
        if isinstance(loops, Contraction):
            if with_boxes and (order == 0 or regrouped or _fuller_boxes(problems)):
                other = partial(_fastest, way, tilings)
                boxes = box_tilings.tilings(loops, dtype, on)[:_BOXES_WORTH_TRYING]
                found += [BoxCandidate(placed, *each, other, on.units) for each in boxes]
            if order > 0 and not regrouped:
                continue
            if by_threads:
                found += [way(*each) for each in thread_tilings.tilings(loops, on)]
        found += [way(*each) for each in tilings()]
        if order == 0 and not isinstance(loops, Contraction) and not any(each.tiling.scattered for each in found):
            break
    return sorted(found, key=_seconds)


def _fuller_boxes(problems: Sequence[Loops]) -> bool:
    """Whether the hardware can't write the first result, or rows and columns are fewer axes in another order of it."""
    products = [each for each in problems if isinstance(each, Contraction)]
    axes, *others = [len(each.rows) + len(each.columns) for each in products]
    return box_tilings.loose(products[0]) or any(each < axes for each in others)


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
