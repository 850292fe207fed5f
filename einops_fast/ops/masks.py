"""Masks of operators: what they may be made of, and which shapes they may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import OperandError
from einops_fast.ops.sizes import check_broadcast

__all__ = ["check_mask"]


def check_mask(name: str, mask: Any, of: str, shape: Sequence[int]) -> None:
    """Raise OperandError or ShapeError unless a mask, or ``None``, can hide or be added to what has this shape.

    Args:
        name: of the argument.
        mask: an array.
        of: what has the shape.
        shape: what the mask is broadcast to.
    """
    if mask is None:
        return
    kind = dtype_name(mask.dtype)
    if kind not in ("bool", "bool_", *FLOATS):
        raise OperandError(f"{name} is boolean or has floating-point numbers to be added, not {kind}")
    check_broadcast(name, mask, of, shape)
