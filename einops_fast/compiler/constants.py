"""Numbers that nodes stand for: tensors without axes, and those that hold one number everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from einops_fast.compiler.memory import is_written
from einops_fast.compiler.nodes import argument, dtype_of, example_of, name_of, shape_of, source_of

_OF_NUMBERS: dict[str, Callable[[float], float]] = {
    "neg": lambda number: -number,
    "sqrt": math.sqrt,
    "rsqrt": lambda number: number**-0.5,
    "reciprocal": lambda number: 1 / number,
}

_FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}

_PLACES = {"tensor": 0, "scalar_tensor": 0, "new_tensor": 1, "full": 1, "full_like": 1, "new_full": 2, "fill": 1}
"""Which argument is what a tensor is filled with."""

_NAMES = {"tensor": "data", "new_tensor": "data", "scalar_tensor": "s", "fill": "value"}

_THROUGH = frozenset(
    "to type_as type float half bfloat16 double expand expand_as reshape unsqueeze getitem contiguous clone".split()
)


def constant_of(value: Any) -> float | None:
    """Return a number, also where it is spelled as a tensor without axes; ``None`` if it isn't known."""
    if isinstance(value, Node) and shape_of(value) != ():
        return None
    return filling_of(value)


def number_of(value: Any) -> Any:
    """Return the number of Python's that a node is, also one that changes; ``None`` if it is a tensor."""
    value = example_of(value)
    return value if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat)) else None


def guarded(value: Any) -> Any:
    """Return what a number is that may change: the program is compiled again when it does.

    torch does that itself for numbers that are no operands of sums and products.
    """
    number = number_of(value)
    known = isinstance(number, torch.SymFloat) and not free_unbacked_symbols(number)
    return float(number) if known else value


def filling_of(value: Any) -> float | None:
    """Return the number that is everywhere in a tensor, or a number itself; ``None`` if it isn't known."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    name = name_of(value)
    found: float | None = None
    if name in _FILLED:
        found = _FILLED[name]
    elif name in _PLACES:
        found = filling_of(argument(value, _PLACES[name], _NAMES.get(name, "fill_value")))
    elif name in _THROUGH:
        found = filling_of(source_of(value))
    elif name in _OF_NUMBERS:
        found = filling_of(source_of(value))
        defined = found is not None and (found > 0 or name == "neg")
        found = _OF_NUMBERS[name](found) if found is not None and defined else None
    if found is None or is_written(value):
        return None
    return rounded(found, dtype_of(value))


def made_like(value: Any) -> list[Node]:
    """Return the nodes of a filled tensor that take the shape and dtype of another one, and nothing else of it."""
    nodes: list[Node] = []
    while isinstance(value, Node) and isinstance(source_of(value) if value.args else None, Node):
        nodes.append(value)
        if name_of(value).endswith("_like") or name_of(value).startswith("new_"):
            return nodes
        value = source_of(value)
    return []


def rounded(number: float, dtype: torch.dtype | None) -> float:
    """Return a number as a dtype has it."""
    if dtype is None or not math.isfinite(number):
        return number
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


def times_number(node: Node) -> tuple[Node, float] | None:
    """Return what a product or a quotient with a number multiplies, and by what; ``None`` if it is another one."""
    by_division = name_of(node).startswith("div")
    one, other = source_of(node), argument(node, 1, "other")
    if by_division and argument(node, 2, "rounding_mode") is not None:
        return None
    number = constant_of(other)
    if number is not None and isinstance(one, Node):
        if by_division:
            return (one, 1.0 / number) if number else None
        return one, number
    number = constant_of(one)
    return (other, number) if number is not None and isinstance(other, Node) and not by_division else None
