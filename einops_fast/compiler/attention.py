"""Attention in the graph of a program: from the product with the values back to queries, keys, masks and biases.

The match begins at a contraction whose one operand leads to a softmax over what is summed, through dropout, casts and
views. From there it goes on through scales, masks, biases and a softcap to a contraction again. What its operands are
views of are queries and keys; their labels make the pattern.

**Rows without a key.** Our attention gives zeros there. Written out, a mask of ``-inf`` gives NaN, and a mask of a
large negative number the mean of all values: ``Match.empty`` says which, where that can't be ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.contractions import Product, is_contraction, product_of
from einops_fast.compiler.match import Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded, fresh
from einops_fast.compiler.nodes import argument, constant_of, dtype_of, name_of, shape_of, source_of
from einops_fast.compiler.views import broadcast, is_cast, seen_through

__all__ = ["match_attention"]

_BETWEEN = frozenset(
    "dropout to type_as type float half bfloat16 double contiguous clone detach reshape flatten unflatten expand "
    "permute transpose t movedim unsqueeze squeeze getitem einsum mul div masked_fill where nan_to_num".split()
)
"""What may be done to weights before they are multiplied with values, whether or not it can be fused."""

_BY_HAND = ("div", "mul", "exp")
"""What a softmax that is written out ends with."""

_REASONS = {"getitem": "different offset", "reshape": "different numel", "flatten": "different numel"}

_LARGE = -1e4
"""A number that hides a key if it is in the place of its score, or less than that."""


def match_attention(node: Node) -> Match | None:
    """Return the attention whose product with the values a node is; ``None`` if there is no softmax before it.

    Raises:
        Miss: there is one, but it can't be fused.
    """
    shape = shape_of(node)
    if shape is None or not is_contraction(node):
        return None
    missed: Miss | None = None
    for right in (False, True):
        for whole in (False, True):
            result = fresh(shape)
            product = product_of(node, result)
            if product is None or not product.summed:
                continue
            weights, values = (product.right, product.left) if right else (product.left, product.right)
            reader = _Reader(product.summed, whole)
            try:
                if reader.leads_to_softmax(*weights):
                    return reader.match(node, result, product, weights, values)
            except Miss as miss:
                missed = missed or miss
    if missed is not None and missed.reason:
        raise missed
    return None


class _Reader:
    """Follows one match through the graph."""

    def __init__(self, keys: tuple[Label, ...], whole: bool) -> None:
        self.keys, self.whole = keys, whole
        for label in keys:
            label.whole = True
        self.inner: list[Node] = []
        self.biases: list[Read] = []
        self.masks: list[tuple[Read, bool]] = []
        self.fills: list[float] = []
        self.zeroed: list[tuple[Any, bool]] = []
        self.dropout_p = self.softcap = 0.0
        self.features: tuple[Label, ...] = ()

    def match(
        self, node: Node, result: Dims, product: Product, weights: tuple[Node, Dims], values: tuple[Node, Dims]
    ) -> Match:
        held = {label for dim in values[1] for label in dim}
        for dim in weights[1]:
            for label in dim:
                label.whole = label.whole or (self.whole and label not in held)
        for dim in values[1]:
            for label in dim:
                label.whole = label.whole or label not in {each for own in weights[1] for each in own}
        if product.addend is not None or product.factor != 1:
            raise Miss("unsupported option", node)
        self.inner += product.inner
        v = self.operand(*values)
        scores, dims = self.weights(*weights)
        q, k, scale = self.scores(scores, dims, 1.0)
        empty = ""
        hidden = [_polarity(mask.node, seen) for mask, seen in self.masks]
        if self.zeroed and sorted(map(hash, self.zeroed)) != sorted(map(hash, hidden)):
            raise Miss("unsupported option", node)  # weights that the others of a row don't make up for
        if (self.masks or self.biases) and not self.zeroed:
            empty = "mean" if self.fills and max(map(abs, self.fills)) < math.inf else "nan"
        return Match(
            node, result, q, k, v, self.keys, self.features, scale, self.softcap, self.dropout_p,
            self.biases, self.masks, empty, self.inner,
        )  # fmt: skip

    def leads_to_softmax(self, node: Any, dims: Dims) -> bool:
        """Return whether a node is a softmax, or becomes one through dropout, casts and views."""
        while isinstance(node, Node):
            name = name_of(node)
            if name in ("softmax", "_softmax") or (name in _BY_HAND and self._by_hand(node) is not None):
                return True
            if name not in _BETWEEN or not node.args:
                return False
            node = source_of(node)
        return False

    # ---- from the weights to the scores

    def weights(self, node: Any, dims: Dims) -> tuple[Node, Dims]:
        """Return what the softmax is taken of."""
        while True:
            self.inner.append(node)
            name = name_of(node)
            if name in ("softmax", "_softmax"):
                axis = argument(node, 1, "dim")
                return source_of(node), self._over_keys(node, dims, axis)
            if name in _BY_HAND and (by_hand := self._by_hand(node)) is not None:
                scores, axis, inner = by_hand
                self.inner += inner
                return scores, self._over_keys(node, dims, axis)
            if name == "dropout":
                p, training = constant_of(argument(node, 1, "p", 0.5)), argument(node, 2, "training", True)
                if p is None or training not in (True, False) or (p and self.dropout_p):
                    raise Miss("random numbers", node)
                self.dropout_p = p if training else self.dropout_p
                node = source_of(node)
            elif name == "masked_fill" and constant_of(argument(node, 2, "value")) == 0:
                self.zeroed.append(_polarity(argument(node, 1, "mask"), False))
                node = source_of(node)
            elif is_cast(node):
                node = source_of(node)
            else:
                node, dims = self._through(node, dims)

    def _over_keys(self, node: Node, dims: Dims, axis: Any) -> Dims:
        if not isinstance(axis, int) or expanded(dims[axis % len(dims)]) != self.keys:
            raise Miss("different loop order", node)
        return dims

    def _by_hand(self, node: Node) -> tuple[Node, int, list[Node]] | None:
        """Return the scores, the axis and the nodes of a softmax that is written with exponentials."""
        if name_of(node) == "exp":  # exp(x - logsumexp(x))
            difference = source_of(node)
            if name_of(difference) == "log_softmax":
                return source_of(difference), argument(difference, 1, "dim"), [difference]
            if name_of(difference) != "sub" or name_of(argument(difference, 1, "other")) != "logsumexp":
                return None
            scores, log = source_of(difference), argument(difference, 1, "other")
            keeps = argument(log, 2, "keepdim", False) is True
            return (scores, _axis(log), [difference, log]) if source_of(log) is scores and keeps else None
        weights, total = source_of(node), argument(node, 1, "other")
        inverse = []
        if name_of(node) == "mul":
            if name_of(total) != "reciprocal":
                return None
            inverse, total = [total], source_of(total)
        if name_of(weights) != "exp" or name_of(total) != "sum" or source_of(total) is not weights:
            return None
        axis, scores, inner = _axis(total), source_of(weights), [weights, total, *inverse]
        if argument(total, 2, "keepdim", False) is not True or not isinstance(axis, int):
            return None
        if name_of(scores) == "sub":
            taken = self._largest(argument(scores, 1, "other"), source_of(scores), axis)
            if taken is not None:
                inner += [scores, *taken]
                scores = source_of(scores)
        return scores, axis, inner

    def _stabilizer(self, node: Node, dims: Dims) -> list[Node] | None:
        """Return the nodes of what is subtracted from all scores of a row: their largest; ``None`` if it isn't."""
        axes = [at for at, dim in enumerate(dims) if expanded(dim) == self.keys]
        return self._largest(argument(node, 1, "other"), source_of(node), axes[0]) if axes else None

    def _largest(self, node: Any, scores: Node, axis: int) -> list[Node] | None:
        """Return the nodes that make up the largest of the scores along an axis, or ``None``."""
        inner = [node]
        if name_of(node) == "detach":
            node = source_of(node)
            inner.append(node)
        if (name_of(node) == "getattr" and argument(node, 1, "") == "values") or (
            name_of(node) == "getitem" and argument(node, 1, "") == 0
        ):
            node = source_of(node)
            inner.append(node)
        rank = len(shape_of(scores) or ())
        if name_of(node) not in ("amax", "max") or source_of(node) is not scores or not rank:
            return None
        own = _axis(node)
        keeps = argument(node, 2, "keepdim", False) is True
        return inner if isinstance(own, int) and own % rank == axis % rank and keeps else None

    # ---- from the scores to the product of queries and keys

    def scores(self, node: Any, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        """Follow the scores, which are multiplied by ``factor``; return queries, keys and the scale."""
        while True:
            if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
                raise Miss("", self.inner[-1])  # a softmax of something else
            product = product_of(node, dims) if is_contraction(node) else None
            if product is not None:
                return self._product(node, product, dims, factor)
            self.inner.append(node)
            name = name_of(node)
            if name in ("mul", "div", "mul_", "div_"):
                node, number = _times_number(node, name)
                factor *= number
            elif name == "sub" and (taken := self._stabilizer(node, dims)) is not None:
                self.inner += taken
                node = source_of(node)
            elif name in ("add", "add_", "sub", "sub_"):
                return self._sum(node, name, dims, factor)
            elif name in ("masked_fill", "masked_fill_", "where"):
                node = self._masked(node, name, dims, factor)
            elif name == "tanh":
                if self.softcap or not factor > 0:
                    raise Miss("unsupported option", node)
                self.softcap, node = factor, source_of(node)
            elif is_cast(node):
                node = source_of(node)
            else:
                node, dims = self._through(node, dims)

    def _product(self, node: Node, product: Product, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        self.inner += [node, *product.inner]
        for label in product.summed:
            label.whole = True
        self.features = product.summed
        if product.addend is not None:
            self._add(*product.addend, dims, factor, node)
        one, other = self.operand(*product.left), self.operand(*product.right)
        scale = factor * product.factor * one.factor * other.factor
        on_left, on_right = self._has_keys(one), self._has_keys(other)
        if on_left == on_right:
            raise Miss("different loop order", node)
        return (other, one, scale) if on_left else (one, other, scale)

    def _has_keys(self, read: Read) -> bool:
        held = {label for dim in read.dims for label in expanded(dim)}
        return all(label in held for label in self.keys)

    def _sum(self, node: Node, name: str, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        """Follow a sum into the operand that is the scores; the other one is a bias."""
        if self.softcap:
            raise Miss("unsupported option", node)
        sign = constant_of(argument(node, 2, "alpha", 1))
        if sign is None:
            raise Miss("unsupported option", node)
        one, other = source_of(node), argument(node, 1, "other")
        ways = [(one, 1.0, other, -sign if name.startswith("sub") else sign)]
        if name == "add":
            ways.append((other, sign, one, 1.0))
        missed: Miss | None = None
        for scores, times, bias, weight in ways:
            before = self._state()
            try:
                own = broadcast(dims, scores) if isinstance(scores, Node) else None
                if own is None or own != dims:
                    raise Miss("broadcast", node)
                found = self.scores(scores, dims, factor * times)
                self._add(bias, weight, dims, factor, node)
                return found
            except Miss as miss:
                missed = missed or miss
                self._restore(before)
        assert missed is not None
        raise missed

    def _add(self, bias: Any, weight: float, dims: Dims, factor: float, node: Node) -> None:
        if constant_of(bias) is not None:
            return  # the same for all keys
        own = broadcast(dims, bias) if isinstance(bias, Node) else None
        dtype = dtype_of(bias)
        if own is None or dtype is None or not dtype.is_floating_point:
            raise Miss("broadcast", node)
        self.biases.append(Read(bias, own, weight * factor))

    def _masked(self, node: Node, name: str, dims: Dims, factor: float) -> Any:
        """Note a mask; return the scores that it hides some of."""
        if not factor > 0 or self.softcap:
            raise Miss("unsupported option", node)
        if name == "where":
            mask, one, other = source_of(node), argument(node, 1, "input"), argument(node, 2, "other")
            fill, seen = constant_of(other), True
            scores = one
            if fill is None:
                fill, seen, scores = constant_of(one), False, other
        else:
            scores, mask = source_of(node), argument(node, 1, "mask")
            fill, seen = constant_of(argument(node, 2, "value")), False
        own = broadcast(dims, mask) if isinstance(mask, Node) else None
        if fill is None or fill * factor > _LARGE:
            raise Miss("unsupported option", node)
        if own is None or dtype_of(mask) != torch.bool or broadcast(dims, scores) != dims:
            raise Miss("broadcast", node)
        self.masks.append((Read(mask, own), seen))
        self.fills.append(fill)
        return scores

    # ---- operands

    def operand(self, node: Any, dims: Dims) -> Read:
        """Return what an operand is a view of, in memory as it lies, and a number that it is multiplied by."""
        factor, copies = 1.0, []
        while isinstance(node, Node):
            seen = seen_through(node, dims)
            if seen is not None:
                copies.append(node)
                node, dims = seen
                continue
            if self.features and name_of(node) in ("mul", "div"):
                try:
                    scaled, number = _times_number(node, name_of(node))
                except Miss:
                    break
                if shape_of(scaled) != shape_of(node) or dtype_of(scaled) != dtype_of(node):
                    break
                copies.append(node)
                node, factor = scaled, factor * number
                continue
            break
        if not isinstance(node, Node):
            raise Miss("unknown", self.inner[-1])
        return Read(node, dims, factor, tuple(copies))

    def _through(self, node: Any, dims: Dims) -> tuple[Node, Dims]:
        seen = seen_through(node, dims) if isinstance(node, Node) else None
        if seen is None:
            raise Miss(_REASONS.get(name_of(node), "unsupported option"), node)
        return seen

    def _state(self) -> tuple[Any, ...]:
        return (
            list(self.inner), list(self.biases), list(self.masks), list(self.fills), self.softcap, self.features,
        )  # fmt: skip

    def _restore(self, state: tuple[Any, ...]) -> None:
        self.inner, self.biases, self.masks, self.fills, self.softcap, self.features = state


def _polarity(mask: Any, seen: bool) -> tuple[Any, bool]:
    """Return what a mask is the negation of, if it is one, and whether True there stands for a key that is seen."""
    while name_of(mask) == "not":
        mask, seen = source_of(mask), not seen
    return mask, seen


def _axis(node: Node) -> Any:
    """Return the one axis that a reduction goes along."""
    axis: Any = argument(node, 1, "dim")
    return axis[0] if isinstance(axis, Sequence) and len(axis) == 1 else axis


def _times_number(node: Node, name: str) -> tuple[Any, float]:
    """Return what a product or a quotient with a number multiplies, and by what."""
    one, other = source_of(node), argument(node, 1, "other")
    if name.startswith("div") and argument(node, 2, "rounding_mode") is not None:
        raise Miss("unsupported option", node)
    number = constant_of(other)
    if number is not None and isinstance(one, Node):
        if name.startswith("div"):
            if not number:
                raise Miss("unsupported option", node)
            return one, 1.0 / number
        return one, number
    number = constant_of(one)
    if number is not None and isinstance(other, Node) and name.startswith("mul"):
        return other, number
    raise Miss("unsupported option", node)
