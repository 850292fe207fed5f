"""Which nodes share memory, by the storages of their examples, and which of them write to it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.multiprocessing.reductions import StorageWeakRef

from einops_fast.compiler.nodes import argument, example_of, name_of, source_of

_IN_PLACE = frozenset(f"i{name}" for name in "pow mod floordiv xor lshift rshift matmul concat".split())
"""Operators of Python that write to their first operand, and aren't known by another name."""

_LAYOUTS = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ resize_ resize_as_ set_ as_strided_ detach_".split()
)


def storages_of(value: Any) -> set[int]:
    """Return the storages of a node's tensors, or of those of several nodes."""
    found: set[int] = set()
    reference: Any = StorageWeakRef
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, Node):
            rest.append(example_of(each))
            if name_of(each).endswith("dropout"):
                rest.append(source_of(each))  # which it is itself, where nothing is dropped
        elif isinstance(each, (tuple, list)):
            rest += each
        elif isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, torch.Tensor) and each.layout is torch.strided:
            try:
                found.add(reference(each.untyped_storage()).cdata)
            except (NotImplementedError, RuntimeError):  # a subclass that has none: it may share any like it
                found.add(-1)
    return found


def written_by(node: Node) -> list[Any]:
    """Return the arguments that a node may write to."""
    if node.op not in ("call_function", "call_method"):
        return []
    target, out = node.target, node.kwargs.get("out")
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _written_by_operator(node, target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return list(node.all_input_nodes)  # any of them, for all that is known
    if out is not None:
        return [out]
    name = name_of(node)
    in_place = name == "setitem" or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if not in_place and node.op == "call_function":
        place = _place_of_inplace(target)
        in_place = place is not None and argument(node, place, "inplace", False) is not False
    return [source_of(node)] if in_place and (node.args or node.kwargs) else []


def _written_by_operator(node: Node, target: Any) -> list[Any]:
    packet = isinstance(target, torch._ops.OpOverloadPacket)
    overloads = [getattr(target, name) for name in target.overloads()] if packet else [target]
    found = [
        argument(node, at, each.name)
        for overload in overloads
        for at, each in enumerate(overload._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return [each for each in found if each is not None]


@cache
def _place_of_inplace(function: Any) -> int | None:
    """Return which parameter of a function says that it works in place."""
    try:
        return list(inspect.signature(function).parameters).index("inplace")
    except (TypeError, ValueError):
        return None


def changes_layout(node: Node) -> bool:
    """Return whether a node makes another view of a tensor that stays the same object."""
    return name_of(node) in _LAYOUTS


def is_written(node: Node, but: Collection[Node] = ()) -> bool:
    """Return whether a node of the graph, other than those of ``but``, may write to the memory of a tensor."""
    return any(storages_of(node) & storages_of(written) for writer, written in _writes(node.graph) if writer not in but)


def _writes(graph: Graph) -> Iterator[tuple[Node, list[Any]]]:
    for node in graph.nodes:
        written = written_by(node)
        if written:
            yield node, written


def name_what_is_written(graph: Graph) -> None:
    """Have every use of a tensor after it was written to be one of the write's result, where that is the tensor."""
    for node, written in list(_writes(graph)):
        if len(written) != 1 or not _is_same(written[0], node):
            continue
        later = node.next
        while later.op != "root":
            if written[0] in later.all_input_nodes:
                later.replace_input_with(written[0], node)
            later = later.next


def _is_same(written: Any, result: Node) -> bool:
    """Return whether a node's result is the tensor that it was given to write to."""
    if not isinstance(written, Node) or name_of(result) == "setitem" or not storages_of(result):
        return False
    one, other = example_of(written), example_of(result)
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    alike = one.shape == other.shape and one.dtype == other.dtype and one.stride() == other.stride()
    return alike and storages_of(written) == storages_of(result)
