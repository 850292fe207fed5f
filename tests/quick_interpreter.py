"""Triton's interpreter, without what takes most of its time and changes nothing."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import Any


def hurry() -> None:
    """Have the interpreter do the same in less than half the time."""
    from triton.runtime.interpreter import interpreter_builder

    _remember_builtins()
    _remember_dtypes()
    _replace_once()
    # Without the option to debug, whether integers overflow is computed and then ignored; for a GPU, it isn't computed.
    if not interpreter_builder.options.debug:
        interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


def _remember_builtins() -> None:
    """Look once for what is replaced in ``triton.language``: what only a compiler can call. It doesn't change."""
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def names(module: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(module) if core.is_builtin(member)]

    def patch(module: Any, builder: Any, scope: Any) -> None:
        for name in names(module):
            member = getattr(module, name)
            if core.is_builtin(member):
                interpreter._patch_attr(module, name, member, builder, scope)

    # The first search is now, before anything is replaced.
    for module in (core, core.tensor, core.tensor_descriptor_base):
        names(module)
    interpreter._patch_builtin = patch


def _remember_dtypes() -> None:
    """Have the table of NumPy's dtypes once, and not for every value."""
    from triton.runtime import interpreter

    look_up, known = interpreter._get_np_dtype, {}

    def dtype_of(of: Any) -> Any:
        name = of.scalar.name
        found = known.get(name)
        if found is None:
            found = known[name] = look_up(of)
        return found

    interpreter._get_np_dtype = dtype_of


def _replace_once() -> None:
    """Where one function of a kernel calls another, don't replace again what is replaced."""
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = [each for each in self.fn.__globals__.values() if each is language or each is core]
        if not seen or any(core.is_builtin(each.load) for each in seen):
            return replacing(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    replacing = interpreter.InterpretedFunction.__call__
    interpreter.InterpretedFunction.__call__ = call
