"""What must hold for a match to be fused: nobody needs what goes, nothing is written to meanwhile, dtypes agree."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.match import Match, Miss
from einops_fast.compiler.nodes import dtype_of, mutates, name_of, source_of

__all__ = ["check", "name_what_is_written"]

_SETTINGS = ("set_grad_enabled", "enter_autocast", "exit_autocast", "enter_inference_mode", "exit_inference_mode")
"""What changes how the nodes after it are computed."""

_VIEWS = frozenset(
    "reshape flatten unflatten permute transpose t unsqueeze squeeze expand expand_as broadcast_to getitem unbind "
    "chunk split narrow select movedim contiguous to float half bfloat16 type_as detach reshape_as getattr diagonal "
    "as_strided unfold tensor_split slice alias".split()
)
"""What may return memory of its operand."""


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


def check(graph: Graph, match: Match) -> None:
    """Check a match.

    Raises:
        Miss: it can't be fused.
    """
    inner = {*match.inner, match.node}
    for node in match.inner:
        others = [user for user in node.users if user not in inner]
        if others:
            raise Miss("mutation" if any(map(mutates, others)) else "value used elsewhere", node)
    _check_order(graph, match)
    _check_dtypes(graph, match)


def _check_order(graph: Graph, match: Match) -> None:
    """Raise if a tensor is written to after it could be read, or a setting changes between the nodes that are fused."""
    inner, roots, began = set(match.inner), set[Any](), False
    for node in graph.nodes:
        if node is match.node:
            return
        began = began or node in inner
        if mutates(node) and node not in inner and _root(node) in roots:
            raise Miss("mutation", node)
        for read in match.reads:
            if read.node is node:
                roots |= {_root(each) for each in (node, *read.copies)}
        if began and _function(node) in _SETTINGS:
            raise Miss("unsupported option", node)


def _check_dtypes(graph: Graph, match: Match) -> None:
    operands = [read.node for read in (match.q, match.k, match.v)]
    dtypes = {dtype_of(node) for node in operands}
    devices = {node.meta["example_value"].device.type for node in operands}
    casts = any(map(torch.is_autocast_enabled, devices)) or "enter_autocast" in map(_function, graph.nodes)
    if not all(dtype is not None and dtype.is_floating_point for dtype in dtypes) or (len(dtypes) > 1 and not casts):
        raise Miss("dtype", match.node)


def _root(node: Any) -> Any:
    """Return the tensor that a node may be a view of."""
    while isinstance(node, Node) and node.op in ("call_function", "call_method") and node.args:
        if not isinstance(source_of(node), Node) or (name_of(node) not in _VIEWS and not mutates(node)):
            break
        node = source_of(node)
    return node


def _function(node: Node) -> str:
    """Return the name of what a node calls, of whichever module."""
    return str(getattr(node.target, "__name__", "")).lstrip("_")
