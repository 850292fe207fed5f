"""Cross entropy of a linear layer, as at the end of a language model: the logits needn't all be there at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from einops_fast.compiler.calls import call_linear_cross_entropy
from einops_fast.compiler.constants import guarded
from einops_fast.compiler.contractions import product_of
from einops_fast.compiler.layout import Layout, labels_of
from einops_fast.compiler.match import Inserted, Match, Miss, Read
from einops_fast.compiler.nest import Dims, Label, fresh
from einops_fast.compiler.nodes import argument, dtype_of, example_of, name_of, shape_of, source_of
from einops_fast.compiler.views import is_cast, seen_through

_MANY = 64 << 20
"""Bytes of logits from which on they aren't made at once."""


@dataclass
class Loss(Match):
    """A cross entropy whose logits are those of a linear layer."""

    node: Node  # the loss
    x: Read  # what the layer is of
    matrix: Read  # the layer's weight
    bias: Node | None  # the layer's
    # of the loss
    target: Node
    weight: Node | None
    options: dict[str, Any]  # of the loss, as our function takes them
    classes: Label  # the label of the classes
    rows: Any = None  # the index by which some of the logits are left out
    inner: list[Node] = field(default_factory=list)  # nodes between the operands and the loss

    @property
    def reads(self) -> list[Read]:  # type: ignore[override]
        others = [each for each in (self.bias, self.target, self.weight) if each is not None]
        return [self.x, self.matrix, *[Read(each, ()) for each in others]]

    def insert(self, graph: Graph) -> Inserted:
        """Put in the call."""
        layout = Layout(graph, [self.x, self.matrix])
        x, matrix = self.x.node, self.matrix.node
        of_x, of_matrix = labels_of(self.x.dims), labels_of(self.matrix.dims)
        pattern = f"{layout.spelled(of_x)}, {layout.spelled(of_matrix)} -> "
        if self.rows is not None:
            x = graph.call_function(getitem, (x, self.rows))
        if of_matrix[0] is not self.classes:
            matrix = graph.call_method("t", (matrix,))
        call = graph.call_function(
            call_linear_cross_entropy,
            (x, matrix, self.target, self.bias, self.weight),
            {**self.options, "dtype": dtype_of(self.node)},
        )
        if self.options["reduction"] == "none":
            pattern += layout.spelled(of_x[:-1])
        return Inserted({self.node: call}, pattern, layout.sizes(), 2 * _bytes_of(self.inner[-1]))


def match_loss(node: Node) -> Loss | None:
    """Return the loss of a linear layer that a node is; ``None`` if it is none."""
    if name_of(node) != "cross_entropy":
        return None
    shape, target, weight = shape_of(source_of(node)), argument(node, 1, "target"), argument(node, 2, "weight")
    if shape is None or len(shape) < 2 or dtype_of(target) != torch.int64:
        return None
    dims = fresh(shape)
    classes, of_rows = dims[1], (dims[0], *dims[2:])
    if not classes:
        return None
    classes[0].whole = True
    path = _to_layer(source_of(node), dims, classes)
    if path is None:
        return None
    logits, own, index, inner = path
    product = product_of(logits, own)
    if product is None:
        return None
    x, matrix = product.operands
    if classes in x[1]:
        x, matrix = matrix, x
    rows = labels_of(of_rows if index is None else own[:-1])
    in_rows = labels_of(x[1][:-1]) == rows and x[1][-1] == product.summed and len(product.summed) == 1
    if not in_rows or set(matrix[1]) != {classes, product.summed} or len(matrix[1]) != 2:
        raise Miss("different loop order", logits)
    bias = None if product.addend is None else product.addend[0]
    options = _options(node)
    if options is None or product.factor != 1 or (bias is not None and len(shape_of(bias) or ()) != 1):
        raise Miss("unsupported option", node)
    if len({dtype_of(each) for each in (x[0], matrix[0], logits, bias) if each is not None}) != 1:
        raise Miss("dtype", logits)
    # Our operator has no functional derivatives.
    if any(name_of(each).endswith("increment_nesting") for each in node.graph.nodes):
        raise Miss("unsupported option", node)
    if _bytes_of(logits) < _MANY:
        raise Miss("not worth it", node)
    inner = [*inner, logits, *product.inner]
    weight = weight if isinstance(weight, Node) else None
    return Loss(node, Read(*x), Read(*matrix), bias, target, weight, options, classes[0], index, inner)


def _options(node: Node) -> dict[str, Any] | None:
    """Return the options of a loss; ``None`` if some of them are others, or aren't known."""
    ignore_index, reduction = argument(node, 4, "ignore_index", -100), argument(node, 6, "reduction", "mean")
    smoothing = guarded(argument(node, 7, "label_smoothing", 0.0))
    old = argument(node, 3, "size_average"), argument(node, 5, "reduce")
    known = isinstance(ignore_index, int) and isinstance(reduction, str) and isinstance(smoothing, (int, float))
    if not known or old != (None, None):
        return None
    return {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": float(smoothing)}


def _to_layer(node: Any, dims: Dims, classes: Any) -> tuple[Node, Dims, Any, list[Node]] | None:
    """Follow views and casts of logits back to what makes them.

    Return it with what indexes it, the index by which some of its rows are taken, and the nodes on the way.
    """
    inner: list[Node] = []
    index: Any = None
    while isinstance(node, Node):
        if dims.count(classes) == 1 and product_of(node, dims) is not None:
            return node, dims, index, inner
        inner.append(node)
        if is_cast(node) and dtype_of(node) == torch.float32:
            node = source_of(node)
            continue
        seen = seen_through(node, dims)
        if seen is not None:
            node, dims = seen
        elif name_of(node) == "getitem" and index is None and _keeps_classes(node.args[1], len(dims)):
            index, source = node.args[1], source_of(node)
            shape = shape_of(source)
            if shape is None or len(shape) != len(dims) or dims[-1] != classes:
                return None
            # Of fewer rows or more, in the same order.
            node, dims = source, (*fresh(shape[:-1]), classes)
        else:
            return None
    return None


def _keeps_classes(index: Any, rank: int) -> bool:
    """Return whether an index takes slices of the axes before the last one of so many, which it leaves whole."""
    entries = index if isinstance(index, tuple) else (index,)
    reaches_last = len(entries) == rank or ... in entries[:-1]
    plain = all(entry is ... or isinstance(entry, slice) for entry in entries)
    return plain and (not reaches_last or entries[-1] in (..., slice(None)))


def _bytes_of(node: Node) -> int:
    """Return the bytes of a tensor; where sizes change, of the one with which the program is compiled."""
    sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in shape_of(node) or ()]
    return 0 if None in sizes else prod(sizes) * example_of(node).element_size()
