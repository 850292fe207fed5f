"""Parts of a tensor: one element of an axis, or one of several equal pieces of it, by labels that stand still."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.nest import Dim, Dims, Label
from einops_fast.compiler.nodes import argument, expression, name_of, shape_of, source_of


def seen_in_part(node: Node, dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Return the tensor that a node is a part of, what indexes it, and the nodes between; ``None`` if it is of none."""
    name, source = name_of(node), source_of(node)
    if name == "select":
        return _indexed(source, argument(node, 1, "dim"), argument(node, 2, "index"), dims)
    if name == "narrow":
        start, length = argument(node, 2, "start"), argument(node, 3, "length")
        return _piece(source, argument(node, 1, "dim"), start, length, dims)
    if name != "getitem":
        return None
    index: Any = argument(node, 1, "")
    if name_of(source) in ("chunk", "split", "unbind"):
        return _of_several(source, index, dims)
    return _by_index(source, index if isinstance(index, tuple) else (index,), dims)


def _of_several(pieces: Node, index: Any, dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Look through one of the tensors that an axis is cut into."""
    made, source = pieces.meta.get("example_value"), source_of(pieces)
    rank = len(shape_of(source) or ())
    by_one = name_of(pieces) == "unbind"
    axis = argument(pieces, 1 if by_one else 2, "dim", 0)
    if not isinstance(index, int) or not isinstance(made, (tuple, list)) or not isinstance(axis, int):
        return None
    index, axis = index % len(made), axis % rank
    if by_one:
        found = _indexed(source, axis, index, dims)
    else:
        length = made[0].shape[axis]
        equal = all(each.shape[axis] == length for each in made)
        found = _piece(source, axis, index * length, length, dims) if equal else None
    return None if found is None else (*found[:2], [pieces])


def _indexed(source: Any, axis: Any, index: Any, dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Look through one element of an axis."""
    shape = shape_of(source)
    if shape is None or not isinstance(axis, int) or not isinstance(index, int):
        return None
    axis %= len(shape)
    dim = _still(shape[axis], index)
    return None if dim is None else (source, (*dims[:axis], dim, *dims[axis:]), [])


def _piece(source: Any, axis: Any, start: Any, length: Any, dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Look through a piece of an axis, if it can be cut into several of its length."""
    shape = shape_of(source)
    if shape is None or not all(isinstance(each, int) for each in (axis, start, length)):
        return None
    axis %= len(shape)
    size = shape[axis]
    if not isinstance(size, int) or not length or size % length or start % length:
        return None
    dim = _still(size // length, start // length)
    return None if dim is None else (source, (*dims[:axis], (*dim, *dims[axis]), *dims[axis + 1 :]), [])


def _by_index(source: Any, index: tuple[Any, ...], dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Look through numbers, slices and new axes in brackets."""
    shape = shape_of(source)
    if shape is None or any(isinstance(each, (Node, torch.Tensor, list, bool)) for each in index):
        return None
    taken = sum(each is not None and each is not Ellipsis for each in index)
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    rest = (slice(None),) * (len(shape) - taken)
    found, axis, place = list[Dim](), 0, 0
    for each in (*index[:at], *rest, *index[at + 1 :]):
        if each is None:
            place += 1
        elif isinstance(each, int):
            dim = _still(shape[axis], each)
            if dim is None:
                return None
            found.append(dim)
            axis += 1
        elif isinstance(each, slice):
            own = dims[place]
            if each != slice(None):
                piece = _sliced(shape[axis], each)
                if piece is None:
                    return None
                own = (*piece, *own)
            found.append(own)
            axis, place = axis + 1, place + 1
        else:
            return None
    return source, tuple(found), []


def _sliced(size: Any, cut: slice) -> Dim | None:
    if not isinstance(size, int) or not all(isinstance(end, int | None) for end in (cut.start, cut.stop, cut.step)):
        return None
    start, stop, step = cut.indices(size)
    length = stop - start
    if step != 1 or length < 1 or size % length or start % length:
        return None
    return _still(size // length, start // length)


def _still(size: Any, index: int) -> Dim | None:
    """Return what indexes one element of an axis."""
    extent = expression(size)
    if extent == 1:
        return ()
    if index < 0 and not extent.is_Integer:
        return None
    label = Label(extent, whole=True)
    label.at = index % int(extent) if index < 0 else index
    return (label,)
