"""Reading a call: which arguments are arrays, how the axes are named, whose arrays they are."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, get_args

from einops_fast.annotations import Casting
from einops_fast.backends import Backend, backend_for_type, get_backend
from einops_fast.errors import OperandError, SubscriptsError
from einops_fast.foreign import is_foreign, takes_numpy_functions, takes_torch_functions
from einops_fast.planning.notation import Subscripts, parse, parse_interleaved
from einops_fast.runtime.tracing import is_tracing

_ORDERS = ("C", "F", "A", "K")
CASTINGS: tuple[str, ...] = get_args(Casting)


class Call(NamedTuple):
    """The arguments of an einsum in either form."""

    arrays: Sequence[Any]
    # the equation, or the label lists of the operands and of the result (`None`: implicit)
    spelled: str | tuple[Sequence[Sequence[Hashable]], Sequence[Hashable] | None]

    def subscripts(self, ranks: tuple[int, ...]) -> Subscripts:
        """The parsed equation for operands of these ranks."""
        if isinstance(self.spelled, str):
            return parse(self.spelled, ranks)
        return parse_interleaved(*self.spelled, ranks)


def read_options(order: Any, casting: Any) -> str:
    """Return the order as one capital letter, for any of NumPy's spellings of it; refuse what NumPy doesn't know.

    >>> read_options("f", "safe"), read_options(None, "no")
    ('F', 'K')
    """
    letter = order.decode("latin1") if isinstance(order, bytes) else "K" if order is None else order
    letter = letter.upper() if isinstance(letter, str) else letter
    for name, value, given, known in (("order", letter, order, _ORDERS), ("casting", casting, casting, CASTINGS)):
        if not isinstance(value, str) or value not in known:
            raise OperandError(f"{name} is one of {', '.join(map(repr, known))}, not {given!r}")
    return str(letter)


def read_call(operands: Sequence[Any]) -> Call:
    """Tell arrays from labels: an equation and arrays (or one list of them), or arrays and label lists in turn."""
    if not operands:
        raise SubscriptsError("fast_einsum needs an equation and operands, or operands and lists of labels")
    if isinstance(operands[-1], str) and len(operands) > 1:
        _reject_order(operands[-1])
    if isinstance(operands[0], str):
        arrays = operands[1:]
        if len(arrays) == 1 and isinstance(arrays[0], (list, tuple)) and _holds_arrays(arrays[0]):
            arrays = tuple(arrays[0])
        if not arrays:
            raise SubscriptsError(f"equation {operands[0]!r} has no operands")
        return Call(arrays, operands[0])
    if isinstance(operands[0], bytes):  # NumPy takes these, too
        return read_call((operands[0].decode("latin1"), *operands[1:]))
    count = len(operands) // 2
    lists = []
    for position, term in enumerate([*operands[1 : 2 * count : 2], *operands[2 * count :]]):
        labels = label_list(term)
        if labels is None:
            raise SubscriptsError(
                f"in the form without an equation, every operand is followed by a list of labels; "
                f"what follows operand {position} is of type {type(term).__name__}"
            )
        lists.append(labels)
    output = lists[count] if len(lists) > count else None
    return Call(operands[: 2 * count : 2], (lists[:count], output))


def _reject_order(last: str) -> None:
    """Raise SubscriptsError for what einops has behind the operands: an equation, or a reduction."""
    if re.search(",|->", last):
        raise SubscriptsError(f"the equation comes before the operands: fast_einsum({last!r}, ...)")
    if last in ("all", "any", "max", "mean", "min", "prod", "sum"):
        raise SubscriptsError(
            f"the last operand is {last!r}: fast_einsum sums over the axes that the result lacks; einops.reduce has "
            "other reductions"
        )


def label_list(value: Any) -> Sequence[Hashable] | None:
    """The labels in a sequence, or in an array of integers (and ellipses) with one axis; ``None`` for anything else.

    >>> import numpy as np
    >>> label_list(np.array([0, 2])), label_list(range(2)), label_list("ij")
    ([0, 2], (0, 1), None)
    """
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return tuple(value)
    if getattr(value, "ndim", None) != 1 or not hasattr(value, "tolist"):
        return None
    labels = value.tolist()
    return labels if all(type(label) is int or label is ... for label in labels) else None


def _holds_arrays(values: Sequence[Any]) -> bool:
    if is_tracing():
        return True  # torch.compile can't follow the search for a backend, and has nothing but tensors
    return bool(values) and all(backend_for_type(type(value)) is not None or is_foreign(value) for value in values)


def known_backend(arrays: Sequence[Any], out: Any = None) -> Backend | None:
    """Return the backend of arrays that are all of one type; ``None``: look at each."""
    kinds = set(map(type, arrays))
    if out is not None:
        kinds.add(type(out))
    return backend_for_type(kinds.pop()) if len(kinds) == 1 else None


def is_dispatched(arrays: Sequence[Any]) -> bool:
    """Whether NumPy's functions would be left to one of these arrays, and all others are NumPy's or no arrays."""
    strange, backends = False, set()
    for kind in set(map(type, arrays)) - {type(None)}:  # no `out`, which every backend would be asked for
        backend = backend_for_type(kind)
        if backend is not None:
            backends.add(backend.name)
        elif takes_numpy_functions(kind):
            strange = True
    return strange and backends <= {"numpy"}


def is_handed_over(arrays: Sequence[Any]) -> bool:
    """Whether one of these isn't an array of any backend, and torch leaves its functions to it."""
    return any(map(takes_torch_functions, set(map(type, arrays))))


def own_arrays(arrays: Sequence[Any], out: Any = None) -> tuple[Backend, list[Any]]:
    """The backend that all arrays belong to, and the arrays; scalars and lists become NumPy's."""
    found = [backend_for_type(type(array)) for array in arrays]
    backend = next((each for each in found if each is not None), None) or get_backend("numpy")
    for at, other in enumerate(found):
        if other is not None and other is not backend:
            first = next(index for index, each in enumerate(found) if each is backend)
            raise OperandError(
                f"operands {first} and {at} are of two frameworks, {backend.name} and {other.name}; "
                "convert one of them first"
            )
    if out is not None and backend_for_type(type(out)) is not backend and not backend.writes_to(out):
        raise OperandError(f"out is of type {type(out).__name__}, but the operands are {backend.name} arrays")
    return backend, [
        array if each is not None else backend.convert(array, f"operand {at}")
        for at, (array, each) in enumerate(zip(arrays, found, strict=True))
    ]


def reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """An array of any backend with another shape."""
    if shape == tuple(array.shape):
        return array
    backend = None if is_tracing() else backend_for_type(type(array))
    return array.reshape(shape) if backend is None else backend.reshape(array, shape)


def hashable(value: Any) -> Hashable:
    """Lists as tuples, all the way down."""
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value
