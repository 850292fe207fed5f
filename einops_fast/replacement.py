"""The function that stands for a framework's own einsum while that is patched.

It does what the native function does, down to the errors: it reads letters only, and whatever it can't do, or
can't do better, it hands to the native function unchanged. Those are other types of arrays (so that
``__array_function__`` and ``__torch_function__`` see the call), unusual options, bad calls, code that
torch.compile or torch.jit is tracing, and contractions for which there is no better plan.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from einops_fast.arguments import hashable
from einops_fast.backends import Backend, get_backend
from einops_fast.einsum import plan_call
from einops_fast.errors import EinsumError
from einops_fast.notation import parse
from einops_fast.observers import left_to_native
from einops_fast.plan import compile_plan
from einops_fast.plan_cache import compiled, remember
from einops_fast.steps import Native
from einops_fast.tracing import is_tracing

__all__ = ["DIALECTS", "Dialect", "Replacement"]


@dataclass(frozen=True)
class Dialect:
    """What one framework's einsum takes that another's doesn't.

    Attributes:
        options: keyword arguments that mean what they mean in NumPy; calls with any other are left to it.
        lists: the operands may come as one list.
        drops_ellipsis: an output without an ellipsis sums over the ellipsis axes, where others raise.
    """

    options: frozenset[str] = frozenset()
    lists: bool = False
    drops_ellipsis: bool = False


DIALECTS = {
    "numpy": Dialect(frozenset({"out", "dtype", "order", "casting", "optimize"})),
    "torch": Dialect(lists=True, drops_ellipsis=True),
    "mxnet": Dialect(frozenset({"out", "optimize"})),
    "cupy": Dialect(frozenset({"optimize"})),
}


class _ForNative(Exception):
    """The call is left to the native function."""


class _DefaultDevice(Exception):
    """torch.set_default_device, or a block of torch.device, is the only mode: the call is ours."""


class Replacement:
    """Stands for ``native``, the einsum of the framework ``name``.

    Attributes:
        native: the function that is replaced.
        function: what to replace it with; it has the same name, documentation and signature.
        active: while False, ``function`` only calls ``native``, for those who kept a reference to it.
    """

    def __init__(self, name: str, native: Callable[..., Any]) -> None:
        self.native = native
        self.active = False
        self.function = self._function(name, get_backend(name), DIALECTS[name])
        # What torch.compile traces in its place: it has rules for the native functions of torch and NumPy.
        self.function._torchdynamo_inline = native  # type: ignore[attr-defined]
        if name == "torch":
            # What torch.jit.script takes it for. TorchScript is deprecated and may go away.
            with suppress(AttributeError):
                sys.modules["torch"].jit._builtins._register_builtin(self.function, "aten::einsum")

    def _function(self, name: str, backend: Backend, dialect: Dialect) -> Callable[..., Any]:
        native = self.native
        signature = _unless_intercepted(backend.signature) if name == "torch" else backend.signature

        @wraps(native)
        def einsum(*operands: Any, **options: Any) -> Any:
            if self.active:
                if dialect.lists and not options and _is_list_form(operands):
                    operands = (operands[0], *operands[1])
                if not options:
                    arrays = operands[1:]
                    try:
                        run = compiled[name, operands[0], signature(arrays)]
                    except _DefaultDevice:
                        # torch would ask the mode about every attribute of a tensor, and every call of a plan.
                        with sys.modules["torch"]._C.DisableTorchFunction():
                            return einsum(*operands)
                    except (KeyError, IndexError, AttributeError, TypeError):
                        pass
                    else:
                        return native(*operands) if run is _no_better else run(*arrays)
                try:
                    return _call(name, native, operands, options)
                except (EinsumError, _ForNative):
                    left_to_native(name, operands[0] if operands else "")
            return native(*operands, **options)

        return einsum


def _call(name: str, native: Callable[..., Any], operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The careful way: check everything, make the plan, remember it."""
    backend, dialect = get_backend(name), DIALECTS[name]
    equation, arrays = _read(operands, dialect)
    if name == "torch":
        torch = sys.modules["torch"]
        if _intercepts(arrays):
            # The native function would name the one in its place.
            return torch.overrides.handle_torch_function(native, arrays, equation, *arrays)
        if torch.jit.is_tracing():
            raise _ForNative
    if is_tracing():
        raise _ForNative  # which torch.compile knows or calls as it is, be it of torch or NumPy

    out, order = options.get("out"), options.get("order", "K")
    dtype, casting = options.get("dtype"), options.get("casting", "safe")
    optimize = _optimizer(options.get("optimize", True), len(arrays))
    owned = all(backend.owns(type(array)) for array in (arrays if out is None else [*arrays, out]))
    usual = options.keys() <= dialect.options and order in ("K", "C", "F")
    # NumPy ignores most options where the result is a view, and dtype in the products that it leaves to BLAS.
    ignored = options and (len(arrays) == 1 or (dtype is not None and options.get("optimize", False) is not False))
    if not owned or not usual or ignored:
        raise _ForNative

    key: tuple[Hashable, ...] = (name, equation, backend.signature(arrays))
    if options:
        key += (dtype, casting, optimize)
    try:
        run = compiled[key]
    except TypeError:  # an unhashable dtype
        raise _ForNative from None
    except KeyError:
        run = _compile(equation, backend, arrays, dtype, casting, optimize)
        remember(key, run)
    if run is _no_better:
        raise _ForNative
    result = run(*arrays)
    if out is None and order == "K":
        return result
    if out is not None and out.dtype != getattr(result, "dtype", None):  # one object, without an axis, has none
        raise _ForNative  # which computes in a dtype that suits both
    return backend.finish(result, out, order, casting)


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


def _intercepts(arrays: Sequence[Any]) -> bool:
    torch = sys.modules["torch"]
    if not torch.overrides.has_torch_function(arrays):
        return False
    from torch.utils._device import DeviceContext

    # torch.set_default_device is a mode too, but one that lets einsum pass.
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    plain = all(type(array) in (torch.Tensor, torch.nn.Parameter) for array in arrays)
    return not plain or any(type(mode) is not DeviceContext for mode in modes)


def _compile(
    equation: str, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any
) -> Callable[..., Any]:
    """The plan as a callable, or ``_no_better``."""
    try:
        subscripts = parse(equation, tuple([len(array.shape) for array in arrays]), words=False)
        order = "C" if backend.gives_c_order(equation, arrays) else "K"
        plan = plan_call(subscripts, backend, arrays, dtype, casting, optimize, order)
    except EinsumError:
        return _no_better
    if len(plan.steps) == 1 and isinstance(plan.steps[0], Native):
        return _no_better
    run = compile_plan(plan, backend)
    return run if order == "K" else lambda *operands: backend.finish(run(*operands), None, order, casting)


def _no_better(*_: Any) -> Any:
    """Stands for all calls that the native function answers as well as we could; never called."""


_PLAIN = re.compile(r"[A-Za-z ,.]*(->[A-Za-z .]*)?")
_LETTERS = ascii_uppercase + ascii_lowercase


def _read(operands: Sequence[Any], dialect: Dialect) -> tuple[str, Sequence[Any]]:
    """Equation and arrays of a call in either form, if every framework reads it alike."""
    if operands and isinstance(operands[0], str):
        equation, arrays = operands[0], operands[1:]
    else:
        arrays = operands[: len(operands) // 2 * 2 : 2]
        equation = ",".join(map(_spell, operands[1::2]))
        if len(operands) % 2:
            equation += "->" + _spell(operands[-1])
    inputs, arrow, output = equation.partition("->")
    drops = "." in inputs and arrow and "." not in output
    if not arrays or not _PLAIN.fullmatch(equation) or (drops and not dialect.drops_ellipsis):
        raise _ForNative
    return equation, arrays


def _spell(labels: Any) -> str:
    """The letters that the frameworks themselves turn a list of numbers into."""
    if not isinstance(labels, (list, tuple)):
        raise _ForNative
    for label in labels:
        if label is not ... and not (type(label) is int and 0 <= label < len(_LETTERS)):
            raise _ForNative
    return "".join("..." if label is ... else _LETTERS[label] for label in labels)


def _optimizer(optimize: Any, count: int) -> Any:
    """``optimize`` of the native function as :func:`einops_fast.fast_einsum` wants it, and hashable."""
    if optimize is True or (count < 3 and (optimize is False or optimize is None)):
        return "auto"
    name, limit = optimize if isinstance(optimize, (list, tuple)) and len(optimize) == 2 else (optimize, 1)
    if isinstance(name, str) and name in ("greedy", "optimal") and isinstance(limit, (int, float)) and limit >= 1:
        return hashable(optimize)
    if isinstance(optimize, (list, tuple)) and len(optimize) == count and optimize[0] == "einsum_path":
        return hashable(optimize)
    # False, for one: the caller wants no intermediates.
    raise _ForNative
