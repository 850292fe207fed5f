"""Nodes that contract two tensors, whatever they call for it, as an einsum of labels."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any, NamedTuple

from torch.fx import Node

from einops_fast.compiler.constants import constant_of
from einops_fast.compiler.nest import Dims, Label, expanded, fresh
from einops_fast.compiler.nodes import argument, axis_of, expression, name_of, read_einsum, shape_of, source_of
from einops_fast.compiler.views import broadcast
from einops_fast.planning.notation import Subscripts, parse

__all__ = ["Product", "is_contraction", "product_of"]


class Product(NamedTuple):
    """A contraction of tensors."""

    operands: tuple[tuple[Node, Dims], ...]  # each with what indexes it
    summed: tuple[Label, ...]  # the labels that are summed over
    inner: tuple[Node, ...] = ()  # nodes between the operands and the result
    factor: float = 1.0  # what the sums are multiplied by
    # a tensor that is added to them, if there is one, and what it is multiplied by
    addend: tuple[Node, float] | None = None


_MATRIX_PRODUCTS = ("matmul", "bmm", "mm")


def is_contraction(node: Any) -> bool:
    """Return whether a node contracts two tensors."""
    name = name_of(node)
    if name in _MATRIX_PRODUCTS or name in ("baddbmm", "tensordot"):
        return True
    if name == "einsum":
        read = read_einsum(node)
        return read is not None and len(read[1]) == 2
    return name == "sum" and name_of(source_of(node) if node.args else None) == "mul"


def product_of(node: Node, dims: Dims) -> Product | None:
    """Return how a node contracts tensors, if its result is indexed by ``dims``; ``None`` if it doesn't."""
    name = name_of(node)
    if name in _MATRIX_PRODUCTS:
        return _matrix_product(source_of(node), argument(node, 1, "other", argument(node, 1, "mat2")), dims)
    if name == "baddbmm":
        found = _matrix_product(argument(node, 1, "batch1"), argument(node, 2, "batch2"), dims)
        beta, alpha = constant_of(argument(node, 3, "beta", 1)), constant_of(argument(node, 4, "alpha", 1))
        if found is None or beta is None or alpha is None or not isinstance(source_of(node), Node):
            return None
        # With beta=0 what is added is ignored, whatever it holds.
        return found._replace(factor=alpha, addend=(source_of(node), beta) if beta else None)
    if name == "linear":
        return _linear(node, dims)
    if name == "einsum":
        read = read_einsum(node)
        return None if read is None else _einsum(*read, dims)
    if name == "tensordot":
        return _tensordot(node, dims)
    if name == "sum":
        return _sum_of_products(node, dims)
    return None


def _matrix_product(left: Any, right: Any, dims: Dims) -> Product | None:
    one, other = shape_of(left), shape_of(right)
    if one is None or other is None or len(one) < 2 or len(other) < 2:
        return None
    (shared,) = fresh(one[-1:])
    *batch, rows, columns = dims
    lead_one, lead_other = _batch(batch, one[:-2]), _batch(batch, other[:-2])
    if lead_one is None or lead_other is None:
        return None
    return Product(((left, (*lead_one, rows, shared)), (right, (*lead_other, shared, columns))), shared)


def _linear(node: Node, dims: Dims) -> Product | None:
    x, weight, bias = source_of(node), argument(node, 1, "weight"), argument(node, 2, "bias")
    shape = shape_of(x)
    if shape is None or len(shape_of(weight) or ()) != 2:
        return None
    (shared,) = fresh(shape[-1:])
    addend = (bias, 1.0) if isinstance(bias, Node) else None
    return Product(((x, (*dims[:-1], shared)), (weight, (dims[-1], shared))), shared, addend=addend)


def _batch(dims: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    if len(shape) > len(dims):
        return None
    found = dims[len(dims) - len(shape) :]
    return [() if expression(size) == 1 else dim for dim, size in zip(found, shape, strict=True)]


def _tensordot(node: Node, dims: Dims) -> Product | None:
    left, right = node.args[0], argument(node, 1, "b")
    axes: Any = argument(node, 2, "dims", 2)
    one, other = shape_of(left), shape_of(right)
    if one is None or other is None:
        return None
    if isinstance(axes, int):
        axes = list(range(len(one) - axes, len(one))), list(range(axes))
    first, second = [[axis % len(shape) for axis in each] for each, shape in zip(axes, (one, other), strict=True)]
    letters = iter(ascii_letters)
    names = [next(letters) for _ in one]
    others = [names[first[second.index(at)]] if at in second else next(letters) for at in range(len(other))]
    output = [*[name for at, name in enumerate(names) if at not in first],
              *[name for at, name in enumerate(others) if at not in second]]  # fmt: skip
    equation = f"{''.join(names)},{''.join(others)}->{''.join(output)}"
    return _einsum(parse(equation, (len(one), len(other)), words=False), (left, right), dims)


def _einsum(read: Subscripts, operands: Sequence[Any], dims: Dims) -> Product | None:
    if len(operands) < 2:
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
    multiplied = source_of(node)
    axis = axis_of(node)
    shape = shape_of(multiplied)
    plain = argument(node, 2, "keepdim", False) is False and node.kwargs.get("dtype") is None
    if not isinstance(multiplied, Node) or not isinstance(axis, int) or shape is None or not plain:
        return None
    axis %= len(shape)
    (shared,) = fresh(shape[axis : axis + 1])
    own = (*dims[:axis], shared, *dims[axis:])
    left, right = source_of(multiplied), argument(multiplied, 1, "other")
    one, other = broadcast(own, left), broadcast(own, right)
    if one is None or other is None or not shared:
        return None
    if any(shared[0] not in [label for dim in each for label in expanded(dim)] for each in (one, other)):
        return None
    return Product(((left, one), (right, other)), shared, (multiplied,))
