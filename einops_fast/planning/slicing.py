"""Contract within a memory limit: axes are cut until everything that a call allocates fits, and pieces are added up.

The axis that is cut next is the one that costs the fewest FLOPs for what the cut takes off the largest step.
Steps that lack an axis are made anew for each of its pieces: that is what a limit costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf, log, prod
from typing import Any

from einops_fast.errors import EinsumError
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.path import Network, Path
from einops_fast.planning.plan import Plan
from einops_fast.planning.steps import Diagonal, Fused, Gemm, Multiply, Select, Step, View
from einops_fast.record import Record

__all__ = ["Slicing", "cheapest_slicing", "peak_bytes", "read_bytes"]

_UNITS = {"": 1, **{f"{prefix}B": 1000**at for at, prefix in enumerate(("", "k", "M", "G", "T"))},
          **{f"{prefix}iB": 1024**at for at, prefix in enumerate("KMGT", 1)}}  # fmt: skip

Index = tuple[slice, ...]


def read_bytes(limit: Any) -> int:
    """Return a memory limit in bytes: a number of them, or a text such as ``'2GiB'``.

    >>> read_bytes(4096), read_bytes('1.5 MiB')
    (4096, 1572864)
    """
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", limit)
        if found and found[2] in _UNITS and re.fullmatch(r"\d+\.?\d*", found[1]):
            return int(float(found[1]) * _UNITS[found[2]])
    elif (
        not isinstance(limit, bool) and hasattr(limit, "__index__") and getattr(limit, "shape", ()) == () and limit > 0
    ):
        return int(limit)
    raise EinsumError(f"memory_limit is a number of bytes, or a text such as '2GiB' or '500 MB', not {limit!r}")


class Slicing(Record):
    """How a contraction is cut."""

    subscripts: Subscripts
    sizes: dict[str, int]
    extents: dict[str, int]  # of the labels that are cut: the length of a piece; the last one may be shorter
    piece: Plan  # of the largest ones
    peak: int  # bytes that are allocated at most, the result's included
    flops: int  # multiply-adds of all pieces
    overhead: float  # times those of the same path in one piece

    @property
    def count(self) -> int:
        """The number of pieces."""
        return prod([-(-self.sizes[label] // extent) for label, extent in self.extents.items()])

    @property
    def adds(self) -> bool:
        """Whether pieces are added up, and not only put side by side."""
        return not set(self.extents) <= set(self.subscripts.output)

    def pieces(self, shapes: Sequence[Sequence[int]]) -> Iterator[tuple[list[Index], Index]]:
        """Yield where each piece is in the operands, of these shapes, and in the result."""
        # Pieces that are added up come one after the other.
        labels = sorted(self.extents, key=lambda label: label not in self.subscripts.output)
        starts = [range(0, self.sizes[label], self.extents[label]) for label in labels]
        for begins in product(*starts):
            at = {label: slice(begin, begin + self.extents[label]) for label, begin in zip(labels, begins, strict=True)}
            yield (
                [_index(term, at, shape) for term, shape in zip(self.subscripts.inputs, shapes, strict=True)],
                _index(self.subscripts.output, at),
            )


def _index(term: str, at: Mapping[str, slice], shape: Sequence[int] | None = None) -> Index:
    """Return what an array is indexed by; an axis of size 1 that stands for a longer one is taken whole."""
    whole = slice(None)
    sizes = shape or [0] * len(term)
    return tuple([whole if size == 1 else at.get(label, whole) for label, size in zip(term, sizes, strict=True)])


def cheapest_slicing(plans: Sequence[Plan], limit: int, plan_of: Callable[[Mapping[str, int], Path], Plan],
                     trained: bool) -> Slicing:  # fmt: skip
    """Return the slicing that takes the fewest FLOPs, of one without pieces where everything fits.

    Args:
        plans: of whole calls, by paths worth a try.
        limit: bytes.
        plan_of: makes the plan of a piece, from the extents of labels and the path.
        trained: gradients are computed, a piece at a time.

    Raises:
        EinsumError: the result alone is larger, or no piece is small enough.
    """
    found = [_slicing(plan, limit, plan_of, trained) for plan in plans]
    fitting = [each for each in found if each.peak <= limit]
    if not fitting:
        least = min(each.peak for each in found)
        raise EinsumError(
            f"memory_limit: {_in_words(limit)} is too little for {plans[0].subscripts.text!r}, whose smallest pieces "
            f"and {'result, or gradients,' if trained else 'result'} take {_in_words(least)}"
        )
    return min(fitting, key=lambda each: (each.flops, each.count))


class _Steps:
    """What a path contracts, whatever the extents of labels."""

    def __init__(self, subscripts: Subscripts, sizes: Mapping[str, int], path: Path) -> None:
        self.sizes = sizes
        # of each step all labels, and the terms that are held with its result, operands aside
        self.labels: list[frozenset[str]] = []
        self.held: list[tuple[frozenset[str], ...]] = []
        live: list[frozenset[str]] = []
        for group, result in Network(subscripts.inputs, subscripts.output, dict(sizes)).contractions(path):
            self.labels.append(frozenset().union(*group))
            self.held.append((*live, result))
            for term in group:
                if term in live:
                    live.remove(term)
            live.append(result)

    def flops(self, extents: Mapping[str, int]) -> int:
        """Return the multiply-adds of all pieces."""
        sizes = self.sizes
        times = {label: -(-sizes[label] // extent) for label, extent in extents.items() if extent < sizes[label]}
        pieces = prod(times.values())
        return sum(
            prod([sizes[label] for label in labels]) * pieces // prod([times[label] for label in labels & times.keys()])
            for labels in self.labels
        )

    def largest(self, extents: Mapping[str, int]) -> tuple[int, frozenset[str]]:
        """Return the most elements that are held at a time, and the labels of the step that makes them so many."""
        every = [sum(prod([extents[label] for label in term]) for term in held) for held in self.held]
        at = max(range(len(every)), key=every.__getitem__)
        return every[at], self.labels[at].union(*self.held[at])

    def next(self, extents: Mapping[str, int]) -> str | None:
        """Return the label to cut in two: the one that costs least for what it takes off the largest step."""
        most, labels = self.largest(extents)
        flops = max(self.flops(extents), 1)  # an axis may have no elements
        best: tuple[float, ...] = (inf,)
        found = None
        long = {label for label, extent in extents.items() if extent > 1}
        for label in sorted(labels & long or long):
            shorter = {**extents, label: -(-extents[label] // 2)}
            least, more = max(self.largest(shorter)[0], 1), max(self.flops(shorter), 1)
            gain = log(most / least) if least < most else 0.0
            price = log(more / flops) / gain if gain else inf, float(more), float(-extents[label])
            if found is None or price < best:
                best, found = price, label
        return found


def _slicing(plan: Plan, limit: int, plan_of: Callable[[Mapping[str, int], Path], Plan], trained: bool) -> Slicing:
    """Return how a path is sliced; its peak is over the limit if that is impossible."""
    subscripts, sizes, path, item = plan.subscripts, plan.sizes, plan.path, _item(plan)
    steps, extents = _Steps(subscripts, sizes, path), dict(sizes)
    while True:
        pieces = {label: extent for label, extent in extents.items() if extent < sizes[label]}
        held = _held_bytes(plan, trained, adds=not pieces.keys() <= {*subscripts.output})
        label = steps.next(extents)
        # The path tells less than a plan, which may copy operands.
        if not pieces or label is None or held + item * steps.largest(extents)[0] <= limit:
            piece = plan_of(extents, path) if pieces else plan
            peak = peak_bytes(piece, trained) + (held if pieces else _gradient_bytes(plan) if trained else 0)
            if peak <= limit or label is None:
                flops = steps.flops(extents)
                return Slicing(subscripts, sizes, pieces, piece, peak, flops, flops / max(steps.flops({}), 1))
        extents[label] = -(-extents[label] // 2)


def _item(plan: Plan) -> int:
    """Return the bytes of an element while it is computed with."""
    return max(ITEM_SIZES.get(plan.numerics.compute, 8), ITEM_SIZES.get(plan.numerics.result, 8))


def _held_bytes(plan: Plan, trained: bool, adds: bool) -> int:
    """Return the bytes that are held beside a piece: the result, or gradients of operands where there are any."""
    item = ITEM_SIZES.get(plan.numerics.result, 8)
    # Halves are added up in float32, and converted.
    result = prod([plan.sizes[label] for label in plan.subscripts.output]) * (item + 4 if adds and item == 2 else item)
    return max(result, _gradient_bytes(plan)) if trained else result


def _gradient_bytes(plan: Plan) -> int:
    return sum(prod(operand.shape) * ITEM_SIZES.get(operand.dtype, 8) for operand in plan.operands)


def peak_bytes(plan: Plan, keeps: bool = False) -> int:
    """Return the most bytes that a plan allocates at a time, its result included.

    With ``keeps``, no intermediate is let go, and each gets a gradient.
    """
    item = _item(plan)
    sizes = [prod(operand.shape) for operand in plan.operands]
    return item * _peak(plan.steps, sizes, keeps)


def _peak(steps: Sequence[Step], operands: Sequence[int], keeps: bool) -> int:
    """Return the most elements that steps allocate at a time."""
    count, most, live = len(operands), 0, 0
    elements = list(operands)
    owners = list(range(count))  # the slot whose memory each slot is in
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        elements.append(prod(step.shape))
        is_view = isinstance(step, (Select, Diagonal)) or (isinstance(step, View) and not step.how.moves)
        owners.append(owners[step.reads[0]] if is_view else count + at)
        last.update({owners[slot]: at for slot in step.reads})
    for at, step in enumerate(steps):
        own = owners[count + at] == count + at
        live += elements[count + at] if own else 0
        most = max(most, live + _workspace(step, [elements[slot] for slot in step.reads]))
        freed = {owners[slot] for slot in step.reads if owners[slot] >= count and last[owners[slot]] == at}
        live -= 0 if keeps else sum(elements[slot] for slot in freed)
    return 2 * most if keeps else most


def _workspace(step: Step, reads: Sequence[int]) -> int:
    """Return the elements that a step allocates beside its result."""
    if isinstance(step, Gemm):
        return sum(size for size, how in zip(reads, (step.left, step.right), strict=True) if how.moves)
    if isinstance(step, Multiply) and step.summed:
        return 2 * min(step.full, step.block or step.full)  # in float32, where elements are halves
    if isinstance(step, Fused):
        return _peak(step.library, reads, keeps=False)
    return 0


def _in_words(size: int) -> str:
    unit = max((name for name in _UNITS if "i" in name and size >= _UNITS[name]), key=_UNITS.__getitem__, default="")
    return f"{size / _UNITS[unit]:.3g} {unit}" if unit else f"{size} bytes"
