"""What a framework's own einsum does while that is patched.

It does what the native function does, down to the errors: it reads letters only, and whatever it can't do, or
can't do better, it hands to the native function unchanged. Those are other types of arrays, unusual options, bad calls,
code that torch.compile or torch.jit is tracing, and contractions for which there is no better plan. Subclasses and
modes that want to see the call are asked first, as they are without a patch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import index
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from einops_fast.arguments import CASTINGS, hashable, label_list
from einops_fast.backends import Backend, backend_for_type, get_backend
from einops_fast.backends.base import Likeness
from einops_fast.einsum import fast_einsum, plan_call
from einops_fast.errors import EinsumError
from einops_fast.observing.observers import active, observed
from einops_fast.patching.function_body import FunctionBody
from einops_fast.patching.small_calls import SmallCalls, own_loops
from einops_fast.planning.notation import bind_sizes, parse
from einops_fast.planning.plan import compile_plan
from einops_fast.planning.steps import Native
from einops_fast.runtime.new_shapes import by_question, native_first
from einops_fast.runtime.plan_cache import compiled, recall, remember, remember_alike
from einops_fast.runtime.tracing import is_tracing
from einops_fast.written import write_in_place


@dataclass(frozen=True)
class Dialect:
    """What one framework's einsum takes that another's doesn't."""

    # keyword arguments that mean what they mean in NumPy; calls with any other are left to it
    options: frozenset[str] = frozenset()
    lists: bool = False  # the operands may come as one list
    of_numpy: bool = True  # lists of labels are an equation, and optimize may be all that NumPy takes
    drops_ellipsis: bool = False  # an output without an ellipsis sums over the ellipsis axes, where others raise


DIALECTS = {
    "numpy": Dialect(frozenset({"out", "dtype", "order", "casting", "optimize"})),
    "torch": Dialect(lists=True, drops_ellipsis=True),
    "mxnet": Dialect(frozenset({"out", "optimize"}), of_numpy=False),
    "cupy": Dialect(frozenset({"optimize"})),
}


class _ForNative(Exception):
    """The call is left to the native function, for the reason that is given."""


class _ForOthers(Exception):
    """A subclass or a mode gets the call first, from the native function, and may come back with it."""


class _DefaultDevice(Exception):
    """torch.set_default_device, or a block of torch.device, is the only mode: the call is ours."""


class Replacement:
    """Puts ours beneath ``function``, the einsum of the framework ``name``."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._body = FunctionBody(function)
        self._function = _function(name, self._body.native, get_backend(name), DIALECTS[name])
        self._small = SmallCalls(self._body) if name == "numpy" else None

    def start(self) -> None:
        """Have calls of the framework's einsum run ours."""
        (self._small or self._body).exchange(self._function)

    def stop(self) -> None:
        """Have them run the framework's own code again."""
        (self._small or self._body).put_back()


def _function(name: str, native: Callable[..., Any], backend: Backend, dialect: Dialect) -> Callable[..., Any]:
    signature = _unless_intercepted(backend.signature) if name == "torch" else backend.signature
    takes_optimize = "optimize" in dialect.options

    def einsum(*operands: Any, **options: Any) -> Any:
        if dialect.lists and not options and _is_list_form(operands):
            operands = (operands[0], *operands[1])
        if not options or (takes_optimize and _asks_only_to_optimize(options)):
            arrays = operands[1:]
            try:
                run = recall((name, operands[0], not options), arrays)
                if run is None:
                    shapes = by_question.get((name, operands[0], True))
                    if shapes is not None and shapes.changing and shapes.at_once(arrays) is not None:
                        return native(*operands, **options)
                if run is None:
                    run = compiled[name, operands[0], signature(arrays), not options]
            except _DefaultDevice:
                # torch would ask the mode about every attribute of a tensor, and every call of a plan.
                with sys.modules["torch"]._C.DisableTorchFunction():
                    return einsum(*operands)
            except (KeyError, IndexError, AttributeError, TypeError, NotImplementedError):
                pass  # MXNet's arrays can't be hashed, where one stands in the place of the equation
            else:
                return run(*arrays)
        elif len(operands) > 3 and options.get("optimize") is False and type(operands[0]) is str and not observed():
            return native(*operands, **options)  # the caller wants no intermediates
        try:
            return _call(name, native, operands, options)
        except _ForOthers:
            pass
        except (EinsumError, _ForNative) as error:
            equation = operands[0] if operands and isinstance(operands[0], str) else ""
            for recorder in active():
                recorder.left_to_native(name, equation, str(error))
        if name != "torch" and _is_empty(operands):
            _refuse_diagonals(operands, dialect)
        return native(*operands, **options)

    return einsum


def _call(name: str, native: Callable[..., Any], operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The careful way: check everything, make the plan, remember it."""
    backend, dialect = get_backend(name), DIALECTS[name]
    asks = options.get("optimize", False) is not False
    equation, arrays = _read(operands, dialect, asks)
    if name == "torch" and _intercepts(arrays):
        raise _ForOthers
    if is_tracing():
        raise _ForNative("torch.compile traces it")
    own = backend_for_type(type(arrays[0]))
    if own is not None and own is not backend and not options and backend.owns(type(arrays[0])):
        return fast_einsum(equation, *arrays)

    out, order = options.get("out"), options.get("order", "K")
    dtype, casting = options.get("dtype"), options.get("casting", "safe")
    optimize = _optimizer(options.get("optimize", True), len(arrays))
    owned = all(backend.owns(type(array)) for array in (arrays if out is None else [*arrays, out]))
    if not dialect.of_numpy and not isinstance(options.get("optimize", True), bool):
        raise _ForNative("optimize is True or False there")
    usual = options.keys() <= dialect.options and order in ("K", "C", "F") and casting in CASTINGS
    # NumPy ignores most options where the result is a view, and dtype in the products that it leaves to BLAS.
    ignored = options and (len(arrays) == 1 or (dtype is not None and asks))
    if not owned:
        raise _ForNative(f"an operand is no plain array of {name}")
    if backend.is_recording(arrays):
        raise _ForNative("torch records it for other sizes, too")
    if not usual or ignored:
        raise _ForNative("its options are left to the native function")

    plain, loops = not options or _asks_only_to_optimize(options), own_loops(native)
    question = name, equation, not asks
    first = plain and question not in by_question
    if first and _is_new(question, backend, arrays):
        return native(*operands, **options)
    key: tuple[Hashable, ...] = (name, equation, backend.signature(arrays), not asks)
    if not plain:
        key += (dtype, casting, optimize)
    try:
        run = compiled[key]
    except TypeError:
        raise _ForNative("its dtype can't be hashed") from None
    except KeyError:
        if plain and not first and _is_new(question, backend, arrays):
            return native(*operands, **options)
        made = _compile(equation, backend, arrays, dtype, casting, optimize, asks)
        if isinstance(made, _NoBetter) and observed():
            raise _ForNative(made.reason) from None  # each time, to be counted
        if isinstance(made, _NoBetter):
            asked = options if plain else {}  # later calls run it with operands alone
            run = partial(loops, equation) if made.in_loops and loops else partial(native, equation, **asked)
        else:
            run = made
        remember(key, run)
        like = backend.likeness(arrays) if plain else None
        if like is not None:
            like = _unless_seen(like) if name == "torch" else like
            remember_alike((name, equation, not asks), like, run, arrays)
    if _is_native(run, native):
        return run(*arrays, **options)
    if not plain and _is_native(run, loops) and (out is None or all(array.dtype == out.dtype for array in arrays)):
        # NumPy would only choose an order of contraction for the loops, which takes longer than they do. But where it
        # chooses one, the dtype of out has no say in that of the products.
        return native(equation, *arrays, **{name: options[name] for name in options if name != "optimize"})
    same = out is not None and order == "K" and all(array.dtype == out.dtype for array in arrays)
    if same and write_in_place((equation, *arrays), out, 0, (dtype, order, casting, optimize), plan_call):
        return out
    result = run(*arrays)
    if out is None and order == "K":
        return result
    if out is not None and out.dtype != getattr(result, "dtype", None):  # one object, without an axis, has none
        raise _ForNative("it computes in a dtype that suits operands and out")
    return backend.finish(result, out, order, casting)


def _is_empty(operands: Sequence[Any]) -> bool:
    """Return whether an array among the operands has no elements."""
    return 0 in [getattr(each, "size", 1) for each in operands]


def _refuse_diagonals(operands: Sequence[Any], dialect: Dialect) -> None:
    """Raise ShapeError if a label of an operand has two sizes: NumPy reads beyond empty arrays then, and MXNet crashes.

    Whatever else is wrong with a call is left to the native function.
    """
    try:
        equation, arrays = _read(operands, dialect, asks=False)
        shapes = [tuple(array.shape) for array in arrays]
        subscripts = parse(equation, tuple(map(len, shapes)), words=False)
    except (EinsumError, _ForNative, AttributeError, TypeError):
        return
    if any(len(set(term)) < len(term) for term in subscripts.inputs):
        bind_sizes(subscripts, shapes)


def _is_new(question: tuple[str, str, bool], backend: Backend, arrays: Sequence[Any]) -> bool:
    """Return whether the native function gets a call because its shapes are new."""
    try:
        subscripts = parse(question[1], tuple([len(array.shape) for array in arrays]), words=False)
        return native_first(question, subscripts, backend, arrays, asks_first=question[2]) is not None
    except EinsumError:
        return False


def _asks_only_to_optimize(options: Mapping[str, Any]) -> bool:
    """Return whether the options ask for nothing but what ours does without any."""
    return len(options) == 1 and options.get("optimize") is True


def _is_native(run: Callable[..., Any], function: Callable[..., Any] | None) -> bool:
    return isinstance(run, partial) and run.func is function


def _is_list_form(operands: Sequence[Any]) -> bool:
    return len(operands) == 2 and type(operands[1]) in (list, tuple) and type(operands[0]) is str


def _unless_intercepted(signature: Callable[[Sequence[Any]], Hashable]) -> Callable[[Sequence[Any]], Hashable]:
    """``signature``, or an error for tensors whose type, or a mode, may want to see calls of einsum."""
    intercepted = sys.modules["torch"].overrides.has_torch_function

    def checked(arrays: Sequence[Any]) -> Hashable:
        if intercepted(arrays):
            raise TypeError if _intercepts(arrays) else _DefaultDevice
        return signature(arrays)

    return checked


def _unless_seen(like: Likeness) -> Likeness:
    """``like``, for operands that nobody wants to see either."""
    intercepted = sys.modules["torch"].overrides.has_torch_function
    return lambda others: not intercepted(others) and like(others)  # who sees calls sees attributes, too


def _intercepts(arrays: Sequence[Any]) -> bool:
    torch = sys.modules["torch"]
    if not torch.overrides.has_torch_function(arrays):
        return False
    from torch.utils._device import DeviceContext

    # torch.set_default_device is a mode too, but one that lets einsum pass.
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    plain = all(type(array) in (torch.Tensor, torch.nn.Parameter) for array in arrays)
    return not plain or any(type(mode) is not DeviceContext for mode in modes)


@dataclass(frozen=True)
class _NoBetter:
    """There is no plan that is better than the native function, for this reason; or than its loops."""

    reason: str
    in_loops: bool = False


def _compile(
    equation: str, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any, asks: bool
) -> Callable[..., Any] | _NoBetter:
    """The plan as a callable, where there is a better one than the native function; ``asks``: for ``optimize``."""
    if not backend.computes(arrays):
        return _NoBetter("the framework's own einsum has no products and sums of a dtype, but ways around them")
    try:
        subscripts = parse(equation, tuple([len(array.shape) for array in arrays]), words=False)
        order = "C" if backend.gives_c_order(equation, arrays) else "K"
        memory = backend.memory_order(equation, arrays, asks)
        plan = plan_call(subscripts, backend, arrays, dtype, casting, optimize, order, memory)
    except EinsumError as error:
        if _is_empty(arrays):  # the native function may not tell what is wrong
            raise
        return _NoBetter(str(error))
    if len(plan.steps) == 1 and isinstance(plan.steps[0], Native) and backend.trusts_native(arrays):
        return _NoBetter(plan.steps[0].reason, in_loops=True)
    few = plan.target.device == "cpu" and prod(plan.sizes.values()) <= _FEW
    if few and order == "C" and len(plan.steps) > 1 and len(arrays) == 2:
        return _NoBetter("to bring its result into the order of the native one takes longer than is saved")
    run = compile_plan(plan, backend)
    return run if order == "K" else lambda *operands: backend.finish(run(*operands), None, order, casting)


_FEW = 1 << 11
"""Products of a pair on a CPU that takes several steps, up to which no step pays for a copy of the result."""

_PLAIN = re.compile(r"[A-Za-z ,.]*(->[A-Za-z .]*)?")
_LETTERS = ascii_uppercase + ascii_lowercase


def _read(operands: Sequence[Any], dialect: Dialect, asks: bool) -> tuple[str, Sequence[Any]]:
    """Equation and arrays of a call in either form, if every framework reads it alike; ``asks``: for ``optimize``."""
    if operands and isinstance(operands[0], str):
        equation, arrays = operands[0], operands[1:]
    else:
        if not dialect.of_numpy:
            raise _ForNative("the framework takes no lists of labels")
        arrays = operands[: len(operands) // 2 * 2 : 2]
        equation = ",".join([_spell(labels) for labels in operands[1::2]])
        if len(operands) % 2:
            equation += "->" + _spell(operands[-1])
        elif asks and not equation.isupper():
            raise _ForNative("versions of NumPy differ in where labels from 26 on come in a result without labels")
    inputs, arrow, output = equation.partition("->")
    drops = "." in inputs and arrow and "." not in output
    if not arrays or not _PLAIN.fullmatch(equation) or (drops and not dialect.drops_ellipsis):
        raise _ForNative("the native function reports what is wrong with the call")
    return equation, arrays


def _spell(labels: Any) -> str:
    """The letters that the frameworks themselves turn a list of numbers into."""
    unusual = _ForNative("its labels are no list of whole numbers below 52")
    given = label_list(labels)
    if given is None or any(isinstance(label, bool) for label in given):
        raise unusual
    try:
        return "".join(["..." if label is ... else _LETTERS[_natural(label)] for label in given])
    except (IndexError, TypeError):
        raise unusual from None


def _natural(label: Any) -> int:
    """An integer of Python or NumPy that isn't negative, as Python's."""
    number = index(label)
    if number < 0:
        raise IndexError
    return number


def _optimizer(optimize: Any, count: int) -> Any:
    """``optimize`` of the native function as :func:`einops_fast.fast_einsum` wants it, and hashable."""
    if optimize is True or (count < 3 and (optimize is False or optimize is None)):
        return "auto"
    name, limit = optimize if isinstance(optimize, (list, tuple)) and len(optimize) == 2 else (optimize, 1)
    if isinstance(name, str) and name in ("greedy", "optimal") and isinstance(limit, (int, float)) and limit >= 1:
        return hashable(optimize)
    if isinstance(optimize, (list, tuple)) and optimize[:1] in (["einsum_path"], ("einsum_path",)):
        path: Any = hashable(optimize)
        if _is_path(path[1:], count):
            return path
    # False, for one: the caller wants no intermediates. Or a path that the native function refuses.
    raise _ForNative(f"optimize={optimize!r} is left to the native function")


def _is_path(path: Sequence[Any], count: int) -> bool:
    """Whether these steps name different ones of the terms that are left, two at least, until one is left."""
    for step in path:
        if not isinstance(step, tuple) or not all(type(at) is int and 0 <= at < count for at in step):
            return False
        if len(set(step)) != len(step) or len(step) < 2:
            return False
        count -= len(step) - 1
    return count == 1
