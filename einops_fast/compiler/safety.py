"""What must hold for a match to be fused: nobody needs what goes, nothing is written to meanwhile, dtypes agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.match import Match, Miss, Read
from einops_fast.compiler.memory import is_written, storages_of, written_by
from einops_fast.compiler.nodes import dtype_of, example_of


def check(graph: Graph, match: Match) -> None:
    """Raise :class:`Miss` unless a match can be fused."""
    outputs = match.outputs
    inner = {*match.inner, *outputs}
    for node in match.inner:
        if node in outputs:
            continue
        others = [user for user in node.users if user not in inner]
        if others:
            raise Miss("mutation" if any(map(written_by, others)) else "value used elsewhere", node)
    if match.keeps_result and any(map(is_written, outputs)) and any(map(is_differentiated, match.reads)):
        raise Miss("mutation", match.node)
    _check_order(graph, match)
    settings = _settings(graph)
    copies = [node for read in match.reads for node in read.copies]
    changed = [node for node in (*inner, *copies) if settings[node] != settings[match.node]]
    if changed:
        raise Miss("unsupported option", changed[0])


def _check_order(graph: Graph, match: Match) -> None:
    """Raise if a tensor is written to after the program has begun to read it."""
    inner, storages = {*match.inner, *match.outputs}, set[int]()
    for node in graph.nodes:
        if node not in inner and storages & storages_of(written_by(node)):
            raise Miss("mutation", node)
        for read in match.reads:
            if read.node in node.all_input_nodes and (node in inner or node in read.copies):
                storages |= storages_of([read.node, *read.copies])
        if node is match.node:
            return


def _settings(graph: Graph) -> dict[Node, tuple[bool, frozenset[Node]]]:
    """Return what each node is computed in: whether gradients are switched on, and the blocks that were entered."""
    gradients, blocks = torch.is_grad_enabled(), frozenset[Node]()
    found = {}
    for node in graph.nodes:
        name = _function(node)
        if name == "set_grad_enabled":
            gradients = bool(node.args[0])
        elif name in ("enter_autocast", "enter_inference_mode"):
            blocks |= {node}
        elif name in ("exit_autocast", "exit_inference_mode"):
            blocks -= {*node.all_input_nodes}
        found[node] = gradients, blocks
    return found


def is_differentiated(read: Read) -> bool:
    """Return whether gradients are made with respect to what is read."""
    return bool(example_of(read.node).requires_grad)


def check_dtypes(graph: Graph, reads: Sequence[Read], node: Node) -> None:
    """Raise unless all tensors are of one dtype of floating point, or autocast sees to that."""
    operands = [read.node for read in reads]
    dtypes = {dtype_of(each) for each in operands}
    devices = {example_of(each).device.type for each in operands}
    casts = any(map(torch.is_autocast_enabled, devices)) or "enter_autocast" in map(_function, graph.nodes)
    if not all(dtype is not None and dtype.is_floating_point for dtype in dtypes) or (len(dtypes) > 1 and not casts):
        raise Miss("dtype", node)


def _function(node: Node) -> str:
    """Return the name of what a node calls, of whichever module."""
    return str(getattr(node.target, "__name__", "")).lstrip("_")
