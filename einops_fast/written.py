"""Einsum that is written to an array in place, by a plan whose last step writes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from einops_fast.arguments import Call, hashable, read_call, read_options
from einops_fast.backends import Backend, backend_for_type
from einops_fast.errors import EinsumError, out_of_memory
from einops_fast.observing.observers import observed
from einops_fast.planning.compositions import Composition, composition
from einops_fast.planning.destinations import compile_into, slowest_first
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.path import is_sliced
from einops_fast.runtime.new_shapes import native_first
from einops_fast.runtime.plan_cache import compiled, recall, remember, remember_alike
from einops_fast.runtime.tracing import is_tracing

_FEW = 1 << 14
"""Elements of a result whose copy takes less time than it takes to make a plan."""

_NUMBERS = frozenset({int, float, complex})

Plan = Callable[..., Any]
"""Makes the plan of a call."""


def write_in_place(operands: Sequence[Any], out: Any, beta: Any, options: Sequence[Any], plan: Plan) -> bool:
    """Write the result to ``out``, or add it to ``beta`` times ``out``, and return whether a plan did so in place.

    Nothing is changed where none does: the result has to be computed, checked and copied. ``options`` are dtype, order,
    casting and optimizer.
    """
    try:
        spelled, arrays = operands[0], operands[1:]
        if type(spelled) is not str or type(arrays[0]) in (list, tuple):
            arrays, spelled = read_call(operands)
            spelled = hashable(spelled)
        backend = backend_for_type(type(arrays[0]))
        target = None if backend is None else backend.destination(out, arrays)
    except (AttributeError, IndexError, TypeError, RuntimeError, EinsumError):  # the call says what is wrong
        return False
    if backend is None or target is None or (beta != 0 and type(beta) not in _NUMBERS):
        return False
    question, every = (spelled, beta != 0, *options, write_in_place), (*arrays, target)
    try:
        run = recall(question, every)
        if run is None:
            run = compiled[question, backend.signature(every)]
    except (KeyError, IndexError, AttributeError, TypeError, RuntimeError):
        run = _made(Call(arrays, spelled), question, backend, every, plan)
    if run is None or run is _copied:
        return False
    if beta != 0:
        run(*every, beta)
        return True
    try:
        run(*every)
    except (MemoryError, RuntimeError) as error:
        out_of_memory(error)
        return False
    return True


def _copied(*arrays: Any) -> None:
    """Stand for a plan whose result is copied."""


def _made(call: Call, question: tuple[Any, ...], backend: Backend, every: Sequence[Any], plan_call: Plan) -> Any:
    """Return a new plan, which is remembered; ``None``: look again at the next call."""
    adds, (dtype, order, casting, optimize), (*arrays, out) = question[1], question[2:6], every
    own = all(backend_for_type(type(each)) is backend for each in arrays)
    if not own or observed() or is_sliced(optimize) or backend.is_recording(every):
        return None
    run = None
    try:
        read_options(order, casting)
        if composition(call.spelled) is None:
            subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
            small = prod(out.shape) <= _FEW and optimize == "auto"
            if small and native_first(question, subscripts, backend, arrays) is not None:
                return None
            run = _compiled(subscripts, backend, every, dtype, casting, optimize, plan_call, adds)
        remember((question, backend.signature(every)), run or _copied)
        remember_alike(question, backend.likeness(every), run or _copied, every)
    except (EinsumError, TypeError, RuntimeError):  # bad operands or options, or some that can't be hashed
        return None
    return run


def _compiled(
    subscripts: Subscripts, backend: Backend, every: Sequence[Any], dtype: Any, casting: str, optimize: Any,
    plan_call: Plan, adds: bool,
) -> Any:  # fmt: skip
    *arrays, out = every
    dtype = backend.dtype_with(arrays, out) if dtype is None else dtype
    target = backend.target(every)  # refuses two devices
    options = {"dtype": dtype, "casting": casting, "optimize": optimize}
    if target.gradients or not target.drops_expanded or backend.own_way(subscripts, arrays, **options, order="K"):
        return None
    layout = backend.inspect(out)
    if len(layout.shape) != len(subscripts.output):
        return None
    axes = slowest_first(layout)
    lies = subscripts._replace(output="".join([subscripts.output[at] for at in axes]))
    plan = plan_call(lies, backend, arrays, **options, order="C")
    return compile_into(plan, backend, layout, axes, adds)


def split_as_result(found: Composition, arrays: Sequence[Any], out: Any) -> Any:
    """Return a view of ``out`` with an axis for each letter of an equation; ``None``: the result has to be copied."""
    backend = None if is_tracing() else backend_for_type(type(arrays[0]))
    if backend is None or not all(backend_for_type(type(each)) is backend for each in arrays):
        return None
    target = None if backend.is_recording(arrays) else backend.destination(out, arrays)
    if target is None:
        return None
    shapes = [tuple(each.shape) for each in arrays]
    subscripts = Call(arrays, found.letters).subscripts(tuple(map(len, shapes)))
    sizes = bind_sizes(subscripts, shapes)
    shape = tuple([sizes[label] for label in subscripts.output])
    return backend.reshape(target, shape) if tuple(out.shape) == found.regrouped(shape) else None
