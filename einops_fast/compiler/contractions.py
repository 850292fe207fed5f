"""Nodes that contract two tensors, whatever they call for it, as an einsum of labels."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any, NamedTuple

from torch.fx import Node
from torch.nn import Parameter

from einops_fast.compiler.constants import constant_of, guarded
from einops_fast.compiler.nest import Dims, Label, fresh
from einops_fast.compiler.nodes import (
    argument,
    axis_of,
    example_of,
    expression,
    name_of,
    read_einsum,
    shape_of,
    source_of,
)
from einops_fast.errors import EinsumError
from einops_fast.planning.notation import Subscripts, parse


class Product(NamedTuple):
    """A contraction of two tensors."""

    operands: tuple[tuple[Node, Dims], ...]  # each with what indexes it
    summed: tuple[Label, ...]  # the labels that are summed over
    inner: tuple[Node, ...] = ()  # nodes between the operands and the result
    factor: float = 1.0  # what the sums are multiplied by
    # a tensor that is added to them, if there is one, and what it is multiplied by
    addend: tuple[Node, float] | None = None


_MATRIX_PRODUCTS = ("matmul", "bmm", "mm")
_WITH_ADDEND = {"baddbmm": ("batch1", "batch2"), "addmm": ("mat1", "mat2")}
_OVER_LAST_AXES = ("inner", "linalg_vecdot", "vecdot")
_PRODUCT = "...ik,...kj->...ij"


def is_contraction(node: Any) -> bool:
    """Return whether a node contracts two tensors."""
    name = name_of(node)
    if name in _MATRIX_PRODUCTS or name in (*_WITH_ADDEND, *_OVER_LAST_AXES, "tensordot"):
        return True
    if name == "linear":  # a product of attention; a layer has a parameter for its weight
        return not isinstance(example_of(argument(node, 1, "weight")), Parameter)
    if name == "einsum":
        read = read_einsum(node)
        return read is not None and len(read[1]) == 2
    return name == "sum" and name_of(source_of(node) if node.args else None) == "mul"


def product_of(node: Node, dims: Dims) -> Product | None:
    """Return how a node contracts tensors, if its result is indexed by ``dims``; ``None`` if it doesn't."""
    name = name_of(node)
    if name in _MATRIX_PRODUCTS:
        return _spelled(_PRODUCT, (source_of(node), argument(node, 1, "other", argument(node, 1, "mat2"))), dims)
    if name in _WITH_ADDEND:
        one, other = _WITH_ADDEND[name]
        found = _spelled(_PRODUCT, (argument(node, 1, one), argument(node, 2, other)), dims)
        beta, alpha = [constant_of(guarded(argument(node, at, name, 1))) for at, name in ((3, "beta"), (4, "alpha"))]
        if found is None or beta is None or alpha is None or not isinstance(source_of(node), Node):
            return None
        # With beta=0 what is added is ignored, whatever it holds.
        return found._replace(factor=alpha, addend=(source_of(node), beta) if beta else None)
    if name == "linear":
        bias = argument(node, 2, "bias")
        found = _spelled("...i,oi->...o", (source_of(node), argument(node, 1, "weight")), dims)
        return found._replace(addend=(bias, 1.0)) if found is not None and isinstance(bias, Node) else found
    if name == "einsum":
        read = read_einsum(node)
        return None if read is None else _einsum(*read, dims)
    if name == "tensordot":
        return _tensordot(source_of(node), argument(node, 1, "b"), argument(node, 2, "dims", 2), dims)
    if name == "inner":
        return _tensordot(source_of(node), argument(node, 1, "other"), ([-1], [-1]), dims)
    if name in _OVER_LAST_AXES and not example_of(node).is_complex():  # of which it conjugates one
        operands = argument(node, 0, "x"), argument(node, 1, "y")
        return _of_broadcast(operands, argument(node, 2, "dim", -1), dims)
    if name == "sum":
        return _sum_of_products(node, dims)
    return None


def _spelled(equation: str, operands: Sequence[Any], dims: Dims) -> Product | None:
    """Return a contraction by an equation of letters; ``None`` if the operands have other axes, or are no tensors."""
    shapes = [shape_of(each) for each in operands]
    try:
        ranks = tuple([len(shape) for shape in shapes if shape is not None])
        return _einsum(parse(equation, ranks, words=False), operands, dims)
    except EinsumError:
        return None


def _tensordot(left: Any, right: Any, axes: Any, dims: Dims) -> Product | None:
    one, other = shape_of(left), shape_of(right)
    if one is None or other is None:
        return None
    if isinstance(axes, int):
        axes = list(range(len(one) - axes, len(one))), list(range(axes))
    first, second = [[axis % len(shape) for axis in each] for each, shape in zip(axes, (one, other), strict=True)]
    names, others = list(ascii_letters[: len(one)]), list(ascii_letters[len(one) : len(one) + len(other)])
    for at, place in zip(first, second, strict=True):
        others[place] = names[at]
    output = [name for name in (*names, *others) if not (name in names and name in others)]
    return _spelled(f"{''.join(names)},{''.join(others)}->{''.join(output)}", (left, right), dims)


def _einsum(read: Subscripts, operands: Sequence[Any], dims: Dims) -> Product | None:
    if len(operands) != 2:
        return None
    shapes = [shape_of(each) for each in operands]
    index = dict(zip(read.output, dims, strict=True))
    sizes: dict[str, Any] = {}
    for labels, shape in zip(read.inputs, shapes, strict=True):
        for label, size in zip(labels, shape or (), strict=True):
            if expression(size) != 1:
                sizes[label] = size
    summed: list[Label] = []
    for label in dict.fromkeys("".join(read.inputs)):
        if label not in index:
            (index[label],) = fresh([sizes.get(label, 1)])
            summed += index[label]
    found = []
    for operand, labels, shape in zip(operands, read.inputs, shapes, strict=True):
        own = [() if expression(size) == 1 else index[label] for label, size in zip(labels, shape or (), strict=True)]
        found.append((operand, tuple(own)))
    # A label of one operand alone is a sum of its own.
    held = [{label for dim in own for label in dim} for _, own in found]
    if any(sum(label in each for each in held) < 2 for label in summed):
        return None
    return Product(tuple(found), tuple(summed))


def _sum_of_products(node: Node, dims: Dims) -> Product | None:
    multiplied, axis = source_of(node), axis_of(node)
    shape = shape_of(multiplied)
    plain = argument(node, 2, "keepdim", False) is False and node.kwargs.get("dtype") is None
    if name_of(multiplied) != "mul" or not isinstance(axis, int) or shape is None or not plain:
        return None
    found = _of_broadcast((source_of(multiplied), argument(multiplied, 1, "other")), axis, dims)
    return found._replace(inner=(multiplied,)) if found is not None and found.summed else None


def _of_broadcast(operands: Sequence[Any], axis: Any, dims: Dims) -> Product | None:
    """Return the sum along an axis of the product of operands that are broadcast to each other."""
    ranks = [len(shape_of(each) or ()) for each in operands]
    letters = ascii_letters[: max(ranks)]
    one, other = [letters[len(letters) - rank :] for rank in ranks]
    if not isinstance(axis, int) or min(ranks) < -(axis % len(letters) - len(letters)):
        return None
    return _spelled(f"{one},{other}->{letters.replace(letters[axis], '')}", operands, dims)
