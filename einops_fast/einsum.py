"""`fast_einsum`: from a call to a cached, compiled plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, overload

from einops_fast.annotations import ArrayT, Autotune, Casting, Nested, Order, Precision
from einops_fast.arguments import (
    Call,
    hashable,
    is_dispatched,
    is_handed_over,
    known_backend,
    own_arrays,
    read_call,
    read_options,
    reshaped,
)
from einops_fast.backends import Backend, awake_types, backend_for_type
from einops_fast.errors import EinsumError, ShapeError, out_of_memory, point_at
from einops_fast.foreign import dispatch, hand_over
from einops_fast.patching.small_calls import known_loops, loops_first
from einops_fast.planning.compositions import Composition, check_sizes, composition
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.path import is_sliced
from einops_fast.planning.plan import Plan, compile_plan, make_plan
from einops_fast.runtime import tracing
from einops_fast.runtime.limits import limit_now
from einops_fast.runtime.new_shapes import CASTING, OPTIMIZE, ORDER, USUAL, by_question, learn_loops, native_first
from einops_fast.runtime.plan_cache import compiled, has_room, recall, remember, remember_alike
from einops_fast.runtime.settings import settings, settings_hold
from einops_fast.runtime.traced import call_traced, traced_backend
from einops_fast.runtime.tuning import is_reproducible
from einops_fast.vocabulary import names_of, no_argument
from einops_fast.written import split_as_result, write_in_place


def _planned(
    operands: Sequence[Any], out: Any = None, dtype: Any = None, order: str = ORDER, casting: str = CASTING,
    optimize: Any = OPTIMIZE,
) -> Any:  # fmt: skip
    """Evaluate a call by the plan that was kept for its like, or by a new one."""
    failure = None
    equation = operands[0] if operands else None
    if out is None and dtype is None and type(equation) is str:
        arrays = operands[1:]
        if len(arrays) == 1 and type(arrays[0]) in (list, tuple):
            arrays = arrays[0]  # if no list of numbers: those have no signature
        question = equation, order, casting, optimize
        try:
            shapes = by_question[question]
            if shapes.changing and (native := shapes.at_once(arrays)) is not None:
                try:
                    return native(equation, arrays)
                except Exception:  # whatever the framework refuses, a plan does or says why not
                    pass
            run = recall(question, arrays)
            if run is None:
                backend = awake_types[type(arrays[0])]
                run = compiled[question, backend.signature(arrays)]
                if has_room(question, arrays):  # for the same plan again, as where one tensor comes twice
                    remember_alike(question, backend.likeness(arrays), run, arrays)
        except (KeyError, IndexError, AttributeError, TypeError, RuntimeError):  # the last: tensors without sizes
            pass
        else:
            try:
                return run(*arrays)
            except (MemoryError, RuntimeError) as error:
                failure = out_of_memory(error)
    if failure is None:
        try:
            return _call(operands, out, dtype, order, casting, optimize)
        except (MemoryError, RuntimeError) as error:
            failure = out_of_memory(error)
    options = {"dtype": dtype, "order": order, "casting": casting, "optimize": optimize}
    return _imported("answer", failure, operands, out, options)


@overload
def fast_einsum(
    equation: str, first: ArrayT, /, *others: ArrayT | Nested, out: ArrayT | None = None, dtype: Any = None,
    order: Order = "K", casting: Casting = "safe", optimize: Any = "auto", autotune: Autotune | None = None,
    precision: Precision | None = None, memory_limit: int | str | None = None, beta: complex = 0, **sizes: int,
) -> ArrayT: ...  # fmt: skip
@overload
def fast_einsum(
    first: ArrayT, labels: Sequence[Any], /, *others: Any, out: ArrayT | None = None, dtype: Any = None,
    order: Order = "K", casting: Casting = "safe", optimize: Any = "auto", autotune: Autotune | None = None,
    precision: Precision | None = None, memory_limit: int | str | None = None, beta: complex = 0, **sizes: int,
) -> ArrayT: ...  # fmt: skip
@overload
def fast_einsum(
    first: str | Nested, second: Nested, /, *others: Any, out: Any = None, dtype: Any = None, order: Order = "K",
    casting: Casting = "safe", optimize: Any = "auto", autotune: Autotune | None = None,
    precision: Precision | None = None, memory_limit: int | str | None = None, beta: complex = 0, **sizes: int,
) -> Any: ...  # fmt: skip
@loops_first(_planned)
def fast_einsum(
    *operands: Any,
    out: Any = None,
    dtype: Any = None,
    order: Order = "K",
    casting: Casting = "safe",
    optimize: Any = "auto",
    autotune: Autotune | None = None,
    precision: Precision | None = None,
    memory_limit: int | str | None = None,
    beta: complex = 0,
    **sizes: int,
) -> Any:
    """Einstein summation on arrays of any supported framework; the result is an array of the same framework.

    Call it as ``fast_einsum(equation, *arrays)``, or with lists of labels between the arrays as
    ``fast_einsum(a, [0, 1], b, [1, 2], [0, 2])``. See :mod:`einops_fast.planning.notation` for what an equation may be.
    Several axes of it may make up one axis of an array, ``'b i (h d), b j (h d) -> b h i j'``, and ``1`` is an axis of
    size 1 without a name, as in einops; an ellipsis may be among them in the result.

    Args:
        operands: an equation and the arrays, or arrays and label lists in turn. All arrays are of one
            framework and on one device. Lists and Python scalars count as NumPy arrays. A call on arrays with
            ``__array_function__`` (units) is left to that, as NumPy does; Dask's are contracted block by block.
        out: array of the result's shape, which the last step writes to in place where its strides allow that; it is
            returned.
        dtype: dtype to compute in, and of the result.
        order: memory order of the result: ``'C'``, ``'F'``, ``'A'`` or ``'K'`` (whatever is fastest), or any
            spelling of these that NumPy takes.
        casting: which conversions to ``dtype`` are allowed, as in NumPy.
        optimize: how to choose the order of contraction of three and more operands: ``'auto'``, ``True``,
            ``False`` (left to right), the name of an opt_einsum optimizer or an optimizer, an explicit path, or
            ``(optimizer, memory_limit)``: the most elements that an intermediate may have, or ``'max_input'`` for as
            many as the largest operand or the result. Without a limit, the free memory is one. A tree or an optimizer
            of cotengra's is taken with its slices.
        autotune: ``'auto'``, ``'never'`` or ``'always'``: whether kernels on a GPU are chosen by timing them; see
            :func:`einops_fast.autotune`, whose block this argument stands for.
        precision: ``'tf32'`` or ``'tf32x3'``: what tensor cores may make of float32 products on a GPU beyond the
            framework's own setting; see :func:`einops_fast.allow_precision`, whose block this argument stands for.
        memory_limit: bytes, or a text such as ``'2GiB'``: the most that the call allocates at a time, its result
            included. What takes more is contracted in pieces, and gradients are, too, a piece at a time. See
            :func:`einops_fast.memory_limit`, whose block this argument stands for. Without any, the free memory is the
            limit: a call that runs out of it is contracted once more in pieces.
        beta: what ``out`` is multiplied by before the result is added to it; with 0 it is overwritten.
        sizes: of axes, by name: those that no array tells, such as ``h=8``; others are checked.

    Returns:
        The result: a view of the operand where the native einsum gives one.

    Raises:
        SubscriptsError: the equation is malformed.
        ShapeError: an operand's rank or the size of an axis doesn't fit.
        OperandError: the operands don't belong together, or one is an array that no backend knows and that would
            lose its labels or its mask as a NumPy array. All three are ``ValueError`` (and, as torch users
            expect, ``RuntimeError``).

    Example:
        >>> import numpy as np
        >>> from einops_fast import fast_einsum
        >>> q, k = np.ones((2, 3, 5, 4)), np.ones((2, 3, 6, 4))
        >>> fast_einsum('batch head i d, batch head j d -> batch head i j', q, k).shape
        (2, 3, 5, 6)
        >>> fast_einsum('b i (h d), b j (h d) -> b h i j', np.ones((2, 5, 12)), np.ones((2, 6, 12)), h=3).shape
        (2, 3, 5, 6)
    """
    if beta or memory_limit is not None or sizes or tracing.is_compiling() or limit_now():
        options = {"dtype": dtype, "order": order, "casting": casting, "optimize": optimize}
        options |= {"autotune": autotune, "precision": precision}
        return _unusual(operands, out, sizes, beta, memory_limit, options)
    if (autotune is not None or precision is not None) and not settings_hold(autotune, precision):
        with settings(autotune, precision):
            return fast_einsum(*operands, out=out, dtype=dtype, order=order, casting=casting, optimize=optimize)
    if out is not None and write_in_place(operands, out, 0, (dtype, order, casting, optimize), plan_call):
        return out
    if operands and dtype is None and order is ORDER and casting is CASTING and optimize is OPTIMIZE:
        again: Any = fast_einsum  # without options
        if out is None:
            return again(*operands)
        arrays = operands[1:] if isinstance(operands[0], str) else operands[: len(operands) // 2 * 2 : 2]
        backend = known_backend(arrays, out)
        own = getattr(out, "dtype", None)
        same = own is not None and all(getattr(each, "dtype", None) == own for each in arrays)
        if backend is not None and same and not backend.is_recording(arrays):
            result = again(*operands)
            if getattr(result, "dtype", None) == own:
                return backend.finish(result, out, "K", casting)
    return _planned(operands, out, dtype, order, casting, optimize)


def _unusual(
    operands: Sequence[Any], out: Any, sizes: Mapping[str, int], beta: complex, memory_limit: Any,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    """Evaluate a call with ``beta``, sizes of axes or a memory limit, or in code that torch compiles."""
    if beta:
        options["memory_limit"] = memory_limit
        return _imported("accumulated", beta, operands, out, sizes, options)
    if memory_limit is None and (sizes or (tracing.is_compiling() and operands and composition(operands[0]))):
        return with_sizes(operands, sizes, out, **options)
    if memory_limit is None and tracing.is_compiling():
        return call_traced(operands, out, **options)
    return _imported("einsum_within", memory_limit, operands, sizes, out, options)


def _imported(where: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of a module that itself calls :func:`fast_einsum`, by a statement that torch.compile follows."""
    from einops_fast import accumulated, limited

    return getattr(accumulated if where == "accumulated" else limited, where)(*arguments, **options)


def _call(operands: Sequence[Any], out: Any, dtype: Any, order: str, casting: str, optimize: Any) -> Any:
    """The careful way: check everything, make the plan, remember it."""
    call, given, order = read_call(operands), order, read_options(order, casting)
    options = {"dtype": dtype, "order": order, "casting": casting, "optimize": optimize}
    if composition(call.spelled) is not None:
        return with_sizes(operands, {}, out, **options)
    arrays, backend = call.arrays, known_backend(call.arrays, out)
    if backend is None:
        if is_dispatched([*arrays, out]):
            return dispatch(call, out=out, **options)
        if is_handed_over(arrays):
            return hand_over(fast_einsum, arrays, operands, out=out, **options)
        backend, arrays = own_arrays(arrays, out)
    if backend.is_recording(arrays):
        return call_traced(operands, out, **options, autotune=None, precision=None)
    if out is not None and dtype is None:
        dtype = options["dtype"] = backend.dtype_with(arrays, out)
    question: tuple[Hashable, ...] = hashable(call.spelled), order, casting, hashable(optimize)
    question += () if dtype is None else (dtype,)
    usual, keeps = out is None and isinstance(optimize, str) and question[1:] == USUAL, True
    try:
        # To tell what a plan depends on takes as long as all else of a first call.
        known = not usual or question in by_question
        run = compiled.get((question, backend.signature(arrays))) if known else None
        if usual and run is None:
            subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
            as_given = isinstance(call.spelled, str) and subscripts.in_letters
            spelled = call.spelled if as_given else len(operands)
            is_new = spelled not in known_loops
            result = result_at_once(question, subscripts, backend, arrays, as_given)
            if result is not None:
                return result
            if is_new and spelled in known_loops and is_reproducible():
                # Later calls look at sizes first, then for plans, which may be of other modes: so does this one.
                again: Any = fast_einsum
                return again(*operands, order=given, casting=casting, optimize=optimize)
    except RuntimeError as error:
        if not isinstance(error, EinsumError):
            backend.signature(arrays)  # refuses tensors of layouts that have no sizes
        raise
    except TypeError:  # symbolic sizes, or a label, dtype or optimizer that can't be hashed
        run, keeps = None, False
    if run is None:
        subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
        run = compile_call(subscripts, backend, arrays, options)
        if keeps:
            learn_loops(question, subscripts, backend, arrays, isinstance(call.spelled, str) and subscripts.in_letters)
            remember((question, backend.signature(arrays)), run)
            if dtype is None:
                remember_alike(question, backend.likeness(arrays), run, arrays)
    result = run(*arrays)
    return result if out is None else backend.finish(result, out, "K", casting)


def with_sizes(operands: Sequence[Any], sizes: Mapping[str, int], out: Any, **options: Any) -> Any:
    """Evaluate an equation in which some axes are made up of several, or some of whose sizes are given."""
    call = read_call(operands)
    if tracing.is_tracing() and tracing.is_sharded(call.arrays[0]):
        return tracing.outside_of_graphs(fast_einsum, *operands, out=out, **options, **sizes)
    if not tracing.is_tracing():
        if is_handed_over(call.arrays):
            return hand_over(fast_einsum, call.arrays, operands, out=out, **options, **sizes)
        backend = known_backend(call.arrays, out)
        if backend is not None and backend.is_recording(call.arrays):
            # What follows from sizes is recorded with them; only which axes broadcast is settled.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _evaluated(operands, call, sizes, out, options)
    return _evaluated(operands, call, sizes, out, options)


def _evaluated(operands: Sequence[Any], call: Call, sizes: Mapping[str, int], out: Any, options: dict[str, Any]) -> Any:
    found, arrays = with_an_axis_each(call, sizes)
    if found is None:
        return fast_einsum(*operands, out=out, **options)
    order = read_options(options.pop("order"), options["casting"])
    target = None if out is None else split_as_result(found, arrays, out)
    if target is not None:
        fast_einsum(found.letters, *arrays, out=target, **options)
        return out
    result = fast_einsum(found.letters, *arrays, **options)
    shape, any_size = found.regrouped(result.shape), _of_any_size(arrays)
    groups = found.groups(len(result.shape))
    result = reshaped(result, shape) if any_size is None else any_size.merge(result, groups)
    if out is None and order == "K":
        return result
    backend = traced_backend("torch") if tracing.is_tracing() else own_arrays(arrays, out)[0]
    return backend.finish(result, out, order, options["casting"])


def with_an_axis_each(call: Call, sizes: Mapping[str, int]) -> tuple[Composition | None, Sequence[Any]]:
    """The composition of a call, and its operands with one axis for each that the equation names."""
    found = composition(call.spelled)
    arrays = [array if hasattr(array, "shape") else own_arrays([array])[1][0] for array in call.arrays]
    shapes, any_size = [tuple(array.shape) for array in arrays], _of_any_size(arrays)
    if found is None:
        subscripts = call.subscripts(tuple(map(len, shapes)))
        known = bind_sizes(subscripts, shapes)
        told = {str(name): known[letter] for letter, name in subscripts.names if letter in known}
        _check_sizes(sizes, told, subscripts.text)
        for name, size in sizes.items():
            if told[name] != size:
                raise ShapeError(point_at(f"axis {name!r} has size {told[name]}, not {size} as given", subscripts.text))
        if any_size is None:
            return None, arrays
        axes = tuple(map(tuple, (*subscripts.inputs, subscripts.output)))
        named = tuple([(letter, str(name)) for letter, name in subscripts.names])
        found = Composition(subscripts.text, subscripts.equation, axes[:-1], axes[-1], named)
    _check_sizes(sizes, found.names.values(), found.text)
    wanted = found.shapes(shapes, sizes)
    if any_size is not None:
        return found, [any_size.split(*each) for each in zip(arrays, found.fixed(shapes, sizes), strict=True)]
    return found, [reshaped(*each) for each in zip(arrays, wanted, strict=True)]


def _of_any_size(arrays: Sequence[Any]) -> Backend | None:
    """The backend of arrays whose framework traces the call for arrays of any size, but in a way of its own."""
    backend = None if tracing.is_tracing() else backend_for_type(type(arrays[0]))
    return backend if backend is not None and backend.any_size() else None


def _check_sizes(sizes: Mapping[str, int], names: Collection[str], equation: str) -> None:
    for name in [each for each in sizes if each not in names]:
        raise no_argument(fast_einsum, name, sizes[name], names_of(fast_einsum), f", and {equation!r} no such axis")
    check_sizes(sizes, equation)


def result_at_once(
    question: tuple[Hashable, ...], subscripts: Subscripts, backend: Backend, arrays: Sequence[Any],
    as_given: bool = False,
) -> Any:  # fmt: skip
    """Return what :func:`native_first` finds for a call makes of its arrays; ``None``: plan the call."""
    native = native_first(question, subscripts, backend, arrays, as_given)
    if native is not None:
        with suppress(Exception):  # whatever the framework refuses, a plan does or says why not
            return native(subscripts.equation, arrays)
    return None


def compile_call(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], options: dict[str, Any],
    folded: Callable[..., Callable[..., Any]] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Return what computes a call of these dtype, order, casting and optimize; ``folded`` makes more of its plan."""
    order, casting = options["order"], options["casting"]
    if is_sliced(options["optimize"]):
        run: Callable[..., Any] = _imported("in_slices", subscripts, backend, arrays, options)
    else:
        own = backend.own_way(subscripts, arrays, **options)
        if own is not None:
            return own
        plan = plan_call(subscripts, backend, arrays, **options)
        run = compile_plan(plan, backend)
        run = run if folded is None else folded(plan, run)
    if order == "A":
        order = "F" if backend.fortran and all(backend.inspect(array).fortran for array in arrays) else "C"
    return run if order == "K" else lambda *operands: backend.finish(run(*operands), None, order, casting)


def plan_arguments(
    operands: Sequence[Any], dtype: Any, casting: str, optimize: Any, sizes: Mapping[str, int] | None = None,
    plan: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """The plan for the arguments of a :func:`fast_einsum` call, by :func:`plan_call` or another such function."""
    call, _ = read_call(operands), read_options("K", casting)
    if sizes or composition(call.spelled) is not None:
        found, expanded = with_an_axis_each(call, sizes or {})
        call = call if found is None else Call(expanded, found.letters)
    backend, arrays = own_arrays(call.arrays)
    subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
    return (plan or plan_call)(subscripts, backend, arrays, dtype, casting, optimize)


def plan_call(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any,
    order: str = "K", memory: Sequence[int] = (),
) -> Plan:  # fmt: skip
    """The plan for these arrays. Another order than ``'K'`` may still have to be brought about afterwards.

    ``memory`` are the axes of the result, slowest first, in the order that they are to have if it costs nothing.
    """
    target = backend.target(arrays)
    if order == "C":
        target = target.replace(in_order=True)
    elif memory:
        target = target.replace(memory="".join([subscripts.output[at] for at in memory]))
    numerics = backend.numerics_of(subscripts, arrays, dtype, casting)
    room = backend.room(arrays) if len(arrays) > 2 else None
    return make_plan(subscripts, [backend.inspect(array) for array in arrays], target, numerics, optimize, room)
