"""Batches of tiny products, such as rotations ``nij,nj->ni``: multiplied and added up elementwise.

A GEMM takes as long for a matrix of 3 by 3 as for one of 16 by 16, and nothing can be fused with it. Inductor unrolls a
sum of a few elements, and fuses the products with what makes the operands and with what uses the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.contractions import Product, is_contraction, product_of
from einops_fast.compiler.layout import Layout, labels_of
from einops_fast.compiler.match import Inserted, Match, Read
from einops_fast.compiler.nest import Dims, Label, fresh
from einops_fast.compiler.nodes import dtype_of, name_of, shape_of

_MOST_SUMMED = 7
"""Elements of a sum that inductor unrolls: fewer than its ``unroll_reductions_threshold``."""

_MOST_ROWS, _MOST_COLUMNS = 8, 16
"""Rows or columns, whichever are fewer, and the others. With those of a sum, they say how often elements are read."""

_FEWEST = 256
"""Products in a batch."""


@dataclass
class SmallProduct(Match):
    """A batch of tiny products."""

    node: Node  # the contraction
    result: Dims  # what indexes it
    product: Product  # its operands

    @property
    def reads(self) -> list[Read]:  # type: ignore[override]
        return [Read(*operand) for operand in self.product.operands]

    def insert(self, graph: Graph) -> Inserted:
        """Put in a product of elements and a sum."""
        layout = Layout(graph, self.reads)
        order = [*labels_of(self.result), *self.product.summed]
        operands = [layout.laid_out(read) for read in self.reads]
        pattern = ", ".join([layout.spelled(labels) for _, labels in operands])
        one, other = [layout.permuted(node, labels, order) for node, labels in operands]
        node = graph.call_function(torch.mul, (one, other))
        if self.product.summed:
            node = graph.call_method("sum", (node, [-1 - at for at in range(len(self.product.summed))]))
        pattern += f" -> {layout.spelled(labels_of(self.result))}"
        return Inserted({self.node: layout.folded(node, self.result)}, pattern, layout.sizes())


def match_small_product(node: Node) -> SmallProduct | None:
    """Return the batch of tiny products that a node is; ``None`` if it is another one, or has sizes that change."""
    shape, dtype = shape_of(node), dtype_of(node)
    if shape is None or dtype is None or not dtype.is_floating_point:
        return None
    if not is_contraction(node) or name_of(node) == "sum":
        return None
    result = fresh(shape)
    product = product_of(node, result)
    if product is None or product.addend is not None or product.factor != 1:
        return None
    if any(dtype_of(each) != dtype for each, _ in product.operands):
        return None
    one, other = [labels_of(dims) for _, dims in product.operands]
    if not all(label.size.is_Integer for label in (*one, *other)):
        return None
    summed = set(product.summed)
    batch = [label for label in one if label in other and label not in summed]
    rows, columns = [[label for label in own if label not in summed and label not in batch] for own in (one, other)]
    fewer, more = sorted(map(_extent, (rows, columns)))
    small = _extent(product.summed) <= _MOST_SUMMED and fewer <= _MOST_ROWS and more <= _MOST_COLUMNS
    return SmallProduct(node, result, product) if small and _extent(batch) >= _FEWEST else None


def _extent(labels: Iterable[Label]) -> int:
    return prod([int(label.size) for label in labels])
