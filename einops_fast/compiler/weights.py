"""From the weights of an attention, as they multiply the values, to the softmaxes that they are a sum of.

A product is linear in the weights: what multiplies all weights of a row multiplies the result, and a sum of two is the
sum of two attentions, as differential attention has it.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

from torch.fx import Node

from einops_fast.compiler.attention_call import Softmaxed
from einops_fast.compiler.constants import constant_of, guarded, number_of, times_number
from einops_fast.compiler.gains import gain_of
from einops_fast.compiler.layout import labels_of
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded
from einops_fast.compiler.nodes import argument, name_of, source_of
from einops_fast.compiler.softmax import LAST_STEPS, Quotient, Softmax, softmax_of
from einops_fast.compiler.views import axis_without_last, broadcast, is_cast, seen_in_part, seen_through

_BETWEEN = frozenset(
    "dropout to type_as type float half bfloat16 double contiguous clone detach reshape flatten unflatten expand "
    "permute transpose t getattr movedim unsqueeze squeeze getitem masked_fill nan_to_num neg select narrow "
    "chunk split unbind linear conv2d".split()
)
"""What may be done to weights before they are multiplied with values, whether or not it can be fused."""

_Own = TypeVar("_Own", bound="WeightsReader")

_SUMS = ("add", "add_", "sub", "sub_")
_PRODUCTS = ("mul", "mul_", "div", "div_")
_MIXES = ("einsum", "linear", "conv2d", "matmul", "bmm")
"""Contractions, such as of the heads between the softmax and the values."""

_REASONS = {"getitem": "different offset", "reshape": "different numel", "flatten": "different numel"}


def leads_to_softmax(node: Any) -> bool:
    """Return whether a node is a softmax, or becomes one through dropout, casts, views, factors and sums."""
    known: dict[Node, bool] = {}

    def leads(each: Any) -> bool:
        if not isinstance(each, Node):
            return False
        if each not in known:
            known[each] = False
            name = name_of(each)
            if name in LAST_STEPS and softmax_of(each) is not None:
                known[each] = True
            elif name in _SUMS:
                known[each] = all(map(leads, each.all_input_nodes))
            elif name in (*_PRODUCTS, "einsum", "where"):
                known[each] = any(map(leads, each.all_input_nodes))
            elif name in _BETWEEN and each.args:
                known[each] = leads(source_of(each))
        return known[each]

    return leads(node)


class WeightsReader(Softmaxed):
    """Follows weights through the graph, from their product with the values on."""

    def __init__(self, keys: tuple[Label, ...]) -> None:
        super().__init__(keys)
        for label in keys:
            label.whole = True
        self.inner: list[Node] = []
        self.zeroed: list[tuple[Any, bool]] = []
        self.softmax: Softmax | None = None
        self.last: Node | None = None  # of the softmax
        self.with_sinks: int | None = None  # the axis along which the softmax has one more than the keys

    def begin_at(self, quotient: Quotient) -> None:
        """Begin at what normalizes the product with the values."""
        self.softmax, self.last = quotient.softmax, quotient.exponentials
        self.inner += quotient.inner

    def branch(self: _Own) -> _Own:
        """Return a reader that has come as far as this one."""
        other = copy(self)
        vars(other).update({name: list(value) for name, value in vars(self).items() if isinstance(value, list)})
        return other

    def terms(self: _Own, node: Node, dims: Dims) -> list[tuple[_Own, Dims]]:
        """Return a reader for each softmax that weights are a sum of, and what indexes its scores."""
        node, dims = self._to_softmax_or_sum(node, dims)
        if node is self.last:
            return [(self, dims)]
        if self.dropout_p:
            raise Miss("random numbers", node)  # the same ones for all terms
        sign = constant_of(guarded(argument(node, 2, "alpha", 1)))
        if sign is None:
            raise Miss("unsupported option", node)
        found = []
        for operand, times in ((source_of(node), 1.0), (argument(node, 1, "other"), sign)):
            if not isinstance(operand, Node) or broadcast(dims, operand) != dims:
                raise Miss("broadcast", node)
            reader = self.branch()
            reader.times.append(-times if times is sign and name_of(node).startswith("sub") else times)
            found += reader.terms(operand, dims)
        return found

    def _to_softmax_or_sum(self, node: Node, dims: Dims) -> tuple[Node, Dims]:
        while True:
            self.inner.append(node)
            name = name_of(node)
            if self.last is None and name in LAST_STEPS and (found := softmax_of(node)) is not None:
                self.softmax, self.last = found, node
            if self.softmax is not None and node is self.last:
                self._check_axis(self.softmax, node, dims)
                self.inner += self.softmax.inner
                return node, dims
            if self.with_sinks is not None and not is_cast(node) and name != "dropout":
                raise Miss("different offset", node)
            if name in _SUMS:
                return node, dims
            if name == "dropout":
                p = argument(node, 1, "p", 0.5)
                training = argument(node, 2, "training", argument(node, 2, "train", True))  # as torch.dropout has it
                if training not in (True, False) or number_of(p) is None or (training and p and self.dropout_p):
                    raise Miss("random numbers", node)
                self.dropout_p = p if training else self.dropout_p
                node = source_of(node)
            elif name == "masked_fill" and constant_of(argument(node, 2, "value")) == 0:
                self._zero(argument(node, 1, "mask"), dims)
                node = source_of(node)
            elif name == "neg":
                self.times.append(-1.0)
                node = source_of(node)
            elif name in _PRODUCTS:
                node = self._factor(node, dims)
            elif is_cast(node):
                node = source_of(node)
            elif (axis := axis_without_last(node, dims)) is not None:
                if expanded(dims[axis]) != self.keys:
                    raise Miss("different offset", node)
                self.with_sinks, node = axis, source_of(node)
            else:
                node, dims = self.through(node, dims, "different loop order" if name in _MIXES else "")

    def _check_axis(self, softmax: Softmax, node: Node, dims: Dims) -> None:
        axis = softmax.axis
        along = expanded(dims[axis % len(dims)]) if isinstance(axis, int) else ()
        if along != self.keys:
            parted = any(label.at is not None for label in along)
            raise Miss("different offset" if parted else "different loop order", node)
        if self.with_sinks not in (None, axis % len(dims)):
            raise Miss("different offset", node)

    def _zero(self, mask: Any, dims: Dims) -> None:
        """Note weights that are set to zero: all of a row, or those of a mask that the scores have, too."""
        own = broadcast(dims, mask)
        if own is not None and not {*labels_of(own)} & {*self.keys}:
            self.times.append(Read(mask, own))
        else:
            self.zeroed.append(polarity(mask, False))

    def _factor(self, node: Node, dims: Dims) -> Node:
        """Note what multiplies all weights of a row, and return these."""
        scaled = times_number(node)
        if scaled is not None:
            self.times.append(scaled[1])
            return scaled[0]
        weights, gain = gain_of(node, dims, self.keys)
        self.times.append(gain)
        return weights

    def through(self, node: Any, dims: Dims, reason: str = "") -> tuple[Node, Dims]:
        """Return what a node is a view, or a part, of, and what indexes that."""
        seen = seen_through(node, dims) if isinstance(node, Node) else None
        if seen is not None:
            return seen
        part = seen_in_part(node, dims) if isinstance(node, Node) else None
        if part is None:
            raise Miss(reason or _REASONS.get(name_of(node), "unsupported option"), node)
        self.inner += part[2]
        return part[:2]


def polarity(mask: Any, seen: bool) -> tuple[Any, bool]:
    """Return what a mask is the negation of, if it is one, and whether True there stands for a key that is seen."""
    while name_of(mask) == "not":
        mask, seen = source_of(mask), not seen
    return mask, seen
