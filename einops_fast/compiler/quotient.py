"""A softmax that is normalized late: exponentials are multiplied with values, and the products divided by their sum."""

from __future__ import annotations

from typing import NamedTuple

from torch.fx import Node

from einops_fast.compiler.contractions import Product, is_contraction, product_of
from einops_fast.compiler.nest import Dims, expanded
from einops_fast.compiler.nodes import argument, axis_of, name_of, source_of
from einops_fast.compiler.softmax import Softmax, exponential_of, inverse_of
from einops_fast.compiler.views import broadcast, followed

__all__ = ["Quotient", "quotient_of"]


class Quotient(NamedTuple):
    """A product of exponentials with values, divided by the sum of the exponentials.

    Attributes:
        product: the contraction.
        softmax: what the exponentials become when they are divided.
        exponentials: the node.
        inner: nodes from the contraction to the quotient, and those of the sum.
    """

    product: Product
    softmax: Softmax
    exponentials: Node
    inner: tuple[Node, ...]


def quotient_of(node: Node, dims: Dims, right: bool) -> Quotient | None:
    """Return how a node is such a quotient, if its result is indexed by ``dims``; ``None`` if it is none.

    Args:
        node: any.
        dims: what indexes it.
        right: whether the exponentials are the second operand of the contraction.
    """
    inverse = inverse_of(node)
    if inverse is None or broadcast(dims, inverse[0]) != dims:
        return None
    divided = followed(inverse[0], dims, is_contraction)
    sums = broadcast(dims, inverse[1])
    total = None if sums is None else followed(inverse[1], sums, lambda each: name_of(each) == "sum")
    product = None if divided is None else product_of(divided[0], divided[1])
    if divided is None or total is None or product is None or not product.summed or len(product.operands) != 2:
        return None
    exponentials = followed(*product.operands[1 if right else 0], lambda each: name_of(each) == "exp")
    axis = axis_of(total[0])
    if exponentials is None or not isinstance(axis, int):
        return None
    rows = list(total[1])
    axis %= len(exponentials[1])
    if argument(total[0], 2, "keepdim", False) is True:
        rows.pop(axis)
    rows.insert(axis, product.summed)
    summed = followed(source_of(total[0]), tuple(rows), lambda each: each is exponentials[0])
    softmax = exponential_of(exponentials[0], axis, total[0])
    if summed is None or softmax is None or list(map(expanded, summed[1])) != list(map(expanded, exponentials[1])):
        return None
    inner = (node, *inverse[2], *divided[2], divided[0], *total[2], *summed[2])
    return Quotient(product, softmax, exponentials[0], inner)
