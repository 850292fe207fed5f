"""Sinks as programs spell them: a column that is joined to the scores, and left out of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.match import Miss
from einops_fast.compiler.nest import Dims
from einops_fast.compiler.nodes import argument, expression, name_of, shape_of, source_of
from einops_fast.compiler.softmax import largest_of
from einops_fast.compiler.views import broadcast, is_cast


def axis_without_last(node: Node) -> int | None:
    """Return the axis along which a node is all of a tensor but the last; ``None`` if it isn't."""
    if name_of(node) != "getitem":
        return None
    index: Any = argument(node, 1, "")
    rank, source = len(shape_of(node) or ()), shape_of(source_of(node))
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    if source is None or len(source) != rank or not all(isinstance(entry, slice) for entry in entries):
        return None
    cut = [axis for axis, entry in enumerate(entries) if entry != slice(None)]
    if len(cut) != 1:
        return None
    (axis,) = cut
    start, stop, step = [_size(end) for end in (entries[axis].start, entries[axis].stop, entries[axis].step)]
    whole = start in (None, 0) and step in (None, 1)
    return axis if whole and stop in (-1, expression(source[axis]) - 1) else None


def _size(end: Any) -> Any:
    """Return where a slice ends as an expression: nothing may ask for the number of a size that changes."""
    end = end.meta["example_value"] if isinstance(end, Node) else end
    return expression(end) if isinstance(end, (int, torch.SymInt)) else end


def beside_sinks(node: Any, dims: Dims, axis: int) -> tuple[Node, tuple[Node, Dims], list[Node]]:
    """Return scores that one column is joined to along an axis, that column, and the nodes from these to a softmax.

    Args:
        node: what the softmax is taken of.
        dims: what indexes the scores.
        axis: of the keys.
    """
    inner = []
    while is_cast(node) or name_of(node) == "sub":
        inner.append(node)
        if not is_cast(node):
            taken = largest_of(argument(node, 1, "other"), source_of(node), axis)
            if not taken or argument(node, 2, "alpha", 1) != 1:
                raise Miss("different offset", node)
            inner += taken
        node = source_of(node)
    joined: Any = source_of(node) if name_of(node) == "cat" else ()
    rows = (*dims[:axis], (), *dims[axis + 1 :])
    if len(joined) == 2 and argument(node, 1, "dim", 0) % len(dims) == axis and broadcast(dims, joined[0]) == dims:
        column = broadcast(rows, joined[1])
        if column is not None:
            return joined[0], (joined[1], column), [*inner, node]
    raise Miss("different offset", node)
