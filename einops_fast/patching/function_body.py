"""Exchange the code of a framework's function, and leave the function object what it is.

Other libraries key tables by a function (``__torch_function__``, ``__array_function__``), compare it by identity,
pickle it by name, and hold references to it. All of that goes on working where the object stays, and its code changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any
from warnings import catch_warnings, simplefilter

from einops_fast.errors import OperandError


def private_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what this one does now, whatever code the original is given later.

    NumPy's functions dispatch ``__array_function__`` in C; the copy is of the Python function behind that.
    """
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return function
    copied = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
    copied.__kwdefaults__ = inner.__kwdefaults__
    for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(copied, name, getattr(inner, name))
    return copied


class FunctionBody:
    """The code of a Python function, which is exchanged for a call of another function, and put back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            raise OperandError(f"{function!r} isn't written in Python: it can't be patched")
        self._function = inner
        self.native: Any = private_copy(inner)  # does what the function does by itself, also while it's exchanged

    def exchange(
        self, target: Callable[..., Any], code: CodeType | None = None, defaults: Any = None, **more: Any
    ) -> None:  # fmt: skip
        """Have every call of the function call ``target``; its ``__wrapped__`` is what it did before.

        Name, signature, documentation and source are told as before.

        Args:
            target: what ``code`` finds as ``_einops_fast_target``.
            code: of a function without a closure, in place of one that calls the target with all arguments. It runs
                among the globals of the framework's module.
            defaults: of its keyword arguments, if they aren't the function's own.
            more: other globals that it needs.
        """
        function = self._function
        self.native.__code__ = own = function.__code__
        function.__wrapped__ = self.native  # type: ignore[attr-defined]
        # The code finds the target among the globals of the framework's module: it can't bring any of its own.
        function.__globals__.update(more, _einops_fast_target=target)
        self._exchanged = (code or _CALL).replace(
            co_name=own.co_name,
            co_filename=own.co_filename,  # compilers leave the files of a framework alone
            co_firstlineno=own.co_firstlineno,
            co_freevars=own.co_freevars,
        )
        self._put(self._exchanged, defaults or function.__kwdefaults__)

    def _put(self, code: CodeType, defaults: Any) -> None:
        with catch_warnings():  # since Python 3.13, of a generator whose code becomes that of a function
            simplefilter("ignore", DeprecationWarning)
            self._function.__code__ = code
        self._function.__kwdefaults__ = defaults

    def put_back(self) -> None:
        """Give the function its own code again, unless somebody has exchanged ours."""
        if self._function.__code__ is self._exchanged:
            self._put(self.native.__code__, self.native.__kwdefaults__)
        if vars(self._function).get("__wrapped__") is self.native:
            del vars(self._function)["__wrapped__"]


_CALL = (lambda *operands, **options: _einops_fast_target(*operands, **options)).__code__  # type: ignore[name-defined]  # noqa: F821
