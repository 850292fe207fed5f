"""Writes down labels as letters, and tensors with one axis for each label: the operands of what is put into a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_letters
from typing import Any

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded


def labels_of(dims: Dims) -> list[Label]:
    """Return the labels of all dimensions in order."""
    return [label for dim in dims for label in expanded(dim)]


def number(size: Any) -> int | str:
    """Return a size for the report: a number, or the name of what changes."""
    return int(size) if size.is_Integer else str(size)


class Layout:
    """Names the labels of one match, and reshapes its tensors."""

    def __init__(self, graph: Graph, reads: Iterable[Read]) -> None:
        self.graph = graph
        self.names: dict[Label, str] = {}
        self._sources: dict[Label, tuple[Node, int]] = {}
        for read in [part for whole in reads for part in whole.parts or (whole,)]:
            for axis, dim in enumerate(read.dims):
                labels = expanded(dim)
                if len(labels) == 1:
                    self._sources.setdefault(labels[0], (read.node, axis))

    def name(self, label: Label) -> str:
        """Return the letter of a label."""
        return self.names.setdefault(label, ascii_letters[len(self.names)])

    def spelled(self, labels: Sequence[Label]) -> str:
        """Return the letters of labels, with blanks between."""
        return " ".join(map(self.name, labels))

    def sizes(self) -> dict[str, int | str]:
        """Return the extent of each letter."""
        return {name: number(label.size) for label, name in self.names.items()}

    def laid_out(self, read: Read) -> tuple[Node, list[Label]]:
        """Return a tensor as it lies, with one axis for each label but those that stand still."""
        if read.parts:
            return self._concatenated(read)
        node, labels = read.node, list[Label]()
        for axis in reversed(range(len(read.dims))):
            own = expanded(read.dims[axis])
            if not own:
                node = self.graph.call_method("squeeze", (node, axis))
            elif len(own) > 1:
                node = self.graph.call_method("unflatten", (node, axis, self._sizes_of(own, read.node)))
            for at in reversed(range(len(own))):
                if own[at].at is not None:
                    node = self.graph.call_method("select", (node, axis + at, own[at].at))
            labels[:0] = [label for label in own if label.at is None]
        return node, labels

    def _concatenated(self, read: Read) -> tuple[Node, list[Label]]:
        """Return tensors that are joined along their only label that stands for another extent in each."""
        labels, nodes = labels_of(read.dims), []
        for part in read.parts:
            node, own = self.laid_out(part)
            if {*own} != {*labels}:
                raise Miss("broadcast", part.node)
            nodes.append(self.permuted(node, own, labels))
        assert read.joined is not None
        return self.graph.call_function(torch.cat, (nodes, labels.index(read.joined))), labels

    def folded(self, node: Node, dims: Dims) -> Node:
        """Merge the axes of a result that the program has as one, and add those of one element."""
        for axis, dim in enumerate(dims):
            count = len(expanded(dim))
            if not count:
                node = self.graph.call_method("unsqueeze", (node, axis))
            elif count > 1:
                node = self.graph.call_method("flatten", (node, axis, axis + count - 1))
        return node

    def permuted(self, node: Node, labels: Sequence[Label], wanted: Sequence[Label]) -> Node:
        """Return a tensor with its axes in the order of ``wanted``, and axes of one element where it has none."""
        own = [label for label in wanted if label in labels]
        if own != list(labels):
            node = self.graph.call_method("permute", (node, [labels.index(label) for label in own]))
        for axis, label in enumerate(wanted):
            if label not in labels:
                node = self.graph.call_method("unsqueeze", (node, axis))
        return node

    def broadcast(self, read: Read, wanted: Sequence[Label]) -> Node:
        """Return a tensor as it is combined with one that has an axis for each of ``wanted``."""
        node, labels = self.laid_out(read)
        if not {*labels} <= {*wanted}:
            raise Miss("broadcast", read.node)
        return self.permuted(node, labels, wanted) if labels else node

    def merged(
        self, node: Node, labels: Sequence[Label], several: Sequence[Label], one: Label
    ) -> tuple[Node, list[Label]]:
        """Return a tensor with several of its axes as one, the last."""
        others = [label for label in labels if label not in several]
        node = self.permuted(node, labels, [*others, *several])
        return self.graph.call_method("flatten", (node, len(others), -1)), [*others, one]

    def joined(self, tensors: list[tuple[Node, list[Label]]], function: Any) -> tuple[Node | None, list[Label]]:
        """Combine tensors of some labels each, with axes for all of them."""
        if len(tensors) < 2:
            return tensors[0] if tensors else (None, [])
        every = list(dict.fromkeys([label for _, labels in tensors for label in labels]))
        joined = None
        for node, labels in tensors:
            node = self.permuted(node, labels, every)
            joined = node if joined is None else self.graph.call_function(function, (joined, node))
        return joined, every

    def _sizes_of(self, labels: Sequence[Label], node: Node) -> tuple[Any, ...]:
        sizes: list[Any] = [int(label.size) if label.size.is_Integer else None for label in labels]
        if None in sizes:
            sizes[sizes.index(None)] = -1
        for at, size in enumerate(sizes):
            if size is None:
                if labels[at] not in self._sources:
                    raise Miss("different numel", node)
                sizes[at] = self.graph.call_method("size", self._sources[labels[at]])
        return tuple(sizes)
