"""What a rewrite finds in a graph, or why it can't be done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.fx import Graph, Node

from einops_fast.compiler.nest import Dims, Label


class Miss(Exception):
    """Why something isn't fused, and where; one of :data:`~einops_fast.compiler.report.REASONS`, or empty."""

    def __init__(self, reason: str, node: Node) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class Read(NamedTuple):
    """A tensor that is read in the nest."""

    node: Node  # the tensor
    dims: Dims  # what indexes it
    factor: float = 1.0  # what it is multiplied by
    copies: tuple[Node, ...] = ()  # nodes that are views or copies of it, by which the program reads it
    # tensors that are joined in its place, and the label that they are joined along
    parts: tuple[Read, ...] = ()
    joined: Label | None = None


class Inserted(NamedTuple):
    """What was put into a graph for a match."""

    results: Mapping[Node, Node]  # for each node of the match that others use, the node that takes its place
    pattern: str  # the call, for the report
    sizes: Mapping[str, int | str]  # extent of each axis of the pattern; of one that changes, its symbol
    saved: int | None = None  # bytes that needn't be written and read any more; `None` if that isn't known


class Match(ABC):
    """A part of a graph that something else can stand for."""

    node: Node  # its last node
    inner: Sequence[Node] = ()  # nodes between operands and outputs; they may have no other use
    reads: Sequence[Read] = ()  # the tensors that are read
    keeps_result = False  # whether gradients are made from what it gives, too

    @property
    def outputs(self) -> Sequence[Node]:
        """Nodes that others may use, in the order of the graph."""
        return [self.node]

    @abstractmethod
    def insert(self, graph: Graph) -> Inserted:
        """Put in what stands for it, where the graph is inserting; raise :class:`Miss` if that can't be done."""
