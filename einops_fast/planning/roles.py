"""The roles of the axes of a pair: batch, row, column, contracted."""

from __future__ import annotations

from collections.abc import Mapping

from einops_fast.planning.cost import Product
from einops_fast.planning.layout import Term


class Roles:
    """The two terms of a pair and the role of every label. It is never changed.

    Attributes:
        left, right: the terms; ``left`` gives the rows of the result, ``right`` the columns.
        batch, rows, columns, contracted: the labels of each role, the first three as ``wanted`` has them.
        wanted: labels of the result in the order that suits whoever reads it.
        sizes: extent by label.
        product: the extent of each role.
    """

    __slots__ = ("batch", "columns", "contracted", "left", "product", "right", "rows", "sizes", "wanted")

    def __init__(self, left: Term, right: Term, wanted: str, sizes: Mapping[str, int]) -> None:
        one, two = left.labels, right.labels
        batch = rows = columns = contracted = ""
        stack = m = n = k = 1
        for label in wanted:
            if label not in two:
                rows += label
                m *= sizes[label]
            elif label in one:
                batch += label
                stack *= sizes[label]
            else:
                columns += label
                n *= sizes[label]
        for label in one:
            if label in two and label not in wanted:
                contracted += label
                k *= sizes[label]
        self.left, self.right, self.wanted, self.sizes = left, right, wanted, sizes
        self.batch, self.rows, self.columns, self.contracted = batch, rows, columns, contracted
        self.product = Product(stack, m, n, k)

    def swapped(self) -> Roles:
        """The same product with the terms in the other order."""
        other = Roles.__new__(Roles)
        other.left, other.right, other.wanted, other.sizes = self.right, self.left, self.wanted, self.sizes
        other.batch, other.contracted = self.batch, self.contracted
        other.rows, other.columns = self.columns, self.rows
        batch, m, n, k = self.product
        other.product = Product(batch, n, m, k)
        return other

    def shape(self, labels: str) -> tuple[int, ...]:
        sizes = self.sizes
        return tuple([sizes[label] for label in labels])

    def size(self, labels: str) -> int:
        product = 1
        for label in labels:
            product *= self.sizes[label]
        return product

    @property
    def slots(self) -> tuple[int, int]:
        return self.left.slot, self.right.slot

    @property
    def lies_along_batch(self) -> bool:
        """Whether neighbours in either term, and so in the result, belong to neighbouring products of the batch."""
        if not self.batch:
            return False
        fastest = self.left.fastest
        return bool(fastest) and fastest in self.batch and fastest == self.right.fastest
