"""Rewrites a graph of Dynamo's: each match becomes one call, of operands as they lie in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from string import ascii_letters
from typing import Any

import torch
from torch import fx
from torch.fx import Graph, GraphModule, Node

from einops_fast.compiler.attention import match_attention
from einops_fast.compiler.calls import call_attention
from einops_fast.compiler.masks import alignment_of
from einops_fast.compiler.match import Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded
from einops_fast.compiler.nodes import dtype_of, same_size, source_of
from einops_fast.compiler.report import Fusion, tell
from einops_fast.compiler.safety import check, name_what_is_written
from einops_fast.compiler.views import permutation_of
from einops_fast.errors import EinsumError

__all__ = ["rewritten"]

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def rewritten(module: GraphModule) -> int:
    """Rewrite what is found in a graph, and in those within it, in place; return how many matches there were."""
    # What is checkpointed has a graph of its own.
    return sum([_rewritten(each) for each in module.modules() if isinstance(each, GraphModule)])


def _rewritten(module: GraphModule) -> int:
    graph = module.graph
    name_what_is_written(graph)
    count = 0
    for node in list(graph.nodes):
        try:
            match = match_attention(node)
            if match is not None:
                tell(_Rewriting(graph, match).apply())
                count += 1
        except Miss as miss:
            tell(Fusion("attention", _place(node), reason=miss.reason, at=str(miss.node)))
        except Exception as error:  # whatever goes wrong here, the program runs as it would without
            tell(Fusion("attention", _place(node), reason="unknown", at=f"{node}: {error!r}"))
    if count:
        graph.lint()
        module.recompile()
    return count


class _Rewriting:
    """Puts the call of one match into a graph."""

    def __init__(self, graph: Graph, match: Match) -> None:
        self.graph, self.match = graph, match
        self.names: dict[Label, str] = {}
        self.sources: dict[Label, tuple[Node, int]] = {}

    def apply(self) -> Fusion:
        """Insert the call, and take away what nobody needs any more.

        Raises:
            Miss: the match can't be fused after all. Then the graph is as it was.
        """
        match = self.match
        check(self.graph, match)
        target, result = self._permuted(match.node, match.result)
        for read in match.reads:
            for axis, dim in enumerate(read.dims):
                labels = expanded(dim)
                if len(labels) == 1:
                    self.sources.setdefault(labels[0], (read.node, axis))
        queries = self._queries()
        if len(match.keys) != 1 or len(match.features) != 1:
            raise Miss("unsupported option", match.node)
        keys = match.keys[0]
        causal, masks, biases = self._causal(queries, keys)
        before = set(self.graph.nodes)
        try:
            with self.graph.inserting_before(target):
                call, pattern = self._call(result, queries, keys, causal, masks, biases)
            self._try([node for node in self.graph.nodes if node not in before], target)
        except Exception:
            for node in reversed(self.graph.nodes):
                if node not in before:
                    self.graph.erase_node(node)
            raise
        call.meta = target.meta | call.meta
        target.replace_all_uses_with(call)
        self._erase(target)
        sizes = {name: _number(label.size) for label, name in self.names.items()}
        return Fusion("attention", _place(match.node), pattern, sizes, self._saved())

    def _try(self, nodes: Sequence[Node], target: Node) -> None:
        """Run what was inserted on the examples of the graph's tensors, which hold nothing.

        Raises:
            Miss: it refuses them, or its result isn't like that of ``target``.
        """
        wanted = target.meta["example_value"]

        def example(value: Any) -> Any:
            return value.meta["example_value"]

        try:
            with getattr(wanted, "fake_mode", None) or nullcontext():
                for node in nodes:
                    given = fx.node.map_arg(node.args, example)
                    options = fx.node.map_arg(node.kwargs, example)
                    if node.op == "call_method":
                        node.meta["example_value"] = getattr(given[0], str(node.target))(*given[1:], **options)
                    else:
                        function: Any = node.target
                        node.meta["example_value"] = function(*given, **options)
        except (EinsumError, RuntimeError) as error:
            raise Miss("unsupported option", self.match.node) from error
        made = nodes[-1].meta["example_value"]
        if (
            made.dtype != wanted.dtype
            or not all(map(same_size, made.shape, wanted.shape))
            or made.dim() != wanted.dim()
        ):
            raise Miss("different numel", self.match.node)

    # ---- the parts of the call

    def _permuted(self, node: Node, dims: Dims) -> tuple[Node, Dims]:
        """Follow permutations of the result: it is written in the order in which the program reads it."""
        while len(node.users) == 1:
            (user,) = node.users
            order = permutation_of(user)
            if order is None or source_of(user) is not node:
                break
            node, dims = user, tuple([dims[at] for at in order])
        return node, dims

    def _queries(self) -> Label | None:
        """Return the label of the queries: one that only q and the result have, the longest of several."""
        match = self.match
        held = [{label for dim in read.dims for label in expanded(dim)} for read in (match.q, match.k, match.v)]
        result = [label for dim in match.result for label in expanded(dim)]
        own = [label for label in result if label in held[0] and label not in held[1] and label not in held[2]]
        if any(label not in held[0] | held[1] | held[2] for label in result):
            raise Miss("broadcast", match.node)
        if len(own) > 2:
            raise Miss("unsupported option", match.node)
        in_masks = {
            label for read in [*match.biases, *[mask for mask, _ in match.masks]] for dim in read.dims for label in dim
        }
        own.sort(key=lambda label: (label in in_masks, _number(label.size) if label.size.is_Integer else 1 << 30))
        return own[-1] if own else None

    def _causal(self, queries: Label | None, keys: Label) -> tuple[str | bool, list[tuple[Read, bool]], list[Read]]:
        """Return the alignment of a causal mask that is made in the graph, and the other masks and biases."""
        match = self.match
        causal: str | bool = False
        masks, biases = [], []
        for mask, seen in match.masks:
            found = self._alignment(mask, seen, queries, keys)
            if found and not causal:
                causal = found
            else:
                masks.append((mask, seen))
        for bias in match.biases:
            found = self._alignment(bias, None, queries, keys) if bias.factor > 0 else ""
            if found and not causal:
                causal = found
            else:
                biases.append(bias)
        return causal, masks, biases

    def _alignment(self, read: Read, seen: bool | None, queries: Label | None, keys: Label) -> str:
        dims = [expanded(dim) for dim in read.dims]
        if len(dims) < 2 or any(dims[:-2]) or dims[-2:] != [(queries,), (keys,)]:
            return ""
        return alignment_of(read.node, seen)

    def _call(
        self,
        result: Dims,
        queries: Label | None,
        keys: Label,
        causal: str | bool,
        masks: list[tuple[Read, bool]],
        biases: list[Read],
    ) -> tuple[Node, str]:
        match = self.match
        operands = [self._laid_out(read) for read in (match.q, match.k, match.v)]
        order = [label for dim in result for label in expanded(dim)]
        pattern = ", ".join([self._spelled(labels) for _, labels in operands]) + f" -> {self._spelled(order)}"
        # Mask and bias are read where the scores lie, whatever else the result has.
        mask, mask_labels = self._merged_masks(masks)
        bias, bias_labels = self._merged_biases(biases)
        empty = match.empty if masks or biases or (causal and not self._every_query_sees(causal, queries, keys)) else ""
        call = self.graph.call_function(
            call_attention,
            (*[node for node, _ in operands], mask, bias),
            {
                "pattern": pattern,
                "sequence": (self._name(queries) if queries is not None else "", self._name(keys)),
                "axes": (self._spelled(mask_labels), self._spelled(bias_labels)),
                "causal": causal,
                "numbers": (match.scale, match.softcap, match.dropout_p),
                "empty": empty,
                "dtype": dtype_of(match.node),
            },
        )
        return self._folded(call, result), pattern

    def _every_query_sees(self, causal: str | bool, queries: Label | None, keys: Label) -> bool:
        """Return whether each query has a key before it: in a causal mask that begins with the first of both."""
        return causal == "top_left" or (queries is not None and bool(queries.size == keys.size))

    def _laid_out(self, read: Read) -> tuple[Node, list[Label]]:
        """Return a tensor as it lies, with one axis for each label."""
        node, labels = read.node, list[Label]()
        for axis in reversed(range(len(read.dims))):
            own = expanded(read.dims[axis])
            if not own:
                node = self.graph.call_method("squeeze", (node, axis))
            elif len(own) > 1:
                node = self.graph.call_method("unflatten", (node, axis, self._sizes(own)))
            labels[:0] = own
        return node, labels

    def _sizes(self, labels: Sequence[Label]) -> tuple[Any, ...]:
        sizes: list[Any] = [int(label.size) if label.size.is_Integer else None for label in labels]
        if None in sizes:
            sizes[sizes.index(None)] = -1
        for at, size in enumerate(sizes):
            if size is None:
                if labels[at] not in self.sources:
                    raise Miss("different numel", self.match.node)
                sizes[at] = self.graph.call_method("size", self.sources[labels[at]])
        return tuple(sizes)

    def _folded(self, node: Node, dims: Dims) -> Node:
        """Merge the axes of the result that the program has as one, and add those of one element."""
        for axis, dim in enumerate(dims):
            count = len(expanded(dim))
            if not count:
                node = self.graph.call_method("unsqueeze", (node, axis))
            elif count > 1:
                node = self.graph.call_method("flatten", (node, axis, axis + count - 1))
        return node

    def _merged_masks(self, masks: list[tuple[Read, bool]]) -> tuple[Node | None, list[Label]]:
        made = []
        for read, seen in masks:
            node, labels = self._laid_out(read)
            made.append((node if seen else self.graph.call_function(torch.logical_not, (node,)), labels))
        return self._joined(made, torch.logical_and)

    def _merged_biases(self, biases: list[Read]) -> tuple[Node | None, list[Label]]:
        made = []
        for read in biases:
            node, labels = self._laid_out(read)
            if read.factor != 1:
                node = self.graph.call_function(torch.mul, (node, read.factor))
            made.append((node, labels))
        return self._joined(made, torch.add)

    def _joined(self, tensors: list[tuple[Node, list[Label]]], function: Any) -> tuple[Node | None, list[Label]]:
        """Combine tensors of some labels each, with axes for all of them."""
        if len(tensors) < 2:
            return tensors[0] if tensors else (None, [])
        every = list(dict.fromkeys([label for _, labels in tensors for label in labels]))
        joined = None
        for node, labels in tensors:
            own = [label for label in every if label in labels]
            if own != labels:
                node = self.graph.call_method("permute", (node, [labels.index(label) for label in own]))
            for axis, label in enumerate(every):
                if label not in labels:
                    node = self.graph.call_method("unsqueeze", (node, axis))
            joined = node if joined is None else self.graph.call_function(function, (joined, node))
        return joined, every

    def _name(self, label: Label) -> str:
        return self.names.setdefault(label, ascii_letters[len(self.names)])

    def _spelled(self, labels: Sequence[Label]) -> str:
        return " ".join(map(self._name, labels))

    def _erase(self, target: Node) -> None:
        copies = [node for read in self.match.reads for node in read.copies]
        doomed: list[Node] = [target, self.match.node, *self.match.inner, *copies]
        for node in _backwards(self.graph, doomed):
            if not node.users:
                self.graph.erase_node(node)

    def _saved(self) -> int | None:
        """Return the bytes of scores and weights that are written and read once each."""
        size = 1
        for label in self.names:
            if label not in self.match.features and not self._only_values_have(label):
                if not label.size.is_Integer:
                    return None
                size *= int(label.size)
        dtype = dtype_of(self.match.node)
        return 4 * size * (dtype.itemsize if dtype is not None else 4)

    def _only_values_have(self, label: Label) -> bool:
        return all(label not in expanded(dim) for read in (self.match.q, self.match.k) for dim in read.dims)


def _backwards(graph: Graph, nodes: Sequence[Node]) -> Iterator[Node]:
    wanted = set(nodes)
    return (node for node in reversed(list(graph.nodes)) if node in wanted)


def _place(node: Node) -> str:
    places = _PLACE.findall(node.stack_trace or "")
    return f"{places[-1][0]}:{places[-1][1]}" if places else ""


def _number(size: Any) -> int | str:
    return int(size) if size.is_Integer else str(size)
