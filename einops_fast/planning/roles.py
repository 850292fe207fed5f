"""The roles of the axes of a pair: batch, row, column, contracted."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from einops_fast.planning.cost import Product
from einops_fast.planning.layout import Term

__all__ = ["Roles"]


@dataclass(eq=False)
class Roles:
    """The two terms of a pair and the role of every label. It is never changed.

    Attributes:
        left, right: the terms; ``left`` gives the rows of the result, ``right`` the columns.
        batch, rows, columns, contracted: the labels of each role, the first three as ``wanted`` has them.
        wanted: labels of the result in the order that suits whoever reads it.
        size_of: extent by label.
        product: the extent of each role.
    """

    left: Term
    right: Term
    batch: str
    rows: str
    columns: str
    contracted: str
    wanted: str
    size_of: dict[str, int]
    product: Product

    @classmethod
    def of(cls, left: Term, right: Term, keep: set[str], wanted: str) -> Roles:
        one, two = set(left.labels), set(right.labels)
        batch = "".join([label for label in wanted if label in one and label in two])
        rows = "".join([label for label in wanted if label not in two])
        columns = "".join([label for label in wanted if label not in one])
        contracted = "".join([label for label in left.labels if label in two and label not in keep])
        size_of = {axis.label: axis.size for axis in left.axes + right.axes}
        product = Product(*[prod([size_of[label] for label in each]) for each in (batch, rows, columns, contracted)])
        return cls(left, right, batch, rows, columns, contracted, wanted, size_of, product)

    def swapped(self) -> Roles:
        """The same product with the terms in the other order."""
        batch, m, n, k = self.product
        return Roles(
            self.right,
            self.left,
            self.batch,
            self.columns,
            self.rows,
            self.contracted,
            self.wanted,
            self.size_of,
            Product(batch, n, m, k),
        )

    def sizes(self, labels: str) -> tuple[int, ...]:
        return tuple([self.size_of[label] for label in labels])

    def size(self, labels: str) -> int:
        product = 1
        for label in labels:
            product *= self.size_of[label]
        return product

    @property
    def slots(self) -> tuple[int, int]:
        return self.left.slot, self.right.slot

    @property
    def lies_along_batch(self) -> bool:
        """Whether neighbours in either term, and so in the result, belong to neighbouring products of the batch."""
        fastest = self.left.fastest
        return bool(fastest) and fastest in self.batch and fastest == self.right.fastest
