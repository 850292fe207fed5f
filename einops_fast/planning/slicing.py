"""Contract within a memory limit: axes are cut until everything that a call allocates fits, and pieces are added up.

The axis that is cut next is the one after which a contraction takes the fewest FLOPs, of those in the largest step.
Steps that lack an axis are made anew for each of its pieces: that is what a limit costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf, prod
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
    elif not isinstance(limit, bool) and hasattr(limit, "__index__") and limit > 0:
        return int(limit)
    raise EinsumError(f"memory_limit is a number of bytes, or a text such as '2GiB' or '500 MB', not {limit!r}")


class Slicing(Record):
    """How a contraction is cut."""

    subscripts: Subscripts
    sizes: dict[str, int]
    extents: dict[str, int]  # of the labels that are cut: the length of a piece; the last one may be shorter
    piece: Plan  # of the largest ones
    peak: int  # bytes that are allocated at most, the result's included
    overhead: float  # times the FLOPs without a limit

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
    fewest = min(_flops(plan.subscripts, plan.sizes, plan.path, {}) for plan in plans)
    found = [_slicing(plan, limit, plan_of, trained, max(fewest, 1)) for plan in plans]
    fitting = [each for each in found if each.peak <= limit]
    if not fitting:
        least = min(each.peak for each in found)
        raise EinsumError(
            f"memory_limit: {_in_words(limit)} is too little for {plans[0].subscripts.text!r}, whose smallest pieces "
            f"and {'result, or gradients,' if trained else 'result'} take {_in_words(least)}"
        )
    return min(fitting, key=lambda each: (each.overhead, each.count))


def _slicing(plan: Plan, limit: int, plan_of: Callable[[Mapping[str, int], Path], Plan], trained: bool,
             fewest: int) -> Slicing:  # fmt: skip
    """Return how a path is sliced; its peak is over the limit if that is impossible."""
    subscripts, path = plan.subscripts, plan.path
    extents = dict(plan.sizes)
    item = _item(plan)
    while True:
        pieces = {label: extent for label, extent in extents.items() if extent < plan.sizes[label]}
        largest, labels = _largest(subscripts, extents, path)
        held = _held_bytes(plan, trained, adds=not pieces.keys() <= {*subscripts.output})
        if not pieces or held + item * largest <= limit:
            # The path tells less than a plan, which may copy operands.
            piece = plan_of(extents, path) if pieces else plan
            peak = peak_bytes(piece, trained) + (held if pieces else _gradient_bytes(plan) if trained else 0)
            if peak <= limit:
                break
        label = _next(subscripts, plan.sizes, extents, path, labels)
        if label is None:
            piece = plan_of(extents, path)
            peak = peak_bytes(piece, trained) + held
            break
        extents[label] = -(-extents[label] // 2)
    times = {label: -(-plan.sizes[label] // extent) for label, extent in pieces.items()}
    flops = _flops(subscripts, plan.sizes, path, times)
    return Slicing(subscripts, plan.sizes, pieces, piece, peak, flops / fewest)


def _next(
    subscripts: Subscripts, sizes: Mapping[str, int], extents: Mapping[str, int], path: Path, labels: frozenset[str]
) -> str | None:
    """Return the label to cut in two after which there are the fewest FLOPs: one of the largest step, if any can be."""
    best: tuple[float, int, int] = (inf, 0, 0)
    found = None
    long = {label for label, extent in extents.items() if extent > 1}
    for label in sorted(labels & long or long, key=subscripts.equation.find):
        shorter = {**extents, label: -(-extents[label] // 2)}
        times = {each: -(-sizes[each] // extent) for each, extent in shorter.items()}
        price = (
            float(_flops(subscripts, sizes, path, times)), _largest(subscripts, shorter, path)[0], -extents[label]
        )  # fmt: skip
        if price < best:
            best, found = price, label
    return found


def _flops(subscripts: Subscripts, sizes: Mapping[str, int], path: Path, times: Mapping[str, int]) -> int:
    """Return the multiply-adds of all pieces, where each label is cut so many times."""
    pieces, flops = prod(times.values()), 0
    for group, _ in Network(subscripts.inputs, subscripts.output, dict(sizes)).contractions(path):
        labels = frozenset().union(*group)
        flops += prod([sizes[label] for label in labels]) * pieces // prod([times.get(label, 1) for label in labels])
    return flops


def _largest(subscripts: Subscripts, extents: Mapping[str, int], path: Path) -> tuple[int, frozenset[str]]:
    """Return the most elements that are held at a time, operands aside, and the labels of what holds them then."""
    network = Network(subscripts.inputs, subscripts.output, dict(extents))
    operands, live = {*network.inputs}, list[frozenset[str]]()
    most, labels = 0, frozenset[str]()
    for group, result in network.contractions(path):
        held = sum(map(network.size, live)) + network.size(result)
        if held >= most:
            most, labels = held, frozenset().union(result, *live, *group)
        for term in group:
            if term in live:
                live.remove(term)
            else:
                operands.discard(term)
        live.append(result)
    return most, labels


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
