"""`contract_expression`: an einsum whose equation and shapes are settled before the arrays are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from operator import index
from typing import Any, NoReturn

from einops_fast.annotations import ArrayT, Autotune, Casting, Nested, Order, Precision
from einops_fast.arguments import is_dispatched, is_handed_over, known_backend, own_arrays, read_call, read_options
from einops_fast.backends import Backend
from einops_fast.backends.base import Likeness
from einops_fast.einsum import compile_call, fast_einsum, plan_call, result_at_once
from einops_fast.errors import OperandError, ShapeError, out_of_memory, point_at
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.path import check_optimize
from einops_fast.planning.plan import Plan, compile_plan
from einops_fast.runtime.constants import cheapest_folding
from einops_fast.runtime.limits import limit_now, read_bytes
from einops_fast.runtime.new_shapes import USUAL
from einops_fast.runtime.plan_cache import keeps_plans
from einops_fast.runtime.settings import settings, settings_hold
from einops_fast.runtime.tracing import is_tracing
from einops_fast.vocabulary import respelled

_MOST_RUNS = 64

# How to see whether torch.compile is tracing; then whether operands are like those of the last call, and the plan.
# One tuple, because threads may call at the same time.
_Last = tuple[Callable[[], bool], Likeness, Callable[..., Any]]

_NO_CALL: _Last = (is_tracing, lambda operands: False, len)


def contract_expression(
    *operands: Any,
    constants: Collection[int] | None = None,
    dtype: Any = None,
    order: Order = "K",
    casting: Casting = "safe",
    optimize: Any = "auto",
    autotune: Autotune | None = None,
    precision: Precision | None = None,
    memory_limit: int | str | None = None,
    **unknown: NoReturn,
) -> ContractExpression:
    """An einsum to be called many times: :func:`einops_fast.fast_einsum` of shapes instead of arrays.

    Args:
        operands: as for :func:`einops_fast.fast_einsum`, in either form, with a shape (or an array that has
            it) in the place of each array.
        constants: positions of operands that are given here, as arrays, and not in the calls. They aren't
            copied. What only constants take part in is contracted at the first call and kept, where none of them
            requires gradients: after changing the values of NumPy's, CuPy's or MXNet's, make a new expression. A change
            of a tensor is noticed, but for one through its ``data`` or through NumPy, which torch isn't told of.
        dtype, order, casting, optimize: as for :func:`einops_fast.fast_einsum`.
        autotune, precision: the same; they hold for all calls of the expression.
        memory_limit: the same. Within a limit, also that of a block, nothing of constants is kept.

    Returns:
        A callable of the other operands.

    Raises:
        SubscriptsError: the equation is malformed.
        ShapeError: the shapes don't fit it.
        OperandError: an operand is neither a shape nor an array, or ``constants`` or ``order`` is wrong.

    Example:
        >>> import numpy as np
        >>> from einops_fast import contract_expression
        >>> project = contract_expression('bij,jk->bik', (8, 16, 32), np.ones((32, 4)), constants=[1])
        >>> project
        ContractExpression('bij,jk->bik', (8, 16, 32), (32, 4), constants=[1])
        >>> project(np.ones((8, 16, 32))).shape
        (8, 16, 4)
    """
    if unknown:
        return respelled(contract_expression, unknown, locals())
    call = read_call(operands)
    given = call.arrays
    try:
        positions = sorted({index(at) for at in (() if constants is None else constants)})
    except TypeError:
        raise OperandError(f"constants={constants!r} isn't a list of numbers of operands, such as [1]") from None
    for at in positions:
        if not 0 <= at < len(given):
            raise OperandError(f"constants={constants!r}: there are operands 0 to {len(given) - 1}")
    letter = read_options(order, casting)
    check_optimize(optimize, len(given))
    with settings(autotune, precision):  # refuses what there isn't
        pass
    held = [given[at] for at in positions]
    arrays = held if not held or is_dispatched(held) else own_arrays(held)[1]
    held_at = dict(zip(positions, arrays, strict=True))
    shapes = tuple([_shape(held_at.get(at, value), at) for at, value in enumerate(given)])
    subscripts = call.subscripts(tuple(map(len, shapes)))
    bind_sizes(subscripts, shapes)
    return ContractExpression(
        subscripts,
        shapes,
        held_at,
        {"dtype": dtype, "order": letter, "casting": casting, "optimize": optimize},
        None if autotune is None and precision is None else (autotune, precision),
        None if memory_limit is None else read_bytes(memory_limit),
    )


class ContractExpression:
    """An einsum of arrays of known shapes; make it with :func:`contract_expression`.

    The arrays of one call are of one framework, that of the constants if there are any; the next call's may be
    of another. A call with arrays like those of the call before takes hardly longer than the framework's own
    calls that it consists of. It can be copied and pickled, with its constants and without its plans.

    Attributes:
        equation: the equation, as it was given.
        shapes: the shape of each operand.
        constants: positions of the operands that the expression holds.
    """

    def __init__(
        self,
        subscripts: Subscripts,
        shapes: tuple[tuple[int, ...], ...],
        constants: dict[int, Any],
        options: dict[str, Any],
        settings: tuple[Any, Any] | None,
        memory_limit: int | None,
    ) -> None:
        self.equation = subscripts.text
        self.shapes = shapes
        self.constants = tuple(constants)
        self._subscripts, self._letters = subscripts, subscripts.equation
        self._options, self._settings, self._limit = options, settings, memory_limit
        self._held = tuple(constants.values())
        self._takes = len(shapes) - len(constants)
        # Where each operand is when the arrays of a call are put after the constants.
        varying = [at for at in range(len(shapes)) if at not in constants]
        self._places = [[*constants, *varying].index(at) for at in range(len(shapes))]
        # By signature of the operands, of whichever framework: no two have one in common.
        self._runs: dict[Hashable, tuple[Likeness, Callable[..., Any]]] = {}
        self._last = _NO_CALL

    def __call__(self, *arrays: ArrayT | Nested, out: ArrayT | None = None) -> ArrayT:
        """Evaluate the expression.

        Args:
            arrays: the operands that aren't constants.
            out: array of the result's shape to write to; it is returned.

        Raises:
            OperandError: too many or too few arrays, or they don't belong together.
            ShapeError: an array has another shape than the expression was made for.
        """
        if self._settings is not None and not is_tracing() and not settings_hold(*self._settings):
            with settings(*self._settings):
                return self(*arrays, out=out)
        operands: Sequence[Any] = arrays
        if self._held:
            if len(arrays) != self._takes:
                self._reject_count(len(arrays))
            pool = self._held + arrays
            operands = [pool[place] for place in self._places]
        tracing, like, run = self._last
        if out is None and not tracing() and not limit_now():
            try:
                # Comparing is cheaper than hashing, and most calls are like the one before.
                known = like(operands)
            except (AttributeError, IndexError, TypeError, ValueError):  # the last: of torch.fx's stand-ins
                known = False
            if known:
                try:
                    return run(*operands)
                except (MemoryError, RuntimeError) as error:
                    failure = out_of_memory(error)
                return self._answer(failure, operands, None)
        return self._call(operands, out)

    def __repr__(self) -> str:
        parts = [repr(self.equation), *map(str, self.shapes)]
        if self.constants:
            parts.append(f"constants={list(self.constants)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the expression was made of: plans are made anew where it is loaded."""
        constants = dict(zip(self.constants, self._held, strict=True))
        return type(self), (self._subscripts, self.shapes, constants, self._options, self._settings, self._limit)

    def forget_plans(self) -> None:
        """Plan the next call anew; see :func:`einops_fast.runtime.plan_cache.clear_plans`."""
        self._runs, self._last = {}, _NO_CALL

    def _reject_count(self, count: int) -> NoReturn:
        raise OperandError(f"{self!r} takes {self._takes} array{'s' * (self._takes != 1)}, not {count}")

    def _call(self, operands: Sequence[Any], out: Any) -> Any:
        """The careful way: check everything, make the plan, remember it."""
        if len(operands) != len(self.shapes):
            self._reject_count(len(operands))
        options, tracing = self._options, is_tracing()
        if tracing or self._limit is not None or limit_now():
            self._check_shapes(operands)
            return self._by_einsum(operands, out, None if tracing else self._limit)
        backend = known_backend(operands, out)
        if backend is None:
            if is_dispatched([*operands, out]) or is_handed_over(operands):
                # A function has a name to be written down by, which an expression has not.
                return self._by_einsum(operands, out)
            backend, operands = own_arrays(operands, out)
        if backend.is_recording(operands):  # for other sizes, too
            return self._by_einsum(operands, out)
        signature = backend.signature(operands)  # refuses what has no sizes
        self._check_shapes(operands)
        if out is not None and not self.constants:
            return self._by_einsum(operands, out)
        found = self._runs.get(signature)
        if found is None:
            question = self.equation, options["order"], options["casting"], options["optimize"]
            usual = question[1:] == USUAL and options["dtype"] is None
            if usual and out is None and not self.constants:
                result = result_at_once(question, self._subscripts, backend, operands)
                if result is not None:
                    return result
            # Likeness is about the dtypes of the operands.
            like = backend.likeness(operands) if options["dtype"] is None else None
            # Looked up, not compared: symbolic sizes can't be hashed, where to compare them would make numbers of them.
            known = {signature}
            like = like or (lambda others: backend.signature(others) in known)
            folded = partial(self._folded, backend, operands) if self.constants and options["dtype"] is None else None
            found = like, compile_call(self._subscripts, backend, operands, options, folded)
            if len(self._runs) >= _MOST_RUNS:
                self._runs.clear()
            self._runs[signature] = found
            keeps_plans(self)
        like, run = found
        self._last = _dynamo_tracing(), like, run
        try:
            result = run(*operands)
        except (MemoryError, RuntimeError) as error:
            failure = out_of_memory(error)
        else:
            return result if out is None else backend.finish(result, out, "K", options["casting"])
        return self._answer(failure, operands, out)

    def _answer(self, failure: Exception, operands: Sequence[Any], out: Any) -> Any:
        from einops_fast.limited import answer  # which few programs ever need

        return answer(failure, (self._letters, *operands), out, self._options)

    def _folded(
        self, backend: Backend, operands: Sequence[Any], plan: Plan, whole: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return ``whole`` with what only constants take part in contracted once."""
        folding = cheapest_folding(plan, self.constants, self._options["optimize"], backend.room(operands))
        if folding is None:
            return whole

        def rest(arrays: Sequence[Any]) -> Callable[..., Any]:
            options = self._options | {"optimize": folding.optimize}
            return compile_plan(plan_call(folding.rest.subscripts, backend, arrays, **options), backend)

        return folding.compile(backend, fast_einsum, whole, rest)

    def _by_einsum(self, operands: Sequence[Any], out: Any, limit: int | None = None) -> Any:
        """Make a call that isn't planned as a whole."""
        options: dict[str, Any] = dict(zip(("autotune", "precision"), self._settings or (), strict=False))
        return fast_einsum(self._letters, *operands, out=out, memory_limit=limit, **options, **self._options)

    def _check_shapes(self, operands: Sequence[Any]) -> None:
        for at, (operand, shape) in enumerate(zip(operands, self.shapes, strict=True)):
            if tuple(operand.shape) != shape:
                _reject_shape(at, tuple(operand.shape), shape, self.equation)


def _reject_shape(at: int, found: tuple[int, ...], wanted: tuple[int, ...], equation: str) -> NoReturn:
    problem = f"operand {at} has shape {found}; the expression was made for {wanted}"
    raise ShapeError(point_at(problem, equation))


# It is called while torch.compile traces, so that what it raises is told.
_reject_shape._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _dynamo_tracing() -> Callable[[], bool]:
    """The cheapest test that is right as long as torch isn't imported, or from now on if it is.

    Where torch traces without analysing the code, the operands have a type that no plan was remembered for.
    """
    torch: Any = sys.modules.get("torch")
    return is_tracing if torch is None else torch.compiler.is_dynamo_compiling


def _shape(value: Any, at: int) -> tuple[int, ...]:
    try:
        shape = tuple([index(size) for size in getattr(value, "shape", value)])
    except TypeError:
        raise OperandError(f"operand {at} is neither a shape nor an array: {value!r}") from None
    for axis, size in enumerate(shape):
        if size < 0:
            raise ShapeError(f"operand {at} of shape {shape} has size {size} in axis {axis}")
    return shape
