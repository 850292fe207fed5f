"""What the ways of the study of the operators take and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from einops_fast.profiles.ways import Call

__all__ = ["Bound", "Function", "OpInputs", "OpWay"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class OpInputs:
    """What a case is computed of.

    Attributes:
        operands: those with gradients.
        target: numbers of the classes, of a loss.
        cotangents: of the results; none for a loss.
    """

    operands: tuple[Any, ...]
    target: Any = None
    cotangents: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A way with what it works on: the call, and the tensors whose gradients are wanted."""

    forward: Call
    leaves: tuple[Any, ...]


@dataclass(frozen=True)
class OpWay:
    """A way to compute a case; ``bind`` takes the inputs, and whether dropout is on in a module."""

    name: str
    bind: Callable[[OpInputs, bool], Bound]
