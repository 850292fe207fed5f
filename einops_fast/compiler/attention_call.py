"""An attention, or a sum of several, that was found in a graph, and the calls that are put in for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.calls import ABSORBS, call_attention
from einops_fast.compiler.constants import guarded
from einops_fast.compiler.gains import Gain, gained, multiplied, parted
from einops_fast.compiler.layout import Layout, labels_of, number
from einops_fast.compiler.masks import LARGE, Band, band_of, is_small
from einops_fast.compiler.match import Inserted, Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded
from einops_fast.compiler.nodes import dtype_of, example_of
from einops_fast.compiler.safety import check_dtypes, is_differentiated


class Mask(NamedTuple):
    """A mask of scores."""

    read: Read  # the tensor; one that isn't boolean is made of zeros and ones
    seen: bool  # whether True stands for a key that is seen
    fill: float  # what is in the place of the scores of the other keys
    biased: bool = False  # whether something is added to that


_WIDEST = 256
"""Features of a head that kernels of attention take."""


@dataclass
class Softmaxed:
    """What a program does to scores on their way from one contraction to the other."""

    keys: tuple[Label, ...]  # the label that is summed over
    features: tuple[Label, ...] = ()  # the label that q and k are multiplied along
    softcap: float = 0.0  # as in `einops_fast.attention`
    dropout_p: Any = 0.0  # of the weights: a number, or a node of one
    biases: list[Read] = field(default_factory=list)  # what is added to the scores
    masks: list[Mask] = field(default_factory=list)  # what hides keys
    gains: list[Gain] = field(default_factory=list)  # what scores are multiplied by
    # what all weights of a row are multiplied by: numbers, tensors, and masks of rows that are zero
    times: list[float | Gain | Read] = field(default_factory=list)
    sinks: Read | None = None  # scores that take part in the softmax beside those of the keys, for no value


@dataclass
class Attention(Match):
    """One attention as it was found."""

    node: Node  # the product with the values, or what normalizes that. The other attributes of a match are as there.
    result: Dims  # what indexes it
    # the operands, as they lie in memory
    q: Read
    k: Read
    v: Read
    between: Softmaxed
    scale: float | None  # of the products of q and k; `None` for the square root of their width
    # what the program has in rows without a key: `'mean'` of all values where they are hidden by a large number,
    # `'nan'`, `'zeros'`, or `'unknown'`
    hidden: str
    inner: list[Node]
    # nodes that are the log-sum-exp of the scores, each with what indexes it, and whether it is NaN where all
    # scores are `-inf`
    logs: list[tuple[Node, Dims, bool]] = field(default_factory=list)
    band: Band | None = None  # keys that are shown without a mask
    rows: tuple[Label, ...] = ()  # the labels of the queries, where they are known
    columns: list[Label] = field(init=False)  # the labels that only v has
    # the labels of queries, if there is one, and keys, and their sizes
    axes: tuple[Label | None, Label] = field(init=False)
    extents: tuple[Any, Any] = field(init=False)
    keeps_result = True

    @property
    def outputs(self) -> list[Node]:
        return [self.node, *[log for log, *_ in self.logs]]

    @property
    def reads(self) -> list[Read]:  # type: ignore[override]
        between = self.between
        beside = [mask.read for mask in between.masks] + [gain.read for gain in (*between.gains, *self._factors())]
        beside += [each for each in (*between.times, between.sinks) if isinstance(each, Read)]
        return [self.q, *(self.k.parts or [self.k]), self.v, *between.biases, *beside]

    def insert(self, graph: Graph) -> Inserted:
        """Put in the call."""
        check_dtypes(graph, (self.q, self.k, self.v), self.node)
        layout = Layout(graph, self.reads)
        queries = self._queries()
        if len(self.between.keys) != 1 or not self.between.features:
            raise Miss("unsupported option", self.node)
        (keys,) = self.between.keys
        self.axes, self.extents = (queries, keys), (1 if queries is None else queries.size, keys.size)
        band, masks, biases = self._band()
        gains, factor = parted(self.between.gains, dtype_of(self.q.node))
        operands = [gained(layout, self.q, gains), layout.laid_out(self.k), layout.laid_out(self.v)]
        operands, order = self._of_one_feature(layout, operands)
        pattern = ", ".join([layout.spelled(labels) for _, labels in operands]) + f" -> {layout.spelled(order)}"
        # Mask and bias are read where the scores lie, whatever else the result has.
        mask, mask_labels = layout.joined([self._mask(layout, each) for each in masks], torch.logical_and)
        bias, bias_labels = layout.joined([self._bias(layout, each) for each in biases], torch.add)
        found = self.between.sinks
        sinks, sink_labels = (None, list[Label]()) if found is None else layout.laid_out(found)
        if {*sink_labels} & {*self.axes}:
            raise Miss("broadcast", self.node)
        causal: str | bool = band.alignment if band is not None and band.after == 0 else False
        window = None if band is None else (band.before, None if causal else band.after)
        call = graph.call_function(
            call_attention,
            (*[node for node, _ in operands], mask, bias, sinks),
            {
                "pattern": pattern,
                "sequence": (layout.name(queries) if queries is not None else "", layout.name(keys)),
                "axes": tuple(map(layout.spelled, (mask_labels, bias_labels, sink_labels))),
                "causal": causal,
                "window": None if window == (None, None) else window,
                "alignment": None if band is None else band.alignment,
                "numbers": (self.scale and self.scale * factor, self.between.softcap, guarded(self.between.dropout_p)),
                "empty": self._empty(band, masks, biases),
                "drowned": self._may_drown(biases),
                "return_lse": bool(self.logs),
                "dtype": dtype_of(self.node),
            },
        )
        results = {self.node: call}
        if self.logs:
            results = {self.node: graph.call_function(getitem, (call, 0))}
            results |= self._logs(layout, graph.call_function(getitem, (call, 1)), self._rows(order))
        results[self.node] = self._as_written(layout, results[self.node], order)
        return Inserted(results, pattern, layout.sizes(), self._saved(layout))

    def _of_one_feature(
        self, layout: Layout, operands: list[tuple[Node, list[Label]]]
    ) -> tuple[list[tuple[Node, list[Label]]], list[Label]]:
        """Merge the axes that q and k are multiplied along, and those that only v has; return the result's labels, too.

        Raises:
            Miss: there are several of the former, and heads of that width are computed by products and a softmax.
        """
        q, k, v = operands
        order = labels_of(self.result)
        if len(self.between.features) > 1:
            width = Label(prod([label.size for label in self.between.features]))
            if not _is_narrow(width):
                raise Miss("not worth it", self.node)
            q, k = layout.merged(*q, self.between.features, width), layout.merged(*k, self.between.features, width)
        self.columns = [label for label in v[1] if label in order and label not in q[1] and label not in k[1]]
        width = Label(prod([label.size for label in self.columns]))
        if len(self.columns) > 1 and _is_narrow(width):
            v = layout.merged(*v, self.columns, width)
            order = [*[label for label in order if label not in self.columns], width]
        return [q, k, v], order

    def _as_written(self, layout: Layout, node: Node, order: list[Label]) -> Node:
        """Return the result of a call, which has axes in an order, as the program has it."""
        wanted = labels_of(self.result)
        if order != wanted:
            sizes = tuple([int(label.size) for label in self.columns])
            node = layout.graph.call_method("unflatten", (node, -1, sizes))
            node = layout.permuted(node, [*order[:-1], *self.columns], wanted)
        return layout.folded(self._multiplied(layout, node, wanted), self.result)

    def is_deep(self) -> bool:
        """Return whether the product with the values takes no more than that of queries and keys."""
        held = {*labels_of(self.q.dims), *labels_of(self.k.dims)}
        columns = prod([label.size for label in labels_of(self.v.dims) if label not in held])
        return bool((columns - prod([label.size for label in self.between.features])).is_nonpositive)

    def _factors(self) -> list[Gain]:
        return [each for each in self.between.times if isinstance(each, Gain)]

    def _multiplied(self, layout: Layout, node: Node, order: list[Label]) -> Node:
        """Multiply a result by what the program multiplies all weights of a row by."""
        graph = layout.graph
        number = prod([each for each in self.between.times if isinstance(each, (int, float))])
        if number != 1:
            node = graph.call_function(torch.mul, (node, number))
        for each in self.between.times:
            if isinstance(each, Gain):
                node = multiplied(layout, node, order, each)
            elif isinstance(each, Read):
                node = graph.call_method("masked_fill", (node, layout.broadcast(each, order), 0.0))
        return graph.call_method("to", (node, dtype_of(self.node))) if self._factors() else node

    def _logs(self, layout: Layout, lse: Node, labels: list[Label]) -> dict[Node, Node]:
        """Put in what stands for each node that is a log-sum-exp."""
        results, graph = {}, layout.graph
        for log, dims, undefined in self.logs:
            wanted = labels_of(dims)
            if set(wanted) != set(labels):
                raise Miss("broadcast", log)
            node = graph.call_method("to", (layout.permuted(lse, labels, wanted), dtype_of(log)))
            if undefined:
                node = graph.call_method("masked_fill", (node, graph.call_function(torch.isneginf, (node,)), math.nan))
            results[log] = layout.folded(node, dims)
        return results

    def _rows(self, order: list[Label]) -> list[Label]:
        """Return the labels of the result without that of the features of values."""
        held = {*labels_of(self.q.dims), *labels_of(self.k.dims)}
        features = [label for label in order if label not in held]
        return [label for label in order if not features or label is not features[-1]]

    def _queries(self) -> Label | None:
        """Return the label of the queries: one that only q and the result have, the longest of several."""
        held = [set(labels_of(read.dims)) for read in (self.q, self.k, self.v)]
        result = labels_of(self.result)
        own = [label for label in result if label in held[0] and label not in held[1] and label not in held[2]]
        if any(label not in held[0] | held[1] | held[2] for label in result):
            raise Miss("broadcast", self.node)
        if len(own) > 2:
            raise Miss("unsupported option", self.node)
        beside = [*self.between.biases, *[mask.read for mask in self.between.masks]]
        in_masks = {label for read in beside for dim in read.dims for label in dim} | {*self.rows}
        own.sort(key=lambda label: (label in in_masks, number(label.size) if label.size.is_Integer else 1 << 30))
        return own[-1] if own else None

    # ---- masks

    def _band(self) -> tuple[Band | None, list[Mask], list[Read]]:
        """Return the keys that masks and biases show which are made in the graph, and the other masks and biases."""
        band = self.band
        masks, biases, fills, summed = [], [], [], 0

        def shown_by(found: Band | None) -> bool:
            nonlocal band
            both = found if band is None or found is None else band.meets(found, self.extents[0] == self.extents[1])
            band = both or band
            return both is not None

        for mask in self.between.masks:
            found = self._band_of(mask.read, mask.seen)
            if not shown_by(found):
                masks.append(mask)
            if found is None or found[:2] != (None, None):
                fills.append(mask.fill)
        added = [self._added_band(bias) for bias in self.between.biases]
        # Sums of two numbers that hide aren't alike, and a row may have no other scores.
        vague = any(found is None and not is_small(bias.node, bias.factor)
                    for bias, found in zip(self.between.biases, added, strict=True))  # fmt: skip
        for bias, found in zip(self.between.biases, added, strict=True):
            large = found is not None and bool(found.fill) and found.fill != -math.inf
            if (vague and large) or not shown_by(found):
                biases.append(bias)
            elif found is not None and found.fill:
                fills.append(found.fill * bias.factor)
                summed += large
        if masks or self._hides_rows(band):
            self._check_fills(fills, summed)
        return band, masks, biases

    def _hides_rows(self, band: Band | None) -> bool:
        """Return whether a band may leave a query no key."""
        return band is not None and not band.shows_each_query_a_key(*self.extents)

    def _added_band(self, bias: Read) -> Band | None:
        """Return the keys that a bias shows by hiding the others."""
        found = self._band_of(bias, None) if bias.factor > 0 else None
        if found is None or not found.fill or found.fill == -math.inf:
            return found
        # Where a row without a key isn't to hold zeros, its scores are as they are.
        alike = self.hidden != "zeros" or not self._hides_rows(found)
        return found if alike and found.fill * bias.factor <= LARGE else None

    def _band_of(self, read: Read, seen: bool | None) -> Band | None:
        queries, keys = self.axes
        dims = [expanded(dim) for dim in read.dims]
        if dims.count((keys,)) != 1 or queries is None or dims.count((queries,)) != 1:
            return None
        return band_of(read.node, (dims.index((queries,)), dims.index((keys,))), seen)

    def _check_fills(self, fills: list[float], summed: int) -> None:
        """Raise unless all keys are alike in a row that is hidden as a whole.

        ``summed`` is how many of the numbers that hide keys, ``fills``, are large ones that are added to the scores.
        """
        if self.hidden == "zeros":
            return
        biased = [mask for mask in self.between.masks if mask.biased]
        alike = len(set(fills)) < 2 and all(mask.fill <= ABSORBS for mask in biased)
        if not alike or summed > 1 or (summed and (biased or min(fills) > ABSORBS)):
            raise Miss("unsupported option", self.node)

    def _empty(self, band: Band | None, masks: list[Mask], biases: list[Read]) -> str:
        """Return what rows without a key hold; ``''`` where there are none, or they hold zeros as ours do."""
        if not masks and not biases and not self._hides_rows(band):
            return ""
        if self.hidden == "unknown" or (self.logs and self.hidden != "nan"):
            raise Miss("unsupported option", self.node)
        return "" if self.hidden == "zeros" else self.hidden

    def _may_drown(self, biases: list[Read]) -> bool:
        """Return whether gradients are made, and biases may hide all keys of a row by one large finite number."""
        trained = self.hidden != "zeros" and any(is_differentiated(read) for read in (self.q, self.k, self.v, *biases))
        over_keys = [bias for bias in biases if any(self.between.keys[0] in expanded(dim) for dim in bias.dims)]
        large = [bias for bias in over_keys if trained and not is_small(bias.node, bias.factor)]
        if self.logs and not all(map(is_differentiated, large)):
            raise Miss("unsupported option", self.node)  # gradients of logarithms would be wrong; who learns hides none
        return bool(large)

    @staticmethod
    def _mask(layout: Layout, mask: Mask) -> tuple[Node, list[Label]]:
        node, labels = layout.laid_out(mask.read)
        if dtype_of(mask.read.node) != torch.bool:
            node = layout.graph.call_function(torch.ne if mask.seen else torch.eq, (node, 0))
        elif not mask.seen:
            node = layout.graph.call_function(torch.logical_not, (node,))
        return node, labels

    @staticmethod
    def _bias(layout: Layout, read: Read) -> tuple[Node, list[Label]]:
        node, labels = layout.laid_out(read)
        return (layout.graph.call_function(torch.mul, (node, read.factor)) if read.factor != 1 else node), labels

    def _saved(self, layout: Layout) -> int | None:
        """Return the bytes of scores and weights that are written and read once each."""
        scores = {*labels_of(self.q.dims), *labels_of(self.k.dims)}
        size: Any = 1
        for label in layout.names:
            if label in scores and label not in self.between.features:
                size = size * label.size
        dtype = dtype_of(self.node)
        return 4 * int(size) * (dtype.itemsize if dtype is not None else 4) if size == 1 or size.is_Integer else None


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


def _is_narrow(label: Label) -> bool:
    """Return whether kernels take heads of an extent."""
    return bool(label.size.is_Integer and label.size <= _WIDEST)
