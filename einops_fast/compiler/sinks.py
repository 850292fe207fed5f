"""Sinks as programs spell them: a column that is joined to the scores, and left out of the weights."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from einops_fast.compiler.match import Miss
from einops_fast.compiler.nest import Dims
from einops_fast.compiler.nodes import argument, name_of, same_size, shape_of, source_of
from einops_fast.compiler.softmax import largest_of
from einops_fast.compiler.views import axes_of, broadcast, is_cast


def axis_without_last(node: Node, dims: Dims) -> int | None:
    """Return the axis along which a node is all of a tensor but the last; ``None`` if it isn't."""
    shape = shape_of(source_of(node))
    axes = axes_of(node, source_of(node), dims) if shape is not None and name_of(node) == "getitem" else None
    if shape is None or axes is None or tuple(axes.dims) != dims or axes.offset != 0 or len(axes.cut) != 1:
        return None
    (axis,) = axes.cut
    return axis if same_size(axes.sizes[axis], shape[axis] - 1) else None


def beside_sinks(node: Any, dims: Dims, axis: int) -> tuple[Node, tuple[Node, Dims], list[Node]]:
    """Return scores that one column is joined to along the axis of keys, that column, and the nodes up to a softmax.

    The softmax is taken of ``node``; ``dims`` index the scores.
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
