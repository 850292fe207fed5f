"""Triton's interpreter, without what takes most of its time and changes nothing."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from math import prod
from typing import Any


def hurry() -> None:
    """Have the interpreter do the same in a third of the time."""
    from triton.runtime.interpreter import interpreter_builder

    _remember_builtins()
    _remember_dtypes()
    _remember_shapes()
    _unwrap_quickly()
    _know_types_of_tuples_later()
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


def _remember_shapes() -> None:
    """Check each shape once, and have what is known of it once for all tensors that have it. None of it changes."""
    from triton.language import core

    make, blocks = core.block_type.__init__, {}

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        # Pointers are told apart by more than their names.
        key = (element_ty.name, *shape) if type(element_ty) is core.dtype else None
        found = None if key is None else blocks.get(key)
        if found is None:
            make(self, element_ty, shape)
            if key is not None:
                blocks[key] = self.shape, self.numel, self.name
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found

    @functools.cache
    def known(*shape: int) -> tuple[Any, Any]:
        return core.constexpr(prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = known(*type.shape) if type.is_block() else known()

    core.block_type.__init__ = init_block
    core.tensor.__init__ = init_tensor


def _unwrap_quickly() -> None:
    """See at once that a number, or a tensor, isn't wrapped in a constant."""
    from triton.language import core
    from triton.runtime import jit

    bare = frozenset({int, bool, float, str, type(None), core.tensor, core.dtype})
    unwrap = core._unwrap_if_constexpr

    def quickly(of: Any) -> Any:
        kind = type(of)
        return of if kind in bare else of.value if kind is core.constexpr else unwrap(of)

    def call(self: Any, *args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        return self.fn(*map(quickly, args), **{name: quickly(of) for name, of in kwargs.items()})

    core._unwrap_if_constexpr = quickly
    # What is computed of constants isn't wrapped again in the interpreter.
    jit.ConstexprFunction.__call__ = call


def _know_types_of_tuples_later() -> None:
    """Find the type of a tuple when somebody asks for it, who is the compiler."""
    from triton.language import core

    make = core.tuple.__init__

    def init(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.values = list(args)
        else:
            make(self, args, type)

    def get(self: Any) -> Any:
        found = self.__dict__.get("type of all")
        if found is None:
            found = self.__dict__["type of all"] = core._type_for_tuple_values(self.values)
        return found

    def put(self: Any, type: Any) -> None:
        self.__dict__["type of all"] = type

    core.tuple.__init__ = init
    core.tuple.type = property(get, put)


def _replace_once() -> None:
    """Where one function of a kernel calls another, don't replace again what is replaced."""
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def modules(function: Any) -> list[Any]:
        return [each for each in function.fn.__globals__.values() if each is language or each is core]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen = modules(self)
        if not seen or any(core.is_builtin(each.load) for each in seen):
            return replacing(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    replacing = interpreter.InterpretedFunction.__call__
    interpreter.InterpretedFunction.__call__ = call
