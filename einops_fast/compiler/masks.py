"""Masks that a program makes of nothing but sizes: whether one hides the keys after each query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.nodes import name_of, shape_of

__all__ = ["alignment_of"]

_FUNCTIONS = frozenset(
    "ones zeros full arange ones_like zeros_like full_like tensor triu tril triu_ tril_ not and ge gt le lt eq ne "
    "where masked_fill masked_fill_ mul add sub neg log bool float half bfloat16 to type contiguous unsqueeze getitem "
    "reshape expand transpose t".split()
)
"""What is computed of sizes to see what comes of it."""

_COMPARE_POSITIONS = frozenset("arange triu tril triu_ tril_ ge gt le lt eq ne add sub".split())

_NEAR = 3
"""A number that is less than all sizes that are made up."""

_LARGE = 1e4
_MOST_ELEMENTS, _MOST_NODES = 1 << 24, 40


def alignment_of(node: Node, seen: bool | None) -> str:
    """Return how a causal mask is aligned, ``'top_left'`` or ``'bottom_right'``; ``''`` if a node is none.

    Args:
        node: a mask, or what is added to the scores. Its last axes are those of queries and keys.
        seen: whether True stands for a key that is seen; ``None`` of what is added.
    """
    shape, needed = shape_of(node), _needed(node)
    if shape is None or len(shape) < 2 or needed is None:
        return ""
    if any(isinstance(size, torch.SymInt) for size in shape) and any(map(_names_a_position, needed)):
        return ""
    symbolic = [size.node.expr for size in shape if isinstance(size, torch.SymInt)]
    symbols = sorted({str(symbol) for size in symbolic for symbol in size.free_symbols})
    found = set()
    # Where sizes aren't known, they are made up, so that any two of them differ each way.
    for base, step in ((9, 4), (21, -3)) if symbols else ((0, 0),):
        values = {symbol: base + step * at for at, symbol in enumerate(symbols)}
        try:
            made = _evaluated(needed, values)
        except Exception:  # whatever can't be computed of made up sizes is no mask that is known
            return ""
        found.add(_aligned(made, seen))
    return found.pop() if len(found) == 1 else ""


def _aligned(mask: torch.Tensor, seen: bool | None) -> str:
    mask = mask.reshape(mask.shape[-2:])
    if seen is None:
        if not bool(((mask == 0) | (mask <= -_LARGE)).all()):
            return ""
        mask = mask == 0
    elif not seen:
        mask = ~mask
    rows, columns = mask.shape
    if bool((mask == torch.ones_like(mask).tril()).all()):
        return "top_left"
    return "bottom_right" if bool((mask == torch.ones_like(mask).tril(columns - rows)).all()) else ""


def _needed(node: Node) -> list[Node] | None:
    """Return the nodes that make a mask, in order; ``None`` if they take more than sizes, or other functions."""
    found: dict[Node, None] = {}

    def visit(each: Node) -> bool:
        if each in found:
            return True
        if not isinstance(each.meta.get("example_value"), torch.Tensor):
            return isinstance(each.meta.get("example_value"), (int, torch.SymInt))
        if name_of(each) not in _FUNCTIONS or len(found) > _MOST_NODES:
            return False
        if not all(map(visit, each.all_input_nodes)):
            return False
        found[each] = None
        return True

    return list(found) if visit(node) else None


def _names_a_position(node: Node) -> bool:
    """Return whether a number in a call may be a position that made up sizes don't reach, as in a window."""
    numbers = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, (int, float))]
    return name_of(node) in _COMPARE_POSITIONS and any(abs(number) > _NEAR for number in numbers)


def _evaluated(nodes: list[Node], values: Mapping[str, int]) -> torch.Tensor:
    """Compute nodes on a CPU, with numbers for symbols."""
    results: dict[Node, Any] = {}

    def known(value: Any) -> Any:
        if isinstance(value, Node):
            if value in results:
                return results[value]
            return known(value.meta["example_value"])
        if isinstance(value, torch.SymInt):
            expression = value.node.expr
            return int(expression.subs({each: values[str(each)] for each in expression.free_symbols}))
        if isinstance(value, (tuple, list)):
            return type(value)(map(known, value))
        if isinstance(value, slice):
            return slice(known(value.start), known(value.stop), known(value.step))
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        for node in nodes:
            arguments = known(tuple(node.args))
            options = {name: known(value) for name, value in node.kwargs.items()}
            if node.op == "call_method":
                made = getattr(arguments[0], str(node.target))(*arguments[1:], **options)
            else:
                made = node.target(*arguments, **options)  # type: ignore[operator]
            if made.numel() > _MOST_ELEMENTS:
                raise ValueError
            results[node] = made
    return results[nodes[-1]]  # type: ignore[no-any-return]
