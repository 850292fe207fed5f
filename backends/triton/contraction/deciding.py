"""The kernels worth trying for a fused step, and the choice among them where a call waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.library import Candidate
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.runtime.choosing import Record
from einops_fast.runtime.measuring import CONTRACTIONS

if TYPE_CHECKING:
    from einops_fast.backends.triton.contraction.choice import StepProblem

__all__ = ["decide", "near"]

_LIBRARY_MARGIN, _KERNEL_MARGIN = 8.0, 5.0
"""How many times the best kernel the library may be predicted to take, and the other way round, to be measured. The
library needs no compiling; how it copes with odd strides isn't foreseen."""

_OF_KIND, _KIND_MARGIN = 2, 3.0
"""The best so many tilings of each kernel are also measured if they may take so many times as long as another one."""

_MOST, _MOST_LOOPS, _MOST_SMALL, _MOST_ALWAYS = 6, 10, 2, 24
"""The most tilings of each kernel that are measured: of most; of the reduction kernel, which is compiled in less time;
of any for a small problem; and in the mode ``'always'``."""

_seconds = attrgetter("seconds")


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
