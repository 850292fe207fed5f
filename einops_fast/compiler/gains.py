"""What all scores of a row are multiplied by, such as a temperature of each head: the queries get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.fx import Node

from einops_fast.compiler.constants import guarded, number_of
from einops_fast.compiler.layout import Layout, labels_of
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims, Label
from einops_fast.compiler.nodes import argument, dtype_of, name_of, source_of
from einops_fast.compiler.views import broadcast


class Gain(NamedTuple):
    """A tensor, or a number that changes, that multiplies all scores of a row."""

    read: Read
    divides: bool  # whether they are divided by it
    dtype: torch.dtype | None  # of the tensor; beside a number, of the scores


def gain_of(node: Node, dims: Dims, keys: Sequence[Label]) -> tuple[Node, Gain]:
    """Return the scores that a node multiplies or divides by a tensor or a number that changes, and that."""
    divides = name_of(node).startswith("div")
    one, other = source_of(node), argument(node, 1, "other")
    ways = [(one, other)] if divides else [(one, other), (other, one)]
    for scores, gain in ways if argument(node, 2, "rounding_mode") is None else ():
        plain = number_of(gain) is not None
        dtype, own = dtype_of(node if plain else gain), () if plain else broadcast(dims, gain)
        if own is None or dtype is None or not dtype.is_floating_point or broadcast(dims, scores) != dims:
            continue
        if not {*labels_of(own)} & {*keys}:
            return scores, Gain(Read(gain, own), divides, dtype)
    raise Miss("unsupported option", node)


def parted(gains: Sequence[Gain], dtype: torch.dtype | None) -> tuple[list[Gain], float]:
    """Return the gains that queries of a dtype are multiplied by, and the product of those that scores are."""
    kept, factor = list[Gain](), 1.0
    for gain in gains:
        if dtype not in (torch.float16, torch.bfloat16) or gain.dtype == dtype:
            kept.append(gain)
            continue
        # What scores have room for, halves may not, and gradients have fewer digits.
        number = guarded(gain.read.node)
        if not isinstance(number, float) or not (number or not gain.divides):
            raise Miss("dtype", gain.read.node)
        factor *= 1.0 / number if gain.divides else number
    return kept, factor


def multiplied(layout: Layout, node: Node, labels: Sequence[Label], gain: Gain) -> Node:
    """Put in the product, or the quotient, of a tensor of these labels and a gain."""
    function = torch.div if gain.divides else torch.mul
    return layout.graph.call_function(function, (node, layout.broadcast(gain.read, labels)))


def gained(layout: Layout, q: Read, gains: Sequence[Gain]) -> tuple[Node, list[Label]]:
    """Put in queries that are multiplied by the gains of their scores; return them and their labels."""
    node, labels = layout.laid_out(q)
    for gain in gains:
        node = multiplied(layout, node, labels, gain)
    return (layout.graph.call_method("to", (node, dtype_of(q.node))) if gains else node), labels
