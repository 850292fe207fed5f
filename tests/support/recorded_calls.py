"""Calls of a recorded run, as rows of the table of metrics have them."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from einops_fast.observing.calls import Called, Layout
from einops_fast.planning.layout import contiguous_strides

__all__ = ["attention_call", "einsum_call", "layout", "operator_call", "written"]


def layout(*shape: int, dtype: str = "bfloat16", gradient: bool = False) -> Layout:
    """Return that of an array in C order."""
    return Layout(shape, contiguous_strides(shape), dtype, gradient)


def einsum_call(equation: str, *arrays: Layout | None, **options: Any) -> Called:
    given = {"dtype": None, "memory": [], "order": "K", "path": "auto", "precision": "ieee", **options}
    return _call("einsum", equation, arrays, given)


def operator_call(name: str, arrays: Sequence[Layout | None], *arguments: Any) -> Called:
    return _call("operator", name, arrays, {"arguments": arguments})


def attention_call(*arrays: Layout, window: Any = (64, 0)) -> Called:
    options = {"causal": True, "alignment": None, "window": window, "softcap": 0.0, "scale": None, "dropout_p": 0.0}
    given = {"sequence": None, "patterns": [], "longest": None, "options": options, "names": ["q", "k", "v"]}
    return _call("attention", "b i h d, b j h d, b j h e -> b i h e", arrays, given)


def _call(kind: str, what: str, arrays: Sequence[Layout | None], options: Any) -> Called:
    direction = "both" if any(each is not None and each.gradient for each in arrays) else "forward"
    return Called(kind, what, tuple(arrays), json.dumps(options), "torch", "cuda:0", direction)


def written(path: Path, *calls: Called) -> Path:
    """Write a table of them, and return the path."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["label", "calls", *Called._fields])
        writer.writeheader()
        writer.writerows({"label": "", "calls": "", **call.columns()} for call in calls)
    return path
