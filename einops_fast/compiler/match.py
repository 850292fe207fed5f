"""What a match is: an attention as it was found in a graph, or why one can't be fused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch.fx import Node

from einops_fast.compiler.nest import Dims, Label

__all__ = ["Match", "Miss", "Read"]


class Miss(Exception):
    """Why something isn't fused.

    Attributes:
        reason: of :data:`einops_fast.compiler.report.REASONS`.
        node: where that is.
    """

    def __init__(self, reason: str, node: Node) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class Read(NamedTuple):
    """A tensor that is read in the nest.

    Attributes:
        node: the tensor.
        dims: what indexes it.
        factor: what it is multiplied by.
        copies: nodes that are views or copies of it, by which the program reads it.
    """

    node: Node
    dims: Dims
    factor: float = 1.0
    copies: tuple[Node, ...] = ()


@dataclass
class Match:
    """One attention as it was found.

    Attributes:
        node: the product with the values.
        result: what indexes it.
        q, k, v: the operands, as they lie in memory.
        keys: the label that is summed over.
        features: the label that q and k are multiplied along.
        scale: of the products of q and k.
        softcap: as in :func:`einops_fast.attention`.
        dropout_p: of the weights.
        biases: what is added to the scores.
        masks: what hides keys; each with whether True stands for a key that is seen.
        empty: what the program has in rows without a key: ``'nan'``, ``'mean'``, or nothing where that can't be.
        inner: nodes between the operands and the result; they may have no other use.
    """

    node: Node
    result: Dims
    q: Read
    k: Read
    v: Read
    keys: tuple[Label, ...]
    features: tuple[Label, ...]
    scale: float
    softcap: float
    dropout_p: float
    biases: list[Read]
    masks: list[tuple[Read, bool]]
    empty: str
    inner: list[Node] = field(default_factory=list)

    @property
    def reads(self) -> list[Read]:
        """All tensors that are read."""
        return [self.q, self.k, self.v, *self.biases, *[mask for mask, _ in self.masks]]
