"""Attention in a loop of Python's, over heads or blocks of queries: one call in place of one for each turn.

Each turn was found by itself before. Here their results are joined, and their operands are the parts of one tensor, in
the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

from torch.fx import Graph, Node

from einops_fast.compiler.calls import call_attention
from einops_fast.compiler.match import Inserted, Match, Read
from einops_fast.compiler.nest import Dims, Label
from einops_fast.compiler.nodes import argument, expression, name_of, shape_of, source_of
from einops_fast.compiler.views import seen_in_part


@dataclass
class Loop(Match):
    """Attentions of the parts of tensors, whose results are joined."""

    node: Node  # the concatenation
    operands: list[Read]  # of the one call, by position; a label that stands still says where the turns are
    calls: list[Node]
    axis: int  # of the result, at which the turns are
    keeps_result = True

    def __post_init__(self) -> None:
        self.inner = [*source_of(self.node), *self.calls]

    @property
    def reads(self) -> list[Read]:  # type: ignore[override]
        return self.operands

    def insert(self, graph: Graph) -> Inserted:
        """Put in the call."""
        first = self.calls[0]
        terms, _, output = first.kwargs["pattern"].partition(" -> ")  # type: ignore[union-attr]
        turn = next(letter for letter in ascii_letters if letter not in terms and letter not in output)
        given: list[Any] = list(first.args)
        letters = [term.split() for term in (*terms.split(", "), *first.kwargs["axes"])]  # type: ignore[misc]
        places = [at for at, value in enumerate(given) if isinstance(value, Node)]
        for at, read in zip(places, self.operands, strict=True):
            given[at] = read.node
            for axis, dim in enumerate(read.dims):
                if dim and dim[0].at is not None:
                    letters[at].insert(axis, turn)
                if len(dim) == 2:
                    given[at] = graph.call_method("unflatten", (read.node, axis, (len(self.calls), -1)))
        order = output.split()
        order.insert(self.axis, turn)
        q, k, v, *axes = map(" ".join, letters)
        options = {**first.kwargs, "pattern": f"{q}, {k}, {v} -> {' '.join(order)}", "axes": tuple(axes)}
        call = graph.call_function(call_attention, tuple(given), options)
        result = call
        if name_of(self.node) == "cat":
            result = graph.call_method("flatten", (call, self.axis, self.axis + 1))
        return Inserted({self.node: result}, str(options["pattern"]), {turn: len(self.calls)})


def match_loop(node: Node) -> Loop | None:
    """Return the loop whose results a node joins; ``None`` if it joins others, or the turns aren't alike."""
    joined: Any = source_of(node) if name_of(node) in ("cat", "stack") else None
    if not isinstance(joined, Sequence) or len(joined) < 2 or len({*joined}) != len(joined):
        return None
    calls = [source_of(each) if name_of(each) == "contiguous" else each for each in joined]
    if any(not isinstance(call, Node) or call.target is not call_attention for call in calls):
        return None
    first, axis = calls[0], argument(node, 1, "dim", 0)
    alike = all(call.kwargs == first.kwargs and len(call.args) == len(first.args) for call in calls)
    if not alike or first.kwargs["return_lse"] or not isinstance(axis, int):
        return None
    operands = []
    for values in zip(*[call.args for call in calls], strict=True):
        if any(not isinstance(value, Node) for value in values):
            if any(value is not None for value in values):
                return None
            continue
        read = _in_one(values)
        if read is None:
            return None
        operands.append(read)
    if not any(dim and dim[0].at is not None for dim in operands[0].dims):
        return None  # what each turn computes of the queries would be computed again
    return Loop(node, operands, calls, axis % len(shape_of(node) or ()))


def _in_one(parts: Sequence[Node]) -> Read | None:
    """Return the tensor that all nodes are, or whose parts they are in turn; ``None`` if there is none."""
    shape = shape_of(parts[0])
    if shape is None or len({*parts}) == 1:
        return None if shape is None else Read(parts[0], tuple([(Label(expression(size)),) for size in shape]))
    dims = tuple([(Label(expression(size)),) for size in shape])
    found, copies = None, list[Node]()
    for turn, part in enumerate(parts):
        seen = seen_in_part(part, dims)
        if seen is None or not _stands_at(seen[1], turn, len(parts)):
            return None
        places = [(at, len(dim)) for at, dim in enumerate(seen[1]) if dim and dim[0].at is not None]
        if found is not None and (found[0] is not seen[0] or found[2] != places):
            return None
        found = found or (seen[0], seen[1], places)
        copies += [part, *seen[2]]
    return None if found is None else Read(found[0], found[1], copies=tuple(copies))


def _stands_at(dims: Dims, turn: int, count: int) -> bool:
    """Return whether one label alone stands still, at a turn of so many."""
    still = [label for dim in dims for label in dim if label.at is not None]
    return len(still) == 1 and still[0].at == turn and still[0].size == count and all(dims)
