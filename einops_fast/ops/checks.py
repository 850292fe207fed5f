"""Whether arguments are what the operators take: options by one table, sizes and masks by another array's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import EinsumError, OperandError, ShapeError
from einops_fast.vocabulary import closest

ACTIVATIONS = (
    "none", "relu", "leaky_relu", "gelu", "gelu_tanh", "squared_relu", "smelu", "star_relu", "silu"
)  # fmt: skip
"""Names of the activations."""

# Functions that torch.compile can trace: torch 2.11 can't a tuple's own method.
_NUMBER = "a number", lambda value: -inf <= value

_FLAG = "True or False", lambda value: bool(value) or True  # whose truth value is an error for several elements

_PROBABILITY = "a probability, from 0 to 1", lambda value: 0 <= value <= 1

_OPTIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "approximate": ("'none' or 'tanh'", lambda value: value in ("none", "tanh")),
    # An array of several elements isn't compared: that is no truth value.
    "causal": (
        "True, 'top_left' or 'bottom_right'",
        lambda value: getattr(value, "shape", ()) == () and value in (True, False, "top_left", "bottom_right"),
    ),
    "label_smoothing": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "reduction": ("'mean', 'sum' or 'none'", lambda value: value in ("mean", "sum", "none")),
    "temperature": ("a positive number", lambda value: value > 0),
    "z_loss": ("a number from 0 on", lambda value: value >= 0),
    **dict.fromkeys(("eps", "scaling"), _NUMBER),
    **dict.fromkeys(("training", "rms", "inplace_backward", "bias", "elementwise_affine"), _FLAG),
    **dict.fromkeys(
        ("p", "dropout", "dropout_p", "attn_pdrop", "resid_pdrop", "attention_probs_dropout_prob"), _PROBABILITY
    ),
}
"""What the options of functions and modules are, in plain words, and whether a value is that."""


def check_values(**options: Any) -> None:
    """Raise EinsumError unless the values of options are what the table says."""
    for name, value in options.items():
        what, fits = _OPTIONS[name]
        try:
            if type(value) is int:
                float(value)  # which not all are
            if fits(value):
                continue
        except (OverflowError, TypeError, ValueError, RuntimeError):  # it can't be compared, or has several elements
            pass
        raise EinsumError(f"{name} is {what}, not {value!r}")


def check_activation(activation: str) -> None:
    """Raise EinsumError unless there is an activation of this name."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise EinsumError(
            f"activation {activation!r} isn't one of {', '.join(ACTIVATIONS)}{closest(activation, ACTIVATIONS)}"
        )


def check_sizes(of: str, shape: Sequence[int], axes: Sequence[int], **arrays: Any) -> None:
    """Raise ShapeError unless arrays, each perhaps ``None``, have the sizes of these axes of another one, in order."""
    wanted: tuple[int, ...] | None = None
    for name, array in arrays.items():
        if array is None:
            continue
        if wanted is None:
            wanted = tuple([shape[at] for at in axes])
        if array.shape == wanted:
            continue
        found = tuple(array.shape)
        if len(found) != len(wanted):
            raise ShapeError(f"{name} has shape {found}, but {of} of shape {tuple(shape)} needs one of shape {wanted}")
        at = next(at for at, (size, other) in enumerate(zip(found, wanted, strict=True)) if size != other)
        raise ShapeError(differ(name, found, at, of, shape, axes[at]))


def check_broadcast(name: str, array: Any, of: str, shape: Sequence[int]) -> None:
    """Raise ShapeError unless an array, or ``None``, can be broadcast to a shape."""
    found = () if array is None else array.shape
    if len(found) > len(shape):
        raise ShapeError(
            f"{name} of shape {tuple(found)} has {len(found)} axes, more than the {len(shape)} of {of} of shape "
            f"{tuple(shape)}"
        )
    for at in range(1, len(found) + 1):
        # torch.compile finds no symbol in a tuple, be it of the same size.
        if found[-at] != 1 and found[-at] != shape[-at]:
            raise ShapeError(differ(name, found, len(found) - at, of, shape, len(shape) - at))


def check_mask(name: str, mask: Any, of: str, shape: Sequence[int]) -> None:
    """Raise OperandError or ShapeError unless a mask, or ``None``, can hide or be added to what has this shape."""
    if mask is None:
        return
    kind = dtype_name(mask.dtype)
    if kind not in ("bool", "bool_", *FLOATS):
        raise OperandError(f"{name} is boolean or has floating-point numbers to be added, not {kind}")
    check_broadcast(name, mask, of, shape)


def differ(name: str, found: Sequence[int], at: int, of: str, shape: Sequence[int], axis: int) -> str:
    """Return the text of an error about an axis of an array and another size in an axis of another array."""
    return (
        f"axis {at} of {name} of shape {tuple(found)} has size {found[at]}, but axis {axis} of {of} of shape "
        f"{tuple(shape)} has size {shape[axis]}"
    )
