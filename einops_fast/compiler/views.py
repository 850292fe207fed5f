"""Nodes that only look at a tensor in another way: which labels index that tensor, given those of the node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx import Node

from einops_fast.compiler.constants import times_number
from einops_fast.compiler.match import Read
from einops_fast.compiler.memory import storages_of
from einops_fast.compiler.nest import Dim, Dims, Label, expanded, regrouped
from einops_fast.compiler.nodes import (
    argument,
    called,
    dtype_of,
    example_of,
    expression,
    is_known,
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
_PARTS, _PIECES = ("select", "narrow", "getitem"), ("chunk", "split", "unbind")
_VIEWS = (*_PERMUTATIONS, "unsqueeze", "squeeze", "getitem", "expand", "expand_as", "broadcast_to")

_PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)
"""Strides by which axes of a tensor are told apart, whatever is done to them."""


def is_cast(node: Node) -> bool:
    """Return whether a node converts a tensor to another dtype of floating point, on the same device."""
    if name_of(node) not in _CASTS or not isinstance(source_of(node), Node):
        return False
    before, after = example_of(source_of(node)), example_of(node)
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
        elif extent == whole or is_known(size, whole):
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
        axes = _axes_of(node, source, dims)
        found = None if axes is None or axes.cut else tuple(axes.dims)
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
    view = _viewed(node, source_of(node)) if name_of(node) in _PERMUTATIONS and node.args else None
    return None if view is None else [_PRIMES.index(stride) for stride in view.stride()]


def seen_in_part(node: Node, dims: Dims) -> tuple[Node, Dims, list[Node]] | None:
    """Return the tensor of which a node has one element, or one of several equal pieces, of one axis.

    It comes with what indexes it, among that a label that stands still, and the nodes between.
    """
    if name_of(node) not in _PARTS or not node.args:
        return None
    source, between = source_of(node), list[Node]()
    if name_of(source) in _PIECES:
        source, between = source_of(source), [source]
    axes = _axes_of(node, source, dims)
    if axes is None or len(axes.cut) != 1 or not axes.offset.is_Integer:
        return None
    (axis,) = axes.cut
    length, start = expression(axes.sizes[axis]), axes.offset / _PRIMES[axis]
    label = Label(expression(example_of(source).shape[axis]) / length, whole=True)
    if length != 1 and not (label.size.is_Integer and (start / length).is_Integer):
        return None
    label.at = int(start / length)
    dims = tuple(axes.dims)
    return source, (*dims[:axis], (label, *dims[axis]), *dims[axis + 1 :]), between


class _Axes(NamedTuple):
    """The axes of a tensor, as a view has them."""

    sizes: list[Any]  # how many elements there are of each
    dims: list[Dim]  # what indexes these
    cut: list[int]  # the axes some of whose elements aren't in the view
    offset: Any  # where the view begins, at strides of :data:`_PRIMES`


def _axes_of(node: Node, source: Node, dims: Dims) -> _Axes | None:
    """Return the axes of a source of which a node is a view that ``dims`` index; ``None`` if it is none."""
    view, shape = _viewed(node, source), shape_of(source) or ()
    if view is None:
        return None
    sizes, found = list[Any]([1] * len(shape)), list[Dim]([()] * len(shape))
    for dim, size, stride in zip(dims, view.shape, view.stride(), strict=True):
        if stride in _PRIMES[: len(shape)]:
            axis = _PRIMES.index(stride)
            sizes[axis], found[axis] = size, dim
        elif expression(size) != 1 and stride != 0:
            return None
    cut = [axis for axis, size in enumerate(shape) if not same_size(sizes[axis], size)]
    return _Axes(sizes, found, cut, expression(view.storage_offset()))


def axis_without_last(node: Node, dims: Dims) -> int | None:
    """Return the axis along which a node is all of a tensor but the last; ``None`` if it isn't."""
    shape = shape_of(source_of(node))
    axes = _axes_of(node, source_of(node), dims) if shape is not None and name_of(node) == "getitem" else None
    if shape is None or axes is None or tuple(axes.dims) != dims or axes.offset != 0 or len(axes.cut) != 1:
        return None
    (axis,) = axes.cut
    return axis if same_size(axes.sizes[axis], shape[axis] - 1) else None


def _viewed(node: Node, source: Node) -> torch.Tensor | None:
    """Return what a node makes of a tensor with the strides :data:`_PRIMES`; ``None`` if it makes no view of that."""
    if name_of(node) == "getattr" and argument(node, 1, "") not in ("mT", "T"):
        return None
    value = example_of(source)
    with getattr(value, "fake_mode", None) or nullcontext():
        try:
            whole = torch.empty_strided(value.shape, _PRIMES[: value.dim()], device="meta")

            def made(each: Node) -> Any:
                if each is source:
                    return whole
                if each is not node and source not in each.all_input_nodes:
                    return example_of(each)
                if name_of(each) == "unbind":  # which divides sizes that change to find an element
                    return [whole.select(argument(each, 1, "dim", 0), at) for at in range(len(example_of(each)))]
                return called(each, *fx.node.map_arg((each.args, each.kwargs), made))

            view = made(node)
        except Exception:  # whatever can't be called like this is no view that is known
            return None
    return view if storages_of(view) == storages_of(whole) else None


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


def operand_of(node: Node, dims: Dims, *, scaled: bool = False) -> Read:
    """Return the tensor that an operand is a view of, and if ``scaled`` a number that it is multiplied by."""
    factor, copies = 1.0, list[Node]()
    while True:
        seen = seen_through(node, dims)
        if seen is None and scaled and name_of(node) in ("mul", "div"):
            product = times_number(node)
            alike = product is not None and all(of(product[0]) == of(node) for of in (shape_of, dtype_of))
            if product is not None and alike:
                seen, factor = (product[0], dims), factor * product[1]
        if seen is None:
            return Read(node, dims, factor, tuple(copies))
        copies.append(node)
        node, dims = seen


def narrowed(q: Read, k: Read, dtype: torch.dtype | None) -> tuple[Read, Read]:
    """Read queries and keys before they were converted to float32, where values are of that dtype.

    Products are summed in float32 anyway.
    """
    found = []
    for read in (q, k):
        narrow = is_cast(read.node) and dtype_of(source_of(read.node)) == dtype
        if not narrow or dtype not in (torch.float16, torch.bfloat16) or dtype_of(read.node) != torch.float32:
            return q, k
        before = operand_of(source_of(read.node), read.dims, scaled=True)
        copies = (*read.copies, read.node, *before.copies)
        found.append(Read(before.node, before.dims, read.factor * before.factor, copies))
    return found[0], found[1]
