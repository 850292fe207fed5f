"""Whether sizes of arguments fit each other: one error, which names both, the axis and the two sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.errors import ShapeError

__all__ = ["check_broadcast", "check_sizes"]


def check_sizes(name: str, array: Any, of: str, shape: Sequence[int], axes: Sequence[int]) -> None:
    """Raise ShapeError unless an array has the sizes of these axes of another one, in this order.

    Args:
        name: of the argument, which may be ``None``.
        array: what has to have them.
        of: what the other one is called.
        shape: of the other one.
        axes: its axes, not negative.

    Example:
        >>> import numpy as np
        >>> from einops_fast.ops.sizes import check_sizes
        >>> check_sizes('weight', np.ones(3), 'input', (2, 4), [1])
        Traceback (most recent call last):
        einops_fast.errors.ShapeError: axis 0 of weight of shape (3,) has size 3, but axis 1 of input of shape (2, 4) has size 4
    """  # noqa: E501 - what is printed is in one line
    if array is None or array.shape == (wanted := tuple([shape[at] for at in axes])):
        return
    found = tuple(array.shape)
    if len(found) != len(wanted):
        raise ShapeError(f"{name} has shape {found}, but {of} of shape {tuple(shape)} needs one of shape {wanted}")
    at = next(at for at, (size, other) in enumerate(zip(found, wanted, strict=True)) if size != other)
    raise ShapeError(_differ(name, found, at, of, shape, axes[at]))


def check_broadcast(name: str, array: Any, of: str, shape: Sequence[int]) -> None:
    """Raise ShapeError unless an array, or ``None``, can be broadcast to a shape.

    >>> import numpy as np
    >>> from einops_fast.ops.sizes import check_broadcast
    >>> check_broadcast('mask', np.ones((2, 1)), 'input', (3, 2, 4))
    """
    found = () if array is None else array.shape
    if len(found) > len(shape):
        raise ShapeError(
            f"{name} of shape {tuple(found)} has {len(found)} axes, more than the {len(shape)} of {of} of shape "
            f"{tuple(shape)}"
        )
    for at in range(1, len(found) + 1):
        # torch.compile finds no symbol in a tuple, be it of the same size.
        if found[-at] != 1 and found[-at] != shape[-at]:
            raise ShapeError(_differ(name, found, len(found) - at, of, shape, len(shape) - at))


def _differ(name: str, found: Sequence[int], at: int, of: str, shape: Sequence[int], axis: int) -> str:
    return (
        f"axis {at} of {name} of shape {tuple(found)} has size {found[at]}, but axis {axis} of {of} of shape "
        f"{tuple(shape)} has size {shape[axis]}"
    )
