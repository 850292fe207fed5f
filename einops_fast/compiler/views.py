"""Nodes that only look at a tensor in another way: which labels index that tensor, given those of the node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from einops_fast.compiler.memory import storages_of
from einops_fast.compiler.nest import Dim, Dims, expanded, regrouped
from einops_fast.compiler.nodes import (
    argument,
    called,
    dtype_of,
    expression,
    name_of,
    read_einsum,
    same_size,
    shape_of,
    source_of,
)

_SAME = ("contiguous", "clone", "alias")
_CASTS = ("to", "type_as", "type", "float", "half", "bfloat16", "double")
_RESHAPES = ("reshape", "flatten", "unflatten", "reshape_as", "ravel")
_PERMUTATIONS = ("permute", "transpose", "t", "getattr", "movedim")
_VIEWS = (*_PERMUTATIONS, "unsqueeze", "squeeze", "getitem", "expand", "expand_as", "broadcast_to")

_PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)
"""Strides by which axes of a tensor are told apart, whatever is done to them."""


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
    if name in _SAME or (is_cast(node) and dtype_of(node) == dtype_of(source)):
        return source, dims
    found = None
    if name in _RESHAPES and dtype_of(node) == dtype_of(source):  # else it is view(dtype)
        found = regrouped(dims, shape)
    elif name in _VIEWS:
        found = _seen_as_a_whole(node, source, dims)
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


def permutation_of(node: Node) -> list[int] | None:
    """Return which axis of its operand each axis of a node is; ``None`` if it isn't a permutation."""
    strides = _strides_of(node, source_of(node)) if name_of(node) in _PERMUTATIONS and node.args else None
    return None if strides is None else [_PRIMES.index(stride) for stride in strides]


def _strides_of(node: Node, source: Node) -> tuple[Any, ...] | None:
    """Return the strides that a view has of a tensor with :data:`_PRIMES`; ``None`` if it begins elsewhere in it."""
    if name_of(node) == "getattr" and argument(node, 1, "") not in ("mT", "T"):
        return None
    value: Any = source.meta.get("example_value")
    with getattr(value, "fake_mode", None) or nullcontext():
        try:
            whole = torch.empty_strided(value.shape, _PRIMES[: value.dim()], device="meta")
            given, options = fx.node.map_arg(
                (node.args, node.kwargs), lambda each: whole if each is source else each.meta["example_value"]
            )
            made = called(node, given, options)
        except Exception:  # whatever can't be called like this is no view that is known
            return None
    return made.stride() if storages_of(made) == storages_of(whole) and made.storage_offset() == 0 else None


def _seen_as_a_whole(node: Node, source: Node, dims: Dims) -> Dims | None:
    """Return what indexes an operand of which a node is a view, if it has all its elements, once or repeated."""
    strides, shape = _strides_of(node, source), shape_of(source) or ()
    if strides is None:
        return None
    found: dict[int, Dim] = {}
    for dim, size, stride in zip(dims, shape_of(node) or (), strides, strict=True):
        if expression(size) == 1 or stride == 0:
            continue
        axis = _PRIMES.index(stride) if stride in _PRIMES else len(shape)
        if axis >= len(shape) or not same_size(size, shape[axis]):
            return None
        found[axis] = dim
    missing = [axis for axis, size in enumerate(shape) if axis not in found and expression(size) != 1]
    return None if missing else tuple([found.get(axis, ()) for axis in range(len(shape))])


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
