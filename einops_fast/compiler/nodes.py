"""Nodes of Dynamo's graphs: which function of torch one calls, with which arguments, and what its result is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from einops_fast.errors import EinsumError
from einops_fast.planning.notation import Subscripts, parse

_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "view": "reshape", "view_as": "reshape_as",
    "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "invert": "not", "bitwise_not": "not",
    "logical_not": "not", "special_softmax": "softmax", "greater_equal": "ge", "greater": "gt", "less_equal": "le",
    "less": "lt", "not_equal": "ne", "and_": "and", "or_": "or", "bitwise_and": "and", "logical_and": "and",
    "bitwise_or": "or", "logical_or": "or", "iand": "logical_and_", "ior": "logical_or_",
}  # fmt: skip
"""Names that functions of torch, methods of its tensors and operators of Python have for the same."""

_AS_NUMPY = {"dim": "axis", "keepdim": "keepdims"}
"""Names of arguments that torch takes from NumPy, too."""

_OWN = ("torch", "_operator", "operator", "math", "builtins")
"""Modules whose functions have the names that they are known by here."""


def name_of(node: Any) -> str:
    """Return the name of what a node calls, one for all its spellings; empty for anything that isn't torch's."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return ""
    target: Any = node.target
    if node.op == "call_method":
        name = str(target)
    elif isinstance(target, torch._ops.OpOverload):
        name = str(target).split(".")[1] if target.namespace in ("aten", "einops_fast") else ""
    else:
        module = getattr(target, "__module__", None) or "torch"
        name = getattr(target, "__name__", "") if module.partition(".")[0] in _OWN else ""
    return _ALIASES.get(name, name)


def argument(node: Any, at: int, name: str, default: Any = None) -> Any:
    """Return an argument, given by position or by name, which may be NumPy's."""
    if at < len(node.args):
        return node.args[at]
    return node.kwargs.get(name, node.kwargs.get(_AS_NUMPY.get(name), default))


def source_of(node: Any) -> Any:
    """Return what a node takes first."""
    return argument(node, 0, "input")


def axis_of(node: Node) -> Any:
    """Return the one axis that a reduction goes along."""
    axis: Any = argument(node, 1, "dim")
    return axis[0] if isinstance(axis, Sequence) and len(axis) == 1 else axis


def called(node: Node, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return what a node makes of arguments."""
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **options)
    function: Any = node.target
    return function(*arguments, **options)


def example_of(value: Any) -> Any:
    """Return the fake tensor, or the number, that a node stands for; anything else as it is."""
    return value.meta.get("example_value") if isinstance(value, Node) else value


def shape_of(node: Any) -> Sequence[Any] | None:
    """Return the shape of a node's tensor; ``None`` if it has none."""
    value = example_of(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype of a node's tensor."""
    value = example_of(node)
    return value.dtype if isinstance(value, torch.Tensor) else None


def same_size(one: Any, other: Any) -> bool:
    """Return whether two sizes, either of which may be symbolic, are equal whatever the symbols stand for."""
    return bool(expression(one) == expression(other))


def is_known(size: Any, other: Any) -> bool:
    """Return whether a size equals an expression by what the program has required so far of sizes that change."""
    if not isinstance(size, torch.SymInt):
        return False
    environment: Any = size.node.shape_env
    return statically_known_true(size == environment.create_symintnode(other, hint=size.node.hint))


def expression(size: Any) -> Any:
    """Return a size as an expression of sympy."""
    import sympy

    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))


def read_einsum(node: Node) -> tuple[Subscripts, tuple[Node, ...]] | None:
    """Return the subscripts of an einsum and its operands; ``None`` where they aren't known, or an axis is repeated."""
    given = list(node.args)
    if len(given) > 1 and isinstance(given[1], str):
        given[:2] = given[1::-1]  # our operator has the tensors first
    if given and isinstance(given[0], str):
        equation, operands = given[0], given[1:]
        if operands and isinstance(operands[0], (tuple, list)):
            operands = list(operands[0])
    else:
        equation, operands = _in_letters(given[1::2]), given[: len(given) // 2 * 2 : 2]
        if len(given) % 2:
            equation += "->" + _in_letters(given[-1:])
    nodes = tuple([each for each in operands if isinstance(each, Node)])
    ranks = tuple([len(shape_of(node) or ()) for node in nodes])
    try:
        read = parse(equation, ranks, words=False)
    except EinsumError:
        return None
    if len(nodes) < len(operands) or any(len(set(labels)) < len(labels) for labels in read.inputs):
        return None
    return read, nodes


def _in_letters(terms: Sequence[Any]) -> str:
    return ",".join(["".join(["..." if at is ... else ascii_letters[at] for at in term]) for term in terms])
