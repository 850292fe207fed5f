"""Nodes that call einsum, torch's with an equation or with lists of numbers, or ours: one reader for all."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from torch.fx import Node

from einops_fast.compiler.nodes import shape_of
from einops_fast.errors import EinsumError
from einops_fast.planning.notation import Subscripts, parse

__all__ = ["read_einsum"]


def read_einsum(node: Node) -> tuple[Subscripts, tuple[Node, ...]] | None:
    """Return the subscripts of an einsum and its operands; ``None`` where they aren't known, or an axis is repeated."""
    given = list(node.args)
    if len(given) > 1 and isinstance(given[1], str):
        given[:2] = given[1::-1]  # our operator has the tensors first
    if given and isinstance(given[0], str):
        equation, operands = given[0], given[1:]
        if operands and isinstance(operands[0], (tuple, list)):
            operands = list(operands[0])
    else:
        equation, operands = _in_letters(given[1::2]), given[: len(given) // 2 * 2 : 2]
        if len(given) % 2:
            equation += "->" + _in_letters(given[-1:])
    nodes = tuple([each for each in operands if isinstance(each, Node)])
    ranks = tuple([len(shape_of(node) or ()) for node in nodes])
    try:
        read = parse(equation, ranks, words=False)
    except EinsumError:
        return None
    if len(nodes) < len(operands) or any(len(set(labels)) < len(labels) for labels in read.inputs):
        return None
    return read, nodes


def _in_letters(terms: Sequence[Any]) -> str:
    return ",".join(["".join(["..." if at is ... else ascii_letters[at] for at in term]) for term in terms])
