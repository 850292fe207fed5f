"""Tensors that all scores of a row are multiplied by: such as a temperature of each head. The queries get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.fx import Node

from einops_fast.compiler.layout import Layout, labels_of
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims, Label
from einops_fast.compiler.nodes import argument, dtype_of, name_of, source_of
from einops_fast.compiler.views import broadcast


class Gain(NamedTuple):
    """A tensor that multiplies all scores of a row."""

    read: Read  # the tensor
    divides: bool  # whether they are divided by it


def gain_of(node: Node, dims: Dims, keys: Sequence[Label]) -> tuple[Node, Gain]:
    """Return the scores that a node multiplies or divides by a tensor, and that tensor."""
    divides = name_of(node).startswith("div")
    one, other = source_of(node), argument(node, 1, "other")
    ways = [(one, other)] if divides else [(one, other), (other, one)]
    for scores, gain in ways if argument(node, 2, "rounding_mode") is None else ():
        dtype, own = dtype_of(gain), broadcast(dims, gain)
        if own is None or dtype is None or not dtype.is_floating_point or broadcast(dims, scores) != dims:
            continue
        if not {*labels_of(own)} & {*keys}:
            return scores, Gain(Read(gain, own), divides)
    raise Miss("unsupported option", node)


def gained(layout: Layout, q: Read, gains: Sequence[Gain]) -> tuple[Node, list[Label]]:
    """Put in queries that are multiplied by the gains of their scores; return them and their labels."""
    node, labels = layout.laid_out(q)
    for gain in gains:
        factor, own = layout.laid_out(gain.read)
        if not {*own} <= {*labels}:
            raise Miss("broadcast", gain.read.node)
        if dtype_of(q.node) in (torch.float16, torch.bfloat16) and dtype_of(gain.read.node) != dtype_of(q.node):
            raise Miss(
                "dtype", gain.read.node
            )  # what scores have room for, halves may not, and gradients have fewer digits
        function = torch.div if gain.divides else torch.mul
        node = layout.graph.call_function(function, (node, layout.permuted(factor, own, labels)))
    return (layout.graph.call_method("to", (node, dtype_of(q.node))) if gains else node), labels
