"""What must hold for a match to be fused: nobody needs what goes, nothing is written to meanwhile, dtypes agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.match import Match, Miss, Read
from einops_fast.compiler.memory import storages_of, written_by
from einops_fast.compiler.nodes import dtype_of

__all__ = ["check", "check_dtypes"]

_SETTINGS = ("set_grad_enabled", "enter_autocast", "exit_autocast", "enter_inference_mode", "exit_inference_mode")
"""What changes how the nodes after it are computed."""


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
    _check_order(graph, match)


def _check_order(graph: Graph, match: Match) -> None:
    """Raise if a tensor is written to after it could be read, or a setting changes between the nodes that are fused."""
    inner, storages, began = {*match.inner, *match.outputs}, set[int](), False
    for node in graph.nodes:
        if node is match.node:
            return
        began = began or node in inner
        if node not in inner and storages & storages_of(written_by(node)):
            raise Miss("mutation", node)
        for read in match.reads:
            if read.node is node:
                storages |= storages_of([node, *read.copies])
        if began and _function(node) in _SETTINGS:
            raise Miss("unsupported option", node)


def check_dtypes(graph: Graph, reads: Sequence[Read], node: Node) -> None:
    """Raise unless all tensors are of one dtype of floating point, or autocast sees to that."""
    operands = [read.node for read in reads]
    dtypes = {dtype_of(each) for each in operands}
    devices = {each.meta["example_value"].device.type for each in operands}
    casts = any(map(torch.is_autocast_enabled, devices)) or "enter_autocast" in map(_function, graph.nodes)
    if not all(dtype is not None and dtype.is_floating_point for dtype in dtypes) or (len(dtypes) > 1 and not casts):
        raise Miss("dtype", node)


def _function(node: Node) -> str:
    """Return the name of what a node calls, of whichever module."""
    return str(getattr(node.target, "__name__", "")).lstrip("_")
