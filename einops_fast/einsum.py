"""`fast_einsum`: from a call to a cached, compiled plan."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from einops_fast.backends import Backend, backend_for_type, get_backend
from einops_fast.backends import _by_type as _awake_types
from einops_fast.errors import OperandError, SubscriptsError
from einops_fast.notation import Subscripts, parse, parse_interleaved
from einops_fast.plan import Plan, compile_plan, make_plan
from einops_fast.target import Operand

__all__ = ["clear_plans", "fast_einsum", "own_arrays", "plan_arguments", "plan_call"]

_MOST_PLANS = 4096
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
_lock = threading.Lock()
_compiled: dict[Hashable, Callable[..., Any]] = {}


def fast_einsum(
    *operands: Any,
    out: Any = None,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = "auto",
) -> Any:
    """Einstein summation on arrays of any supported framework; the result is an array of the same framework.

    Call it as ``fast_einsum(equation, *arrays)``, or with lists of labels between the arrays as
    ``fast_einsum(a, [0, 1], b, [1, 2], [0, 2])``. See :mod:`einops_fast.notation` for what an equation may be.

    Args:
        operands: an equation and the arrays, or arrays and label lists in turn. All arrays are of one
            framework and on one device. Lists and Python scalars count as NumPy arrays.
        out: array of the result's shape to write to; it is returned.
        dtype: dtype to compute in, and of the result.
        order: memory order of the result: ``'C'``, ``'F'``, ``'A'`` or ``'K'`` (whatever is fastest).
        casting: which conversions to ``dtype`` are allowed, as in NumPy.
        optimize: how to choose the order of contraction of three and more operands: ``'auto'``, ``True``,
            ``False`` (left to right), the name of an opt_einsum optimizer, an explicit path, or
            ``(name, memory_limit in elements)``.

    Returns:
        The result: a view of the operand where the native einsum gives one.

    Raises:
        SubscriptsError: the equation is malformed.
        ShapeError: an operand's rank or the size of an axis doesn't fit.
        OperandError: the operands don't belong together. All three are ``ValueError`` (and, as torch users
            expect, ``RuntimeError``).

    Example:
        >>> import numpy as np
        >>> from einops_fast import fast_einsum
        >>> q, k = np.ones((2, 3, 5, 4)), np.ones((2, 3, 6, 4))
        >>> fast_einsum('batch head i d, batch head j d -> batch head i j', q, k).shape
        (2, 3, 5, 6)
    """
    if _tracing():
        return _call_traced(operands, out, dtype)
    if type(operands[0] if operands else None) is str and out is None and dtype is None:
        arrays = operands[1:]
        try:
            key = (operands[0], _awake_types[type(arrays[0])].signature(arrays), order, casting, optimize)
            run = _compiled[key]
        except (KeyError, IndexError, AttributeError, TypeError):
            pass
        else:
            return run(*arrays)
    return _call(operands, out, dtype, order, casting, optimize)


def clear_plans() -> None:
    """Forget all compiled plans."""
    with _lock:
        _compiled.clear()


def _tracing() -> bool:
    """Whether torch.compile is tracing the caller (then torch is imported already)."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def _call_traced(operands: Sequence[Any], out: Any, dtype: Any) -> Any:
    """Under torch.compile: torch's own einsum on plain letters, which the compiler lowers and fuses itself."""
    equation, arrays, labels = _split(operands)
    ranks = tuple([array.dim() for array in arrays])
    if dtype is not None:
        arrays = [array.to(dtype) for array in arrays]
    result = sys.modules["torch"].einsum(_letters(equation, labels, ranks), arrays)
    return result if out is None else out.copy_(result)


def _letters(equation: str | None, labels: Any, ranks: tuple[int, ...]) -> str:
    return _parse(equation, labels, ranks).equation


# Tells torch.compile to call the function while tracing and to take its result as a constant.
_letters._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _call(operands: Sequence[Any], out: Any, dtype: Any, order: str, casting: str, optimize: Any) -> Any:
    """The careful way: check everything, make the plan, remember it."""
    equation, arrays, labels = _split(operands)
    backend, arrays = own_arrays(arrays, out)
    plain = out is None and dtype is None and equation is not None
    run = None
    if plain:
        key = (equation, backend.signature(arrays), order, casting, _hashable(optimize))
        try:
            run = _compiled.get(key)
        except TypeError:  # symbolic sizes, or an optimizer that can't be hashed
            plain = False
    if run is None:
        subscripts = _parse(equation, labels, tuple(len(array.shape) for array in arrays))
        if order not in ("C", "F", "A", "K"):
            raise OperandError(f"order is one of 'C', 'F', 'A' and 'K', not {order!r}")
        if casting not in _CASTINGS:
            raise OperandError(f"casting is one of {', '.join(map(repr, _CASTINGS))}, not {casting!r}")
        if out is not None and dtype is None:
            dtype = backend.dtype_with(arrays, out)
        plan = plan_call(subscripts, backend, arrays, dtype, casting, optimize)
        compiled = compile_plan(plan, backend)
        if order == "K" and out is None:
            run = compiled
        else:
            if order == "A":
                order = "F" if all(operand.fortran for operand in plan.operands) else "C"

            def run(*operands: Any) -> Any:
                return backend.finish(compiled(*operands), out, order, casting)

        if plain:
            with _lock:
                while len(_compiled) >= _MOST_PLANS:
                    _compiled.pop(next(iter(_compiled)))
                _compiled[key] = run
    return run(*arrays)


def _split(operands: Sequence[Any]) -> tuple[str | None, Sequence[Any], Any]:
    """Equation, arrays and label lists of a call in either form."""
    if not operands:
        raise SubscriptsError("fast_einsum needs an equation and operands, or operands and lists of labels")
    if isinstance(operands[0], str):
        arrays = operands[1:]
        if len(arrays) == 1 and isinstance(arrays[0], (list, tuple)) and _holds_arrays(arrays[0]):
            arrays = tuple(arrays[0])
        if not arrays:
            raise SubscriptsError(f"equation {operands[0]!r} has no operands")
        return operands[0], arrays, None
    has_output = len(operands) % 2 == 1
    arrays = operands[: len(operands) - has_output : 2]
    inputs = operands[1::2][: len(arrays)]
    output = operands[-1] if has_output else None
    for position, term in enumerate([*inputs, *([output] if has_output else [])]):
        if not isinstance(term, (list, tuple)):
            raise SubscriptsError(
                f"in the form without an equation, every operand is followed by a list of labels; "
                f"what follows operand {position} is of type {type(term).__name__}"
            )
    return None, arrays, (inputs, output)


def _holds_arrays(values: Sequence[Any]) -> bool:
    return bool(values) and all(backend_for_type(type(value)) is not None for value in values)


def _parse(equation: str | None, labels: Any, ranks: tuple[int, ...]) -> Subscripts:
    if equation is not None:
        return parse(equation, ranks)
    return parse_interleaved(labels[0], labels[1], ranks)


def own_arrays(arrays: Sequence[Any], out: Any = None) -> tuple[Backend, list[Any]]:
    """The backend that all arrays belong to, and the arrays; scalars and lists become NumPy's.

    Raises:
        OperandError: two frameworks, or a type that no backend knows.
    """
    found = [backend_for_type(type(array)) for array in arrays]
    backend = next((each for each in found if each is not None), None) or get_backend("numpy")
    for at, other in enumerate(found):
        if other is not None and other is not backend:
            first = next(index for index, each in enumerate(found) if each is backend)
            raise OperandError(
                f"operands {first} and {at} are of two frameworks, {backend.name} and {other.name}; "
                "convert one of them first"
            )
    if out is not None and backend_for_type(type(out)) is not backend:
        raise OperandError(f"out is of type {type(out).__name__}, but the operands are {backend.name} arrays")
    return backend, [
        array if each is not None else backend.convert(array, at)
        for at, (array, each) in enumerate(zip(arrays, found, strict=True))
    ]


def plan_arguments(operands: Sequence[Any], dtype: Any, casting: str, optimize: Any) -> Plan:
    """The plan for the arguments of a :func:`fast_einsum` call."""
    equation, arrays, labels = _split(operands)
    backend, arrays = own_arrays(arrays)
    subscripts = _parse(equation, labels, tuple(len(array.shape) for array in arrays))
    return plan_call(subscripts, backend, arrays, dtype, casting, optimize)


def plan_call(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any
) -> Plan:
    """The plan for these arrays."""
    operands: list[Operand] = [backend.inspect(array) for array in arrays]
    target = backend.target(arrays)
    numerics = backend.numerics(arrays, dtype, casting)
    room = backend.room(arrays) if len(arrays) > 2 else None
    return make_plan(subscripts, operands, target, numerics, optimize, room)


def _hashable(optimize: Any) -> Hashable:
    return tuple(map(_hashable, optimize)) if isinstance(optimize, (list, tuple)) else optimize
