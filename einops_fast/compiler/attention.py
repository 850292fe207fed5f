"""Attention in the graph of a program: from the product with the values back to queries, keys, masks and biases.

The match begins at a contraction whose one operand leads to softmaxes over what is summed, as ``weights`` follows it.
From there it goes on through scales, masks, biases and a softcap to a contraction again. What its operands are
views of are queries and keys; their labels make the pattern.

**Rows without a key.** Our attention gives zeros there. Written out, a mask of ``-inf`` gives NaN, and a mask of a
large negative number the mean of all values: ``Attention.hidden`` says which.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.attention_call import Attention, AttentionSum, Mask
from einops_fast.compiler.constants import constant_of, filling_of, guarded, made_like, number_of, rounded, times_number
from einops_fast.compiler.contractions import Product, is_contraction, product_of
from einops_fast.compiler.gains import gain_of
from einops_fast.compiler.layout import labels_of
from einops_fast.compiler.masks import LARGE, gate_of
from einops_fast.compiler.match import Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded, fresh
from einops_fast.compiler.nodes import argument, dtype_of, name_of, shape_of, source_of
from einops_fast.compiler.softmax import beside_sinks, largest_of, logs_of, quotient_of
from einops_fast.compiler.views import broadcast, is_cast, narrowed, operand_of, permutation_of
from einops_fast.compiler.weights import WeightsReader, leads_to_softmax, polarity

_CHANGES = ("add", "add_", "sub", "sub_", "masked_fill", "masked_fill_", "where", "tanh")
"""Functions that change scores otherwise than by a factor."""


def match_attention(node: Node) -> Match | None:
    """Return the attention whose product with the values a node is; ``None`` if there is no softmax before it."""
    shape = shape_of(node)
    if shape is None:
        return None
    missed: Miss | None = None
    for right in (False, True):
        for whole in (False, True):
            result = fresh(shape)
            quotient = quotient_of(node, result, right)
            product = product_of(node, result) if quotient is None and is_contraction(node) else None
            if quotient is not None:
                product = quotient.product
            if product is None or not product.summed:
                continue
            weights, values = product.operands[::-1] if right else product.operands
            reader = Reader(product.summed, whole)
            try:
                if quotient is not None:
                    reader.begin_at(quotient)
                elif not leads_to_softmax(weights[0]):
                    continue
                return reader.match(node, result, product, weights, values)
            except Miss as miss:
                missed = missed or miss
    if missed is not None and missed.reason:
        raise missed
    return None


class Reader(WeightsReader):
    """Follows one match through the graph."""

    def __init__(self, keys: tuple[Label, ...], whole: bool) -> None:
        super().__init__(keys)
        self.whole = whole
        self.casts: list[torch.dtype | None] = []  # what scores are converted to on the way to the softmax, last first
        self.shifted = False  # the scores are those of the program but for a number that all keys have

    def match(
        self, node: Node, result: Dims, product: Product, weights: tuple[Node, Dims], values: tuple[Node, Dims]
    ) -> Match:
        """Return one attention, or the sum of several, whose weights and values a product is of."""
        of_weights, of_values = [{label for dim in dims for label in dim} for _, dims in (weights, values)]
        for label in of_weights - of_values:
            label.whole = label.whole or self.whole
        for label in of_values - of_weights:
            label.whole = True
        if product.addend is not None or product.factor != 1:
            raise Miss("unsupported option", node)
        self.inner += product.inner
        v = operand_of(*values)
        terms = self.terms(*weights)
        if len({(reader.last, tuple(map(expanded, dims))) for reader, dims in terms}) < len(terms):
            raise Miss("not worth it", node)  # the program has computed one softmax for several terms
        parts = [(reader, *reader.attended(dims, dtype_of(v.node))) for reader, dims in terms]
        hidden = [reader.hidden(node) for reader, *_ in parts]
        target, result = self.permuted(node, result, [log for *_, logs in parts for log, *_ in logs])
        found = [
            Attention(target, result, q, k, v, reader, scale, empty, [*reader.inner, *self.inner], logs)
            for (reader, q, k, scale, logs), empty in zip(parts, hidden, strict=True)
        ]
        return found[0] if len(found) == 1 else AttentionSum(found)

    def attended(
        self, dims: Dims, dtype: torch.dtype | None
    ) -> tuple[Read, Read, float, list[tuple[Node, Dims, bool]]]:
        """Return queries, keys, the scale and log-sum-exps of the softmax, whose scores are indexed by ``dims``."""
        assert self.softmax is not None
        self.casts.append(dtype_of(self.last))  # a softmax may convert its scores
        scores, logs = self.softmax.scores, list[tuple[Node, Dims, bool]]()
        if self.with_sinks is None:
            logs, inner = logs_of(self.softmax, dims)
            self.inner += inner
        else:
            if self.softmax.factor != 1:
                raise Miss("unsupported option", self.inner[0])
            scores, sinks, inner = beside_sinks(scores, dims, self.with_sinks)
            self.sinks = operand_of(*sinks)
            self.inner += inner
            self.casts += [dtype_of(each) for each in inner]
        q, k, scale = self.scores(scores, dims, self.softmax.factor)
        if self.shifted and (logs or self.sinks is not None):
            raise Miss("unsupported option", self.inner[0])
        q, k = (q, k) if k.parts else narrowed(q, k, dtype)
        return q, k, scale, logs

    def hidden(self, node: Node) -> str:
        """Return what the program has in rows without a key, as in :class:`Attention`."""
        assert self.softmax is not None
        if self.zeroed:
            masks = [polarity(mask.read.node, mask.seen) for mask in self.masks]
            if sorted(map(hash, self.zeroed)) != sorted(map(hash, masks)):
                raise Miss("unsupported option", node)  # weights that the others of a row don't make up for
            return "zeros"
        if self.sinks is not None:
            return "zeros"  # where no key is seen, the sink has all of the weight
        if not self.masks or min(mask.fill for mask in self.masks) == -math.inf:
            return "nan"
        if self.softmax.log is not None:
            return "unknown"  # beside large numbers, the logarithm of how many keys there are is rounded away
        return "nan" if self.softmax.total is not None and not self.softmax.largest else "mean"

    def permuted(self, node: Node, dims: Dims, outputs: list[Node]) -> tuple[Node, Dims]:
        """Follow permutations of the result: it is written in the order in which the program reads it."""
        while len(node.users) == 1 and node not in outputs:
            (user,) = node.users
            order = permutation_of(user)
            if order is None or source_of(user) is not node:
                break
            self.inner.append(node)
            node, dims = user, tuple([dims[at] for at in order])
        return node, dims

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
                scaled = times_number(node)
                if scaled is None:
                    node, gain = gain_of(node, dims, self.keys)
                    number = guarded(gain.read.node) if name_of(node) == "tanh" else None
                    if isinstance(number, float):
                        factor *= number
                    else:
                        self.gains.append(gain)
                else:
                    node, factor = scaled[0], factor * scaled[1]
            elif name == "sub" and (taken := self._stabilizer(node, dims)):
                self.inner += taken
                self.shifted = True
                node = source_of(node)
            elif self.gains and name in _CHANGES:
                raise Miss("unsupported option", node)  # which is multiplied, too
            elif name in ("add", "add_", "sub", "sub_"):
                return self._sum(node, name, dims, factor)
            elif name in ("masked_fill", "masked_fill_", "where"):
                node = self._masked(node, name, dims, factor)
            elif name == "tanh":
                if self.softcap or not factor > 0:
                    raise Miss("unsupported option", node)
                self.softcap, node = factor, source_of(node)
            elif name == "neg":
                node, factor = source_of(node), -factor
            elif is_cast(node):
                self.casts.append(dtype_of(node))
                node = source_of(node)
            elif name == "cat" and len({*source_of(node)}) > 1:
                return self._blocks(node, dims, factor)
            else:
                node, dims = self.through(node, dims)

    def changes(self) -> tuple[int, ...]:
        """Return how much is done to the scores beside scaling them."""
        return len(self.biases), len(self.masks), len(self.gains), bool(self.softcap), self.shifted

    def _product(self, node: Node, product: Product, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        self.inner += [node, *product.inner]
        for label in product.summed:
            label.whole = True
        self.features = product.summed
        if product.addend is not None:
            if self.softcap or self.gains:
                raise Miss("unsupported option", node)
            self._add(*product.addend, dims, factor, node)
        one, other = [operand_of(*each, scaled=True) for each in product.operands]
        scale = factor * product.factor * one.factor * other.factor
        on_left, on_right = [{*labels_of(each.dims)}.issuperset(self.keys) for each in (one, other)]
        if on_left == on_right:
            raise Miss("different loop order", node)
        return (other, one, scale) if on_left else (one, other, scale)

    def _sum(self, node: Node, name: str, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        """Follow a sum into the operand that is the scores; the other one is a bias."""
        if self.softcap:
            raise Miss("unsupported option", node)
        sign = constant_of(argument(node, 2, "alpha", 1))
        if sign is None:
            raise Miss("unsupported option", node)
        gated = gate_of(node)
        if gated is not None and factor > 0:
            scores, gate, fill, inner = gated
            self.inner += inner
            self._hide(gate, True, fill * factor, scores, dims, node)
            return self.scores(scores, dims, factor)
        one, other = source_of(node), argument(node, 1, "other")
        ways = [(one, 1.0, other, -sign if name.startswith("sub") else sign)]
        if name in ("add", "sub"):
            ways.append((other, ways[0][3], one, 1.0))
        missed: Miss | None = None
        for scores, times, bias, weight in ways:
            before = vars(self.branch())
            try:
                own = broadcast(dims, scores) if isinstance(scores, Node) else None
                if own is None or own != dims:
                    raise Miss("broadcast", node)
                count = len(self.masks)
                found = self.scores(scores, dims, factor * times)
                if self._add(bias, weight, dims, factor, node):
                    self.masks[count:] = [mask._replace(biased=True) for mask in self.masks[count:]]
                return found
            except Miss as miss:
                missed = missed or miss
                vars(self).update(before)
        assert missed is not None
        raise missed

    def _add(self, bias: Any, weight: float, dims: Dims, factor: float, node: Node) -> bool:
        """Note what is added to the scores; return whether it differs from key to key."""
        if constant_of(bias) is not None or number_of(bias) is not None:
            self.shifted = True
            return False
        own = broadcast(dims, bias) if isinstance(bias, Node) else None
        dtype = dtype_of(bias)
        if own is None or dtype is None or not dtype.is_floating_point:
            raise Miss("broadcast", node)
        self.biases.append(Read(bias, own, weight * factor))
        return True

    def _masked(self, node: Node, name: str, dims: Dims, factor: float) -> Any:
        """Note a mask; return the scores that it hides some of."""
        if name == "where":
            mask = source_of(node)
            one, other = guarded(argument(node, 1, "input")), guarded(argument(node, 2, "other"))
            filled, seen, scores = other, True, one
            if filling_of(filled) is None:
                filled, seen, scores = one, False, other
        else:
            scores, mask = source_of(node), argument(node, 1, "mask")
            filled, seen = guarded(argument(node, 2, "value")), False
        fill = filling_of(filled)
        self.inner += made_like(filled)
        if fill is None or not factor:
            raise Miss("unsupported option", node)
        if dtype_of(mask) != torch.bool:
            raise Miss("broadcast", node)
        self._hide(mask, seen, rounded(fill, dtype_of(node)) * factor, scores, dims, node)
        return scores

    def _hide(self, mask: Any, seen: bool, fill: float, scores: Any, dims: Dims, node: Node) -> None:
        """Note that some scores are ``fill`` in place of their own numbers."""
        own = broadcast(dims, mask) if isinstance(mask, Node) else None
        for dtype in (dtype_of(node), *reversed(self.casts)):
            fill = rounded(fill, dtype)
        if not fill <= LARGE or self.softcap:  # nor NaN
            raise Miss("unsupported option", node)
        if own is None or not isinstance(scores, Node) or broadcast(dims, scores) != dims:
            raise Miss("broadcast", node)
        self.masks.append(Mask(Read(mask, own), seen, fill))

    def _stabilizer(self, node: Node, dims: Dims) -> tuple[Node, ...]:
        """Return the nodes of what is subtracted from all scores of a row, if it is their largest."""
        axes = [at for at, dim in enumerate(dims) if expanded(dim) == self.keys]
        plain = axes and not self.softcap and argument(node, 2, "alpha", 1) == 1
        return largest_of(argument(node, 1, "other"), source_of(node), axes[0]) if plain else ()

    def _blocks(self, node: Node, dims: Dims, factor: float) -> tuple[Read, Read, float]:
        """Return queries, the joined keys and the scale of scores that a node joins along the keys."""
        (axis,) = [at for at, dim in enumerate(dims) if expanded(dim) == self.keys]
        joined, along = source_of(node), argument(node, 1, "dim", 0)
        if not isinstance(along, int) or along % len(dims) != axis:
            raise Miss("different offset", node)
        (keys,), found = self.keys, []
        for scores in joined:
            (own,) = fresh([(shape_of(scores) or ())[axis]])
            branch = self.branch()
            branch.inner, branch.keys = [node], own
            for label in own:
                label.whole = True
            changes = branch.changes()
            try:
                q, k, scale = branch.scores(scores, (*dims[:axis], own, *dims[axis + 1 :]), factor)
            except Miss as miss:
                raise Miss(miss.reason or "unsupported option", miss.node) from miss  # as a sink that isn't left out
            if len(own) != 1 or len(branch.features) != 1 or branch.features[0].parts or branch.changes() != changes:
                raise Miss("unsupported option", scores)  # which the other blocks don't have
            self.inner += branch.inner
            found.append((q, k, scale, {own[0]: keys, branch.features[0]: branch.features[0]}, branch.features))
        q, _, scale, _, features = found[0]
        self.features = features
        parts = []
        for other, k, own_scale, names, of_block in found:
            names[of_block[0]] = features[0]
            alike = other.node is q.node and _renamed(other.dims, names) == _renamed(q.dims, {})
            if not alike or own_scale != scale or dtype_of(k.node) != dtype_of(found[0][1].node):
                raise Miss("unsupported option", node)
            parts.append(k._replace(dims=_renamed(k.dims, names)))
        every = dict.fromkeys([label for part in parts for label in labels_of(part.dims) if label.at is None])
        copies = tuple([each for block in found for read in block[:2] for each in read.copies])
        whole = tuple([(label,) for label in every])
        return q, Read(parts[0].node, whole, 1.0, copies, tuple(parts), keys), scale


def _renamed(dims: Dims, names: dict[Label, Label]) -> Dims:
    return tuple([tuple([names.get(label, label) for label in expanded(dim)]) for dim in dims])
