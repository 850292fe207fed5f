"""A sum of attentions to the same values, such as the difference of two, and the calls that are put in for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.attention_call import Attention
from einops_fast.compiler.match import Inserted, Match, Miss
from einops_fast.compiler.nodes import example_of


@dataclass
class AttentionSum(Match):
    """A sum of attentions to the same values."""

    parts: list[Attention]
    keeps_result = True

    def __post_init__(self) -> None:
        self.node = self.parts[0].node
        self.inner = [node for part in self.parts for node in part.inner]
        self.reads = [read for part in self.parts for read in part.reads]

    @property
    def outputs(self) -> list[Node]:
        return [self.node, *[log for part in self.parts for log, *_ in part.logs]]

    def insert(self, graph: Graph) -> Inserted:
        """Put in a call for each, and the sum of their results."""
        if not example_of(self.node).is_cuda and not all(part.is_deep() for part in self.parts):
            raise Miss("not worth it", self.node)  # a processor has more to multiply than to read
        inserted = [part.insert(graph) for part in self.parts]
        results = {old: new for each in inserted for old, new in each.results.items()}
        for each in inserted[:-1]:
            results[self.node] = graph.call_function(torch.add, (results[self.node], each.results[self.node]))
        patterns = "; ".join(dict.fromkeys([each.pattern for each in inserted]))
        saved = [each.saved for each in inserted if each.saved is not None]
        return Inserted(results, patterns, inserted[0].sizes, sum(saved) if len(saved) == len(inserted) else None)
