"""Nodes of Dynamo's graphs: which function of torch one calls, with which arguments, and what its result is like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

__all__ = ["argument", "constant_of", "dtype_of", "mutates", "name_of", "same_size", "shape_of", "source_of"]

_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "view": "reshape", "view_as": "reshape_as",
    "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "invert": "not", "bitwise_not": "not",
    "logical_not": "not", "special_softmax": "softmax",
}  # fmt: skip
"""Names that functions of torch, methods of its tensors and operators of Python have for the same."""

_OF_NUMBERS: dict[str, Callable[[float], float]] = {
    "neg": lambda number: -number,
    "sqrt": math.sqrt,
    "rsqrt": lambda number: number**-0.5,
    "reciprocal": lambda number: 1 / number,
}

_OWN = ("torch", "_operator", "operator", "math", "builtins")
"""Modules whose functions have the names that they are known by here."""


def name_of(node: Any) -> str:
    """Return the name of what a node calls, one for all its spellings; empty for anything that isn't torch's."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        target: Any = node.target
        module = getattr(target, "__module__", None) or "torch"
        if isinstance(target, torch._ops.OpOverload):
            name = str(target).split(".")[1]
            if target.namespace not in ("aten", "einops_fast"):
                return ""
        elif module.partition(".")[0] in _OWN:
            name = getattr(target, "__name__", "")
        else:
            return ""
    else:
        return ""
    return _ALIASES.get(name, name)


def mutates(node: Node) -> bool:
    """Return whether a node writes into one of its arguments."""
    if node.op not in ("call_function", "call_method"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        library, name, overload = str(node.target).split(".")
        # Operators of others may do so, whatever they are called.
        return library not in ("aten", "einops_fast") or name.endswith("_") or "out" in overload
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True:
        return True
    name = name_of(node)
    if name == "setitem" or (name.endswith("_") and not name.endswith("__")):
        return True
    place = {"dropout": 3, "relu": 1, "silu": 1}.get(name)  # of the argument that says so
    return place is not None and argument(node, place, "inplace", False) is True


def argument(node: Node, at: int, name: str, default: Any = None) -> Any:
    """Return an argument, given by position or by name."""
    if at < len(node.args):
        return node.args[at]
    return node.kwargs.get(name, default)


def source_of(node: Node) -> Any:
    """Return what a node takes first."""
    return argument(node, 0, "input")


def _example(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, Node) else None


def shape_of(node: Any) -> Sequence[Any] | None:
    """Return the shape of a node's tensor; ``None`` if it has none."""
    value = _example(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype of a node's tensor."""
    value = _example(node)
    return value.dtype if isinstance(value, torch.Tensor) else None


def constant_of(value: Any) -> float | None:
    """Return a number, also where it is spelled as a tensor without axes; ``None`` if it isn't known."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    name = name_of(value)
    if name in ("tensor", "scalar_tensor"):
        return constant_of(argument(value, 0, "data"))
    if name == "full" and shape_of(value) == ():
        return constant_of(argument(value, 1, "fill_value"))
    if name in ("to", "type_as", "type", "float", "half", "bfloat16", "double") and shape_of(value) == ():
        return constant_of(source_of(value))
    function = _OF_NUMBERS.get(name)
    if function is not None and shape_of(value) == ():
        found = constant_of(source_of(value))
        return function(found) if found is not None and (found > 0 or name == "neg") else None
    return None


def same_size(one: Any, other: Any) -> bool:
    """Return whether two sizes, either of which may be symbolic, are equal whatever the symbols stand for."""
    return bool(expression(one) == expression(other))


def expression(size: Any) -> Any:
    """Return a size as an expression of sympy."""
    import sympy

    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))
