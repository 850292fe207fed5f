"""`explain`: what will be done for a call, step by step, and what it is predicted to cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from einops_fast.annotations import Autotune, Casting, Precision
from einops_fast.backends import Backend, get_backend
from einops_fast.chunked import explained, has_chunks
from einops_fast.einsum import plan_arguments, plan_call
from einops_fast.errors import EinsumError, OperandError, ShapeError
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.path import is_sliced
from einops_fast.runtime.settings import settings

if TYPE_CHECKING:
    from einops_fast.explanation import Explanation


def explain(
    *operands: Any,
    dtype: Any = None,
    casting: Casting = "safe",
    optimize: Any = "auto",
    autotune: Autotune | None = None,
    precision: Precision | None = None,
    memory_limit: int | str | None = None,
    **sizes: int,
) -> Explanation:
    """What :func:`fast_einsum` would do with these arguments, without doing it.

    Args:
        operands: as for :func:`fast_einsum`, either form.
        dtype, casting, optimize, autotune, precision, sizes: as for :func:`fast_einsum`.
        memory_limit: as there: then this is the plan of one piece, if there are several, and says how many.

    Returns:
        An :class:`Explanation`, which prints as a table. Of Dask arrays it is that of whole arrays, and says in how
        many tasks each step is.

    Raises:
        EinsumError: as :func:`fast_einsum` would.

    Example:
        >>> import numpy as np
        >>> from einops_fast import explain
        >>> e = explain('bind,bjnd->bnij', np.ones((2, 5, 3, 4)), np.ones((2, 6, 3, 4)))
        >>> e.flops, e.copied_bytes
        (1440, 0)
    """
    with settings(autotune, precision):
        return _explained(operands, dtype, casting, optimize, sizes, memory_limit)


def explain_shapes(
    equation: str,
    shapes: Sequence[tuple[int, ...]],
    dtype: str = "float32",
    backend: str = "numpy",
    optimize: Any = "auto",
    sizes: Mapping[str, int] | None = None,
    memory_limit: int | str | None = None,
    strides: Sequence[tuple[int, ...]] | None = None,
) -> Explanation:
    """:func:`explain` for operands that needn't exist.

    Args:
        equation: the equation.
        shapes: shape of each operand.
        dtype: dtype name of all operands.
        backend: name of a backend whose framework is installed.
        optimize: as for :func:`fast_einsum`.
        sizes: of axes, by name, as for :func:`fast_einsum`.
        memory_limit: as there.
        strides: of each operand, in elements; contiguous ones if ``None``.

    Raises:
        OperandError: there is no such backend, or it has no such dtype.
        ShapeError: strides and shapes don't belong together.
        EinsumError: as :func:`fast_einsum` would.

    Example:
        >>> from einops_fast.explain import explain_shapes
        >>> print(explain_shapes('ij,ij->ij', [(2, 3), (2, 3)]).steps[0].kind)
        multiply
    """
    examples = example_arrays(shapes, dtype, backend, strides)
    return _explained((equation, *examples), None, "safe", optimize, sizes, memory_limit)


def example_arrays(
    shapes: Sequence[tuple[int, ...]], dtype: str, backend: str, strides: Sequence[tuple[int, ...]] | None = None
) -> list[Any]:
    """Return arrays to explain a call of, which take no memory if they can; the arguments are those above."""
    chosen, given = get_backend(backend), [()] * len(shapes) if strides is None else strides
    if [len(shape) for shape in shapes] != [len(each) for each in given] and strides is not None:
        raise ShapeError(f"strides {list(given)} aren't one number per axis of the shapes {list(shapes)}")
    try:
        return [
            chosen.example(tuple(shape), dtype, *() if strides is None else (each,))
            for shape, each in zip(shapes, given, strict=True)
        ]
    except EinsumError:
        raise
    except (AttributeError, KeyError, TypeError) as error:
        raise OperandError(f"{backend} has no dtype {dtype!r}") from error
    except (ValueError, OverflowError, RuntimeError) as error:
        # MXNet's begin with where in its source they come from.
        *_, reason = str(error).strip().splitlines() if str(error).startswith("Traceback") else [error]
        raise ShapeError(f"{backend} has no array of these shapes: {reason}") from error


def _explained(
    operands: Sequence[Any], dtype: Any, casting: str, optimize: Any, sizes: Mapping[str, int] | None, memory_limit: Any
) -> Explanation:
    # Few programs explain anything: none should wait for this when it imports the package.
    from einops_fast.explanation import explanation_of
    from einops_fast.limited import slicing_of
    from einops_fast.runtime.limits import read_bytes

    lines: list[str] = []
    if has_chunks(operands) or (len(operands) == 2 and isinstance(operands[1], list) and has_chunks(operands[1])):
        options = {"dtype": dtype, "casting": casting, "optimize": optimize, "memory_limit": memory_limit}
        operands, optimize, lines = explained(operands, **options, **(sizes or {}))
        memory_limit = None  # each task has it
    limit = sys.maxsize if memory_limit is None else read_bytes(memory_limit)
    whole = memory_limit is None and not is_sliced(optimize)
    make = plan_call if whole else partial(slicing_of, limit=limit)
    shared: list[str] = []

    def plan(subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], *options: Any) -> Any:
        backend, arrays, shared[:] = backend.planned_parts(subscripts, arrays)
        return make(subscripts, backend, arrays, *options)

    found = explanation_of(plan_arguments(operands, dtype, casting, optimize, sizes, plan))
    return replace(found, sharing=(*shared, *lines)) if shared or lines else found
