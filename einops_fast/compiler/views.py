"""Nodes that only look at a tensor in another way: which labels index that tensor, given those of the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.nest import Dims, expanded, regrouped
from einops_fast.compiler.nodes import (
    argument,
    dtype_of,
    expression,
    name_of,
    read_einsum,
    same_size,
    shape_of,
    source_of,
)

__all__ = ["broadcast", "followed", "is_cast", "permutation_of", "seen_through"]

_SAME = ("contiguous", "clone", "alias")
_CASTS = ("to", "type_as", "type", "float", "half", "bfloat16", "double")
_RESHAPES = ("reshape", "flatten", "unflatten", "reshape_as", "ravel")


def is_cast(node: Node) -> bool:
    """Return whether a node converts a tensor to another dtype of floating point, on the same device."""
    if name_of(node) not in _CASTS or not isinstance(source_of(node), Node):
        return False
    before, after = source_of(node).meta.get("example_value"), node.meta.get("example_value")
    return (
        isinstance(before, torch.Tensor)
        and isinstance(after, torch.Tensor)
        and before.device == after.device
        and before.is_floating_point()
        and after.is_floating_point()
    )


def broadcast(dims: Dims, node: Any) -> Dims | None:
    """Return what indexes an operand of an elementwise function whose result is indexed by ``dims``."""
    shape = shape_of(node)
    if shape is None or len(shape) > len(dims):
        return None
    found: list[Any] = []
    for dim, size in zip(dims[len(dims) - len(shape) :], shape, strict=True):
        extent = expression(size)
        whole = 1
        for label in expanded(dim):
            whole = whole * label.size
        if extent == 1:
            found.append(())
        elif extent == whole:
            found.append(dim)
        else:
            return None
    return tuple(found)


def seen_through(node: Node, dims: Dims) -> tuple[Node, Dims] | None:
    """Return the tensor that a node is a view, or a copy, of, and what indexes it; ``None`` if it is of none."""
    name = name_of(node)
    source = source_of(node) if node.args else None
    if name == "cat":
        return _of_copies(node, dims)
    if name == "einsum":
        return _of_einsum(node, dims)
    if not isinstance(source, Node):
        return None
    shape = shape_of(source)
    if shape is None or shape_of(node) is None:
        return None
    rank = len(shape)
    if name in _SAME or (name in _CASTS and dtype_of(node) == dtype_of(source) and _same_device(node, source)):
        return source, dims
    if name in _RESHAPES:
        if dtype_of(node) != dtype_of(source):  # view(dtype)
            return None
        found = regrouped(dims, shape)
        return None if found is None else (source, found)
    order = _order(node, name, rank)
    if order is not None:
        own: list[Any] = [()] * rank
        for at, axis in enumerate(order):
            own[axis] = dims[at]
        return source, tuple(own)
    if name == "unsqueeze":
        at = argument(node, 1, "dim")
        at = at + rank + 1 if at < 0 else at
        return source, (*dims[:at], *dims[at + 1 :])
    if name == "squeeze":
        return source, _unsqueezed(dims, shape, shape_of(node))
    if name == "getitem":
        return _indexed(node, source, dims)
    found = None
    if name in ("expand", "expand_as", "broadcast_to"):
        found = broadcast(dims, source)
    elif name == "repeat":
        found = _of_repetitions(node, dims, shape)
    elif name == "repeat_interleave":
        count, axis = argument(node, 1, "repeats"), argument(node, 2, "dim")
        if isinstance(count, int) and isinstance(axis, int):
            found = _repeated(dims, shape, axis, count, False)
    return None if found is None else (source, found)


def followed(node: Any, dims: Dims, wanted: Callable[[Node], bool]) -> tuple[Node, Dims, list[Node]] | None:
    """Follow views and casts to a node that is ``wanted``.

    Return it with what indexes it and the nodes on the way; ``None`` if the way ends before.
    """
    way: list[Node] = []
    while isinstance(node, Node):
        if wanted(node):
            return node, dims, way
        way.append(node)
        if is_cast(node):
            node = source_of(node)
            continue
        seen = seen_through(node, dims)
        if seen is None:
            return None
        node, dims = seen
    return None


def _same_device(node: Node, source: Node) -> bool:
    return bool(node.meta["example_value"].device == source.meta["example_value"].device)


def permutation_of(node: Node) -> list[int] | None:
    """Return which axis of its operand each axis of a node is; ``None`` if it isn't a permutation."""
    shape = shape_of(source_of(node)) if node.args else None
    return None if shape is None else _order(node, name_of(node), len(shape))


def _order(node: Node, name: str, rank: int) -> list[int] | None:
    """Return which axis of its operand each axis of a permutation is."""
    order = list(range(rank))
    if name == "permute":
        given: Any = node.args[1:] if len(node.args) > 2 else argument(node, 1, "dims")
        if isinstance(given, (tuple, list)) and len(given) == 1 and isinstance(given[0], (tuple, list)):
            given = given[0]
        return [axis % rank for axis in ([given] if isinstance(given, int) else given)]
    if name == "transpose":
        one, other = argument(node, 1, "dim0"), argument(node, 2, "dim1")
        order[one], order[other] = order[other], order[one]
        return order
    if name == "t" and rank == 2:
        return order[::-1]
    if name == "getattr" and argument(node, 1, "") in ("mT", "T"):
        return [*order[:-2], *order[:-3:-1]] if argument(node, 1, "") == "mT" else order[::-1]
    if name == "movedim":
        source, target = argument(node, 1, "source"), argument(node, 2, "destination")
        sources = [source] if isinstance(source, int) else list(source)
        targets = [target] if isinstance(target, int) else list(target)
        sources, targets = [axis % rank for axis in sources], [axis % rank for axis in targets]
        rest = iter([axis for axis in order if axis not in sources])
        return [sources[targets.index(at)] if at in targets else next(rest) for at in range(rank)]
    return None


def _unsqueezed(dims: Dims, shape: Any, squeezed: Any) -> Dims:
    found, at = [], 0
    for size in shape:
        if at < len(squeezed) and same_size(size, squeezed[at]):
            found.append(dims[at])
            at += 1
        else:
            found.append(())
    return tuple(found)


def _repeated(dims: Dims, shape: Any, axis: int, count: int, whole: bool) -> Dims | None:
    """Return what indexes an operand that is repeated along an axis, as a whole or each element of it."""
    axis %= len(shape)
    # The slower part counts repetitions of the whole.
    parts = regrouped((dims[axis],), (count, shape[axis]) if whole else (shape[axis], count))
    return None if parts is None else (*dims[:axis], parts[whole], *dims[axis + 1 :])


def _of_repetitions(node: Node, dims: Dims, shape: Any) -> Dims | None:
    """Return what indexes an operand of ``repeat``."""
    given = node.args[1:] if len(node.args) > 2 else argument(node, 1, "repeats")
    times = [given] if isinstance(given, int) else list(given[0] if isinstance(given[0], (tuple, list)) else given)
    if not all(isinstance(count, int) for count in times):
        return None
    extra = len(times) - len(shape)
    found: Dims | None = dims[extra:]
    for axis, count in enumerate(times[extra:]):
        if count != 1 and found is not None:
            found = _repeated(found, shape, axis, count, True)
    return found


def _of_copies(node: Node, dims: Dims) -> tuple[Node, Dims] | None:
    """Look through a tensor that is joined with itself."""
    joined, axis = source_of(node), argument(node, 1, "dim", 0)
    if not isinstance(joined, (tuple, list)) or len(set(joined)) != 1 or not isinstance(axis, int):
        return None
    shape = shape_of(joined[0])
    found = _repeated(dims, shape, axis, len(joined), True) if shape else None
    return None if found is None else (joined[0], found)


def _indexed(node: Node, source: Node, dims: Dims) -> tuple[Node, Dims] | None:
    """Look through an index of new axes and whole slices."""
    index = node.args[1]
    entries = list(index) if isinstance(index, tuple) else [index]
    whole = slice(None, None, None)
    if any(entry is not None and entry is not Ellipsis and entry != whole for entry in entries):
        return None
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        named = sum(entry == whole for entry in entries)
        entries[at : at + 1] = [whole] * (len(shape_of(source) or ()) - named)
    found = []
    for at, dim in enumerate(dims):
        if at >= len(entries) or entries[at] is not None:
            found.append(dim)
    return source, tuple(found)


def _of_einsum(node: Node, dims: Dims) -> tuple[Node, Dims] | None:
    """Look through an einsum of one operand that permutes its axes."""
    read = read_einsum(node)
    if read is None or len(read[1]) != 1:
        return None
    subscripts, (operand,) = read
    labels, output = subscripts.inputs[0], subscripts.output
    if sorted(labels) != sorted(output):
        return None
    return operand, tuple([dims[output.index(label)] for label in labels])
