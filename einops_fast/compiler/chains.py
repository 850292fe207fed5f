"""Chains of contractions, such as ``a @ b @ c`` or ``x @ (a @ b)``, in the order that takes the fewest operations.

What is counted are multiplications of the products and of their gradients, and elements that are read and written.
Torch's own compiler gets the contractions one by one: what is around them is fused with them as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import prod
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from einops_fast.compiler.constants import times_number
from einops_fast.compiler.contractions import Product, product_of
from einops_fast.compiler.layout import Layout, labels_of
from einops_fast.compiler.match import Inserted, Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, fresh
from einops_fast.compiler.nodes import dtype_of, name_of, shape_of
from einops_fast.compiler.safety import is_differentiated
from einops_fast.compiler.views import seen_through

_CLEARLY = sympy.Rational(6, 5)
"""A new order has at most this fraction of the program's multiplications."""

_PER_ELEMENT = 128
"""Multiplications in the time that it takes to read or write an element."""

_MOST_OPERANDS = 8

_GUESSES = (1 << 10, 1 << 6, 1 << 16)
"""Extents of what changes, for which the best order is searched. It then has to be better for all."""

Tree = int | tuple[Any, ...]
"""Operands by number, and what is contracted with each other."""


@dataclass
class Chain(Match):
    """Contractions whose results only the next one uses."""

    node: Node  # the last of them
    result: Dims  # what indexes it
    reads: list[Read] = field(default_factory=list)  # the operands
    order: Tree = ()  # the program's
    factor: float = 1.0  # what the result is multiplied by
    addend: tuple[Node, float] | None = None  # what is added to it, and what that is multiplied by
    inner: list[Node] = field(default_factory=list)  # nodes between operands and result

    def insert(self, graph: Graph) -> Inserted:
        """Put in contractions of two tensors each."""
        prices = _Prices(self)
        best = prices.best()
        if best is None:
            raise Miss("", self.node)
        layout = Layout(graph, self.reads)
        for read in self.reads:
            layout.spelled(labels_of(read.dims))  # letters in the program's order
        smallest = min(range(len(self.reads)), key=lambda at: prices.guessed(prices.elements(frozenset([at]))))

        def contracted(order: Tree, wanted: Sequence[Label] | None) -> tuple[Node, list[Label]]:
            if isinstance(order, int):
                node, labels = layout.laid_out(self.reads[order])
                if order == smallest and self.factor != 1:
                    node = graph.call_function(torch.mul, (node, self.factor))
                return node, labels
            (left, one), (right, other) = [contracted(each, None) for each in order]
            kept = prices.kept(_operands(order))
            labels = [label for label in dict.fromkeys([*one, *other]) if label in kept]
            return _contracted(layout, (left, one), (right, other), list(wanted or labels))

        node, _ = contracted(best, labels_of(self.result))
        node = layout.folded(node, self.result)
        if self.addend is not None:
            node = graph.call_function(torch.add, (node, self.addend[0]), {"alpha": self.addend[1]})
        pattern = f"{prices.spelled(best, layout)} -> {layout.spelled(labels_of(self.result))}"
        return Inserted({self.node: node}, pattern, layout.sizes())


def match_chain(node: Node) -> Chain | None:
    """Return the chain of contractions that ends at a node, if it has three operands or more."""
    shape, dtype = shape_of(node), dtype_of(node)
    if shape is None or dtype is None or not dtype.is_floating_point:
        return None
    found = Chain(node, fresh(shape))
    product = product_of(node, found.result)
    if product is None:
        return None
    found.addend, found.factor = product.addend, product.factor
    found.order = _collected(found, product)
    alike = all(dtype_of(read.node) == dtype for read in found.reads)
    held = {label for read in found.reads for label in labels_of(read.dims)}
    whole = held.issuperset(labels_of(found.result))  # not so where the result of a contraction is repeated
    return found if alike and whole and 3 <= len(found.reads) <= _MOST_OPERANDS else None


def _collected(chain: Chain, product: Product) -> Tree:
    """Add the operands of a product to a chain, or those of the contractions that they are."""
    chain.inner += product.inner
    order: list[Tree] = []
    for node, dims in product.operands:
        factor, way, at, own, inner = 1.0, list[Node](), node, dims, None
        while dtype_of(at) == dtype_of(chain.node) and len(at.users) == 1:
            way.append(at)
            inner = product_of(at, own)
            if inner is not None:
                break
            scaled = times_number(at) if name_of(at) in ("mul", "div") else None
            if scaled is not None and shape_of(scaled[0]) == shape_of(at):
                at, factor = scaled[0], factor * scaled[1]
                continue
            seen = seen_through(at, own)
            if seen is None:
                break
            at, own = seen
        if inner is None or inner.addend is not None or len(at.users) != 1:
            order.append(len(chain.reads))
            chain.reads.append(Read(node, dims))
            continue
        chain.factor *= factor * inner.factor
        chain.inner += way
        order.append(_collected(chain, inner))
    return tuple(order)


def _contracted(
    layout: Layout, left: tuple[Node, list[Label]], right: tuple[Node, list[Label]], wanted: list[Label]
) -> tuple[Node, list[Label]]:
    """Put in the contraction of two tensors; as a product with a matrix, if it is one."""
    (one, of_one), (other, of_other) = left, right
    shared = [label for label in of_one if label in of_other]
    if len(shared) == 1 and len(of_other) == 2 and of_one[-1] is shared[0] and shared[0] not in wanted:
        matrix = other if of_other[0] is shared[0] else layout.graph.call_method("t", (other,))
        (column,) = [label for label in of_other if label is not shared[0]]
        if wanted == [*of_one[:-1], column]:
            return layout.graph.call_function(torch.matmul, (one, matrix)), wanted
    terms = ["".join(map(layout.name, labels)) for labels in (of_one, of_other, wanted)]
    return layout.graph.call_function(torch.einsum, (f"{terms[0]},{terms[1]}->{terms[2]}", one, other)), wanted


def _operands(order: Tree) -> frozenset[int]:
    return frozenset([order]) if isinstance(order, int) else frozenset().union(*map(_operands, order))


class _Prices:
    """What orders of one chain take."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.labels = [frozenset(labels_of(read.dims)) for read in chain.reads]
        self.gradients = list(map(is_differentiated, chain.reads))
        self.result = frozenset(labels_of(chain.result))
        self.guess: dict[Any, int] = {}
        self.kept = cache(self._kept)
        self.elements = cache(self._elements)

    def best(self) -> Tree | None:
        """Return an order that is clearly better than the program's, whatever changes; ``None`` if there is none."""
        sizes = [label.size for labels in self.labels for label in labels]
        symbols = sorted({symbol for size in sizes for symbol in size.free_symbols}, key=str)
        for guess in _GUESSES if symbols else _GUESSES[:1]:
            self.guess = dict.fromkeys(symbols, guess)
            own = self._in_pairs(self.chain.order)
            most = [self.elements(each) for each in [*self._results(own), *map(_operands, range(len(self.labels)))]]
            found = self._joined({frozenset([at]): at for at in range(len(self.labels))})
            before, after = self._price(own), self._price(found)
            largest = [self.elements(each) for each in self._results(found)]
            small = all(any(_is_never_less(one, other) for one in most) for other in largest)
            if small and _is_never_less(before[0], _CLEARLY * after[0]) and _is_never_less(sum(before), sum(after)):
                return found
        return None

    def guessed(self, size: Any) -> int:
        """Return a number for a size."""
        return int(sympy.sympify(size).subs(self.guess))

    def spelled(self, order: Tree, layout: Layout) -> str:
        """Return the operands of an order, with those in brackets that are contracted before the others."""
        if isinstance(order, int):
            return layout.spelled(labels_of(self.chain.reads[order].dims))
        return ", ".join([f"({self.spelled(each, layout)})" if isinstance(each, tuple) else self.spelled(each, layout)
                          for each in order])  # fmt: skip

    def _kept(self, operands: frozenset[int]) -> frozenset[Label]:
        """Return the labels of what some operands are contracted to."""
        if len(operands) == 1:
            return self.labels[next(iter(operands))]
        others = self.result.union(*[labels for at, labels in enumerate(self.labels) if at not in operands])
        return frozenset().union(*[self.labels[at] for at in operands]) & others

    def _elements(self, operands: frozenset[int]) -> Any:
        return _product(self.kept(operands))

    def _step(self, one: frozenset[int], other: frozenset[int]) -> tuple[Any, Any]:
        """Return the multiplications of a contraction and of its gradients, and the price of what they move."""
        times = 1 + sum(any(self.gradients[at] for at in each) for each in (one, other))
        moved = self.elements(one) + self.elements(other) + self.elements(one | other)
        return times * _product(self.kept(one) | self.kept(other)), times * _PER_ELEMENT * moved

    def _price(self, order: Tree) -> tuple[Any, Any]:
        if isinstance(order, int):
            return 0, 0
        steps = [self._step(*map(_operands, order)), *map(self._price, order)]
        return sum([step[0] for step in steps]), sum([step[1] for step in steps])

    def _results(self, order: Tree) -> Iterator[frozenset[int]]:
        if not isinstance(order, int):
            yield _operands(order)
            for each in order:
                yield from self._results(each)

    def _in_pairs(self, order: Tree) -> Tree:
        """Return the program's order, with contractions of more than two in the best one: so does torch."""
        if isinstance(order, int):
            return order
        parts = [self._in_pairs(each) for each in order]
        return parts[0] if len(parts) == 1 else self._joined({_operands(part): part for part in parts})

    def _joined(self, parts: dict[frozenset[int], Tree]) -> Tree:
        """Return the order of least price in which parts are contracted by pairs."""

        @cache
        def best(chosen: frozenset[frozenset[int]]) -> tuple[int, Tree]:
            first, *rest = sorted(chosen, key=min)
            if not rest:
                return 0, parts[first]
            found: list[tuple[int, Tree]] = []
            for more in [each for count in range(len(rest)) for each in combinations(rest, count)]:
                left = frozenset([first, *more])
                one, other = [frozenset().union(*each) for each in (left, chosen - left)]
                (price, before), (added, after) = best(left), best(chosen - left)
                price += added + self.guessed(sum(self._step(one, other)))
                found.append((price, (before, after)))
            return min(found, key=lambda each: each[0])

        return best(frozenset(parts))[1]


def _product(labels: frozenset[Label]) -> Any:
    return prod([label.size for label in labels], start=sympy.Integer(1))


def _is_never_less(one: Any, other: Any) -> bool:
    """Return whether a polynomial of sizes is at least another one, whatever the sizes are."""
    difference = sympy.expand(one - other)
    if not difference.free_symbols:
        return bool(difference >= 0)
    terms = difference.as_poly(*sorted(difference.free_symbols, key=str))
    return terms is not None and all(coefficient >= 0 for coefficient in terms.coeffs())
