"""Which nodes share memory, and which of them write to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.nodes import argument, name_of, source_of

__all__ = ["is_written", "mutates", "name_what_is_written", "root_of"]

_VIEWS = frozenset(
    "reshape flatten unflatten permute transpose t unsqueeze squeeze expand expand_as broadcast_to getitem unbind "
    "chunk split narrow select movedim contiguous to float half bfloat16 type_as detach reshape_as getattr diagonal "
    "as_strided unfold tensor_split slice alias ravel type double bool".split()
)
"""What may return memory of its operand."""


def mutates(node: Node) -> bool:
    """Return whether a node writes into one of its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        library, name, overload = str(node.target).split(".")
        # Operators of others may do so, whatever they are called.
        return library not in ("aten", "einops_fast") or name.endswith("_") or "out" in overload
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True:
        return True
    name = name_of(node)
    if name == "setitem" or (name.endswith("_") and not name.endswith("__")):
        return True
    place = {"dropout": 3, "relu": 1, "silu": 1}.get(name)  # of the argument that says so
    return place is not None and argument(node, place, "inplace", False) is True


def root_of(node: Any) -> Any:
    """Return the tensor that a node may be a view of."""
    while isinstance(node, Node) and node.op in ("call_function", "call_method") and node.args:
        if not isinstance(source_of(node), Node) or (name_of(node) not in _VIEWS and not mutates(node)):
            break
        node = source_of(node)
    return node


def is_written(node: Node, but: Collection[Node] = ()) -> bool:
    """Return whether a node of the graph, other than those of ``but``, may write to the memory of a tensor."""
    rest, visited = [root_of(node)], set[Node]()
    while rest:
        shared = rest.pop()
        for user in shared.users:
            if user in visited:
                continue
            visited.add(user)
            writes = mutates(user)
            if writes and user not in but:
                return True
            if writes or name_of(user) in _VIEWS:
                rest.append(user)
    return False


def name_what_is_written(graph: Graph) -> None:
    """Have every use of a tensor after it was written to be one of the write's result, which is the same tensor."""
    for node in graph.nodes:
        written = source_of(node) if node.args else None
        if not mutates(node) or name_of(node) == "setitem" or not isinstance(written, Node):
            continue
        later = node.next
        while later.op != "root":
            if written in later.all_input_nodes:
                later.replace_input_with(written, node)
            later = later.next
