"""Contract within a memory limit: axes are cut until everything that a call allocates fits, and pieces are added up.

The axis that is cut next is the one that costs least for what the cut takes off all that is too much.
Steps that lack an axis are made anew for each of its pieces where no loop can be around fewer steps: that is what a
limit costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from heapq import nlargest
from itertools import product
from math import inf, log, prod
from random import Random

from einops_fast.errors import EinsumError
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.loops import Item, at_each_step, needs_of, nested
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.parts import Rest, small_parts, without_parts
from einops_fast.planning.path import FEW, Path
from einops_fast.planning.peaks import (
    gradient_bytes,
    gradient_space,
    is_view,
    item_of,
    owners_of,
    peak_bytes,
    whole_peak,
)
from einops_fast.planning.plan import Plan
from einops_fast.planning.steps import Gemm
from einops_fast.planning.trees import Tree
from einops_fast.record import Record

_TRIALS = 3
"""Searches for cuts: the first is greedy, the others are so with more and more noise."""

_TREES = 3
"""Times that a tree is cut anew for less room, where its plan takes more than the tree tells."""

_MANY = 12
"""Labels of the first search, from which on it is the only one: it takes seconds."""

_HEAT = 0.15
"""Of that noise, in logarithms of what a label is worth."""

_TRIED = 12
"""Labels whose cut is priced, of those that are worth most."""

_PRICED = 100_000
"""Steps that are priced for a call before only `_HURRIED` labels are: it takes two seconds."""

_HURRIED = 2
"""How many labels are priced from then on, in place of all."""

_ALL = 0.05
"""Weight of all that is too much, beside the most."""

_WRITTEN = 16
"""Multiply-adds that take as long as to write an element of a result."""

_MOST_OVERHEAD = 1e4
"""How many times the FLOPs of a whole contraction its pieces may take."""

_PYTHON = 4e-6
"""Seconds that a step takes in Python."""

Index = tuple[slice, ...]


class Slicing(Record):
    """How a contraction is cut."""

    subscripts: Subscripts
    sizes: dict[str, int]
    rest: Rest
    axes: tuple[frozenset[str], ...]  # of each array of the rest, the labels that it can be cut along
    extents: dict[str, int]  # of the labels that are cut: the length of a piece; the last one may be shorter
    piece: Plan  # of the largest ones; labels of one element are dropped
    items: tuple[Item, ...]  # its steps, in loops
    peak: int  # bytes that are allocated at most, the result's included
    overhead: float  # multiply-adds of all pieces, in those of the same path in one piece
    count: int  # how often the step that runs most often does

    @property
    def is_whole(self) -> bool:
        """Return whether all is contracted at once, by the path."""
        return not self.extents and not self.rest.parts

    @property
    def dropped(self) -> set[str]:
        """The labels that pieces lack."""
        return {label for label, extent in self.extents.items() if extent == 1}

    def pieces(self, shapes: Sequence[Sequence[int]]) -> Iterator[tuple[list[Index], Index]]:
        """Yield where each piece is in the operands, of these shapes, and in the result."""
        starts = [range(0, self.sizes[label], extent) for label, extent in self.extents.items()]
        for begins in product(*starts):
            at = {
                label: slice(begin, begin + extent)
                for (label, extent), begin in zip(self.extents.items(), begins, strict=True)
            }
            yield (
                [_index(term, at, shape) for term, shape in zip(self.subscripts.inputs, shapes, strict=True)],
                _index(self.subscripts.output, at),
            )


def _index(term: str, at: Mapping[str, slice], shape: Sequence[int] | None = None) -> Index:
    """Return what an array is indexed by; an axis of size 1 that stands for a longer one is taken whole."""
    whole = slice(None)
    sizes = shape or [0] * len(term)
    return tuple([whole if size == 1 else at.get(label, whole) for label, size in zip(term, sizes, strict=True)])


class _Cutting:
    """What a plan contracts, and what it takes where labels are cut."""

    def __init__(self, rest: Rest, whole: Plan, plan: Plan, trained: bool, late: bool = False) -> None:
        """Take what is left to do, its plan with nothing cut, the call's plan, and whether gradients are wanted."""
        sizes, item, on = whole.sizes, item_of(plan), whole.target.ceilings
        self.sizes, self.output, self.flat = sizes, rest.subscripts.output, trained
        self.before = 0  # bytes that the parts allocate at most
        self.budget = _PRICED  # steps that may be priced
        self.labels = {*"".join(rest.subscripts.inputs)}
        self.axes = rest.axes([operand.shape for operand in plan.operands])
        self.call = (on.call + _PYTHON) * on.gemm_rate(plan.numerics.compute) / 2
        # What is held beside the steps' results: if nothing is put side by side, and if something is.
        parts = sum([prod(operand.shape) for operand in whole.operands[: len(rest.parts)]])
        width = ITEM_SIZES.get(plan.numerics.result, 8)
        result = prod([sizes[label] for label in self.output]) * width
        if trained:  # halves are added up in float32, and converted
            result = max(result * (3 if width == 2 else 1), gradient_bytes(plan, summed=True))
        self.beside = [parts + (-(-result // item) if trained else 0), parts - (-result // item)]
        nodes = [(step.reads, step.labels) for step in whole.steps]
        self.needs = needs_of(self.axes, nodes, self.output, sizes, late)
        self.owners = owners_of(whole.steps, len(self.axes))
        # Of each step the labels of its result, all, and those of its workspace; and the elements of each of the three.
        terms = [*map(frozenset, rest.subscripts.inputs), *[frozenset(step.labels) for step in whole.steps]]
        self.made, self.all, self.space = terms[len(self.axes) :], list[frozenset[str]](), list[frozenset[str]]()
        for step in whole.steps:
            self.all.append(frozenset(step.labels).union(*[terms[read] for read in step.reads]))
            moved = (
                [terms[read] for read, how in zip(step.reads, (step.left, step.right), strict=True) if how.moves]
                if isinstance(step, Gemm)
                else []
            )
            self.space.append(moved[0] if len(moved) == 1 else self.all[-1])
        self.full = [
            prod([sizes[each] for each in labels]) if len(step.reads) > 1 else 0
            for step, labels in zip(whole.steps, self.all, strict=True)
        ]
        # For gradients: the workspace of a pair's, and all of the operands of a piece.
        space, of_space = gradient_space(whole) if trained else (0, frozenset[str]())
        self.back = [space, *[prod(operand.shape) for operand in whole.operands]]
        self.of_back = [of_space, *map(frozenset, rest.subscripts.inputs)]
        self.elements = [0 if is_view(step) else prod(step.shape) for step in whole.steps]
        self.spaces = [cost.workspace for cost in whole.costs]

    def steps(self, cuts: Mapping[str, int]) -> list[tuple[int, int, int, int]]:
        """Return of each step its number, the elements held when it runs, how often all of it is made, and it runs."""
        sizes, cut = self.sizes, cuts.keys()
        times = {label: -(-sizes[label] // extent) for label, extent in cuts.items()}

        def shorter(elements: Sequence[int], labels: Sequence[frozenset[str]]) -> list[int]:
            found = []
            for size, term in zip(elements, labels, strict=True):
                for label in cut & term:
                    size = -(-size * cuts[label] // sizes[label])
                found.append(size)
            return found

        memory = [0] * len(self.axes) + shorter(self.elements, self.made)
        spaces = shorter(self.spaces, self.space)
        items: Sequence[Item] = range(len(self.made))
        if cuts and not self.flat:
            items = nested(len(self.axes), [(reads, cut & needs, cut & ended) for reads, needs, ended in self.needs])
        found = at_each_step(items, self.needs, memory, memory.__getitem__, self.owners)
        base = self.beside[not cut.isdisjoint(self.output)]
        if self.flat:
            back = shorter(self.back, self.of_back)
            held = 2 * sum(memory) + (sum(back) if cuts else back[0])
            found = [(at, held - spaces[at], tuple(cuts)) for at, *_ in found]
        runs = [prod([times[each] for each in loops]) for *_, loops in found]
        anew = [prod([times[each] for each in loops if each not in self.all[at]]) for at, _, loops in found]
        return [
            (at, base + held + spaces[at], times_made, count)
            for (at, held, _), times_made, count in zip(found, anew, runs, strict=True)
        ]

    def price(self, cuts: Mapping[str, int], room: float) -> tuple[float, float, float]:
        """Return how many times what is held is too much, the sum of that's logarithms, and the time all takes.

        The time is in multiply-adds.
        """
        excess, doublings, time = 1.0, 0.0, 0.0
        for at, held, anew, runs in self.steps(cuts):
            # Pieces that are added up are written more often.
            time += anew * (self.full[at] + _WRITTEN * self.elements[at]) + runs * self.call
            if held > room:
                excess = max(excess, held / room)
                doublings += log(held / room)
        return excess, doublings, time

    def worth(self, cuts: Mapping[str, int], room: float) -> dict[str, float]:
        """Return for labels that take part in what is too much how much of all has them: a cut adds nothing to that.

        All counts as if it were made anew for each piece, as far as loops may yet grow.
        """
        times = {label: -(-self.sizes[label] // extent) for label, extent in cuts.items()}
        shares, large = dict[str, float](), set[str]()
        for at, held, *_ in self.steps(cuts):
            labels = self.all[at]
            share = (self.full[at] or self.elements[at]) * prod(
                [number for label, number in times.items() if label not in labels]
            )
            for label in labels:
                shares[label] = shares.get(label, 0.0) + share
            if held > room:
                large |= labels
        long = [label for label in sorted(shares) if cuts.get(label, self.sizes[label]) > 1]
        return {label: shares[label] for label in long if label in large} or dict.fromkeys(long, 1.0)

    def cut(self, room: float, begun: dict[str, int], last: dict[str, int], trials: int) -> tuple[dict[str, int], bool]:
        """Return extents with which all fits in the room, or the shortest, and whether it does.

        Labels may be cut already (``begun``): so many searches begin with these. One more begins with the ``last``
        extents, which nearly fitted.
        """
        best: tuple[float, float, dict[str, int]] | None = None
        for trial, start in enumerate([*[last] * (last != begun), *[begun] * trials]):
            if best is not None and len(best[2]) > _MANY and trial > 1:
                break
            noise, heat, cuts = Random(trial), _HEAT * trial, dict(start)
            excess, _, time = self.price(cuts, room)
            while excess > 1 and (best is None or best[0] > 1 or time < best[1]):
                worth = {
                    label: log(share + 1) + heat * noise.gauss(0, 1) for label, share in self.worth(cuts, room).items()
                }
                tried = nlargest(_TRIED if self.budget > 0 else _HURRIED, worth, worth.__getitem__)
                self.budget -= len(tried) * len(self.made)
                if not tried:
                    break
                shorter = [{**cuts, each: -(-cuts.get(each, self.sizes[each]) // 2)} for each in tried]
                prices = [self.price(each, room) for each in shorter]
                at = min(range(len(prices)), key=[log(a) + _ALL * b + log(c) for a, b, c in prices].__getitem__)
                (excess, _, time), cuts = prices[at], shorter[at]
            if best is None or (excess, time) < best[:2]:
                best = excess, time, cuts
        assert best is not None
        fits = best[0] == 1
        return self._longer(best[2], room, best[1]) if fits and not begun else best[2], fits

    def _longer(self, cuts: dict[str, int], room: float, time: float) -> dict[str, int]:
        """Return extents with which all fits, longer ones if that costs less: the search may have cut too much."""
        while self.budget > 0:
            found = []
            self.budget -= len(cuts) * len(self.made)
            for label, extent in cuts.items():
                longer = {**cuts, label: 2 * extent}
                if 2 * extent >= self.sizes[label]:
                    del longer[label]
                excess, _, less = self.price(longer, room)
                if excess == 1 and less < time:
                    found.append((less, label, longer))
            if not found:
                return cuts
            time, _, cuts = min(found, key=lambda each: each[:2])
        return cuts


def cheapest_slicing(subscripts: Subscripts, plans: Sequence[Plan], limit: int, trained: bool, begun: Set[str],
                     plan_of: Callable[[Rest, Mapping[str, int]], Plan], trees: Sequence[Tree]) -> Slicing:  # fmt: skip
    """Return the slicing that takes least time, of one without pieces where everything fits.

    Of the plans of whole calls, each by another path, some labels may be cut already (``begun``), into single elements.
    ``plan_of`` makes the plan of a piece: of what is left of a path, with these extents of labels. ``trees`` are others
    than those of the plans, and not cut yet.
    """
    # For gradients all of a piece is contracted anew, wherever loops end.
    ends = [False] if trained else [False, True]
    found = [_slicing_of_tree(tree, plans[0], limit, plan_of, late) for tree in trees for late in ends]
    if not trees or len(subscripts.inputs) <= FEW:
        found += [_slicing(plan, limit, plan_of, trained, begun) for plan in plans]
    fitting = [each for each in found if each[1].peak <= limit]
    if not fitting:
        least = min(each.peak for _, each in found)
        raise EinsumError(
            f"memory_limit: {_in_words(limit)} is too little for {subscripts.text!r}, whose smallest pieces "
            f"and {'result, or gradients,' if trained else 'result'} take {_in_words(least)}"
        )
    best = min(fitting, key=lambda each: each[0])[1]
    if best.overhead > _MOST_OVERHEAD:
        raise EinsumError(
            f"memory_limit: pieces within {_in_words(limit)} of {subscripts.text!r} take {best.overhead:.1e} "
            "times the FLOPs of all at once; allow more memory, or give a path, or a sliced tree, as optimize"
        )
    return best


def _slicing_of_tree(
    tree: Tree, like: Plan, limit: int, plan_of: Callable[[Rest, Mapping[str, int]], Plan], late: bool
) -> tuple[float, Slicing]:
    """Return how a tree is sliced, and what that takes; ``late``: all loops end at the last step."""
    room, excess, tries = limit / item_of(like), 2.0, 0
    while excess > 1 and tries <= _TREES:
        cut, tries = tree.within(room), tries + 1
        plan = plan_of(_all_of(like.subscripts, cut.path()), {})
        cutting = _prepared(plan, limit, plan_of, tree.trained, True, late)[1]
        begin = {label: 1 for label in sorted(cut.cut_labels()) if label in cutting.labels}
        excess = cutting.price(begin, limit / item_of(like))[0]
        room /= excess
    return _slicing(plan, limit, plan_of, tree.trained, frozenset(), begin, late)


def _all_of(subscripts: Subscripts, path: Path) -> Rest:
    return Rest((), tuple(range(len(subscripts.inputs))), subscripts, path)


def _prepared(plan: Plan, limit: int, plan_of: Callable[[Rest, Mapping[str, int]], Plan], trained: bool,
              parted: bool, late: bool) -> tuple[Rest, _Cutting]:  # fmt: skip
    """Return what is cut of a contraction: all, or without its small parts."""
    rest, numerics = _all_of(plan.subscripts, plan.path), plan.numerics
    if parted and not trained and numerics.compute == numerics.result and not numerics.native:
        parts = small_parts(plan.subscripts, plan.sizes, plan.path, limit // item_of(plan))
        plans = [plan_of(part.alone, {}) for part in parts.parts]
        held = sum([prod(each.steps[-1].shape) for each in plans]) * item_of(plan)
        peaks = {part.operands: held + whole_peak(each, trained) for part, each in zip(parts.parts, plans, strict=True)}
        fitting = [part for part, peak in peaks.items() if peak <= limit]
        if len(fitting) < len(peaks):
            parts = without_parts(plan.subscripts, plan.path, fitting)
        if fitting:
            cutting = _Cutting(parts, plan_of(parts, {}), plan, trained, late)
            cutting.before = max([peaks[part] for part in fitting])
            return parts, cutting
    return rest, _Cutting(rest, plan, plan, trained, late)


def _slicing(plan: Plan, limit: int, plan_of: Callable[[Rest, Mapping[str, int]], Plan], trained: bool, begun: Set[str],
             begin: Mapping[str, int] | None = None, late: bool = False) -> tuple[float, Slicing]:  # fmt: skip
    """Return how a path is sliced, and what that takes; its peak is over the limit if that is impossible.

    ``begin``: extents that nearly fit; ``late``: all loops end at the last step.
    """
    subscripts, sizes, path = plan.subscripts, plan.sizes, plan.path
    peak = whole_peak(plan, trained)
    rest, cutting = _prepared(plan, limit, plan_of, trained, not begun, late)
    if peak <= limit and not begun:
        rest = _all_of(subscripts, path)
        return cutting.price({}, inf)[2], Slicing(subscripts, sizes, rest, (), {}, plan, (), peak, 1.0, 1)
    flops, room = sum(_Cutting(_all_of(subscripts, path), plan, plan, trained).full), limit / item_of(plan)
    cutting.budget //= 4 if begin else 1  # of two trees, with loops in two ways
    start = {label: 1 for label in sorted(begun) if sizes[label] > 1}
    cuts = start if begin is None else dict(begin)
    less = 0.01
    while True:
        cuts, fits = cutting.cut(room, start, cuts, 0 if begin else _TRIALS)
        piece = plan_of(rest, cuts)
        if any(len(step.shape) > len(step.labels) for step in piece.steps):
            # Of steps with axes that have no label no other sizes are known: all pieces are as long.
            cuts = {
                each: next(size for size in range(extent, 0, -1) if not sizes[each] % size)
                for each, extent in cuts.items()
            }
            piece = plan_of(rest, cuts)
        nodes = [(step.reads, step.labels) for step in piece.steps]
        items = tuple(nested(len(cutting.axes), needs_of(cutting.axes, nodes, rest.subscripts.output, cuts, late)))
        side_by_side = any(label in subscripts.output for label in cuts)
        # For its gradients, all of a piece is contracted anew.
        peak = peak_bytes(piece, () if trained else items, trained) + item_of(plan) * cutting.beside[side_by_side]
        # All gradients are held beside those of a piece.
        peak = max(peak + (gradient_bytes(piece) if trained else 0), cutting.before)
        # The path tells less than a plan, which may copy operands.
        if peak <= limit or not fits or room < 1:
            steps = cutting.steps(cuts)
            more = sum([cutting.full[at] * (anew - 1) for at, _, anew, _ in steps])
            ratio = (flops + more) / max(flops, 1)
            count = max([runs for *_, runs in steps])
            time, axes = cutting.price(cuts, inf)[2], tuple(map(frozenset, cutting.axes))
            return time, Slicing(subscripts, sizes, rest, axes, cuts, piece, items, peak, ratio, count)
        less *= 2
        room = max(room - max((peak - limit) / item_of(plan), less * (room - cutting.beside[0])), 0.5)


def _in_words(size: int) -> str:
    units = [(1 << 10 * at, name) for at, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if size >> 10 * at]
    unit, name = units[0] if units else (1, "")
    return f"{size / unit:.3g} {name}" if name else f"{size} bytes"
