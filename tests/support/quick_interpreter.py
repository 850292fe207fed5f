"""Triton's interpreter, without what takes most of its time and changes nothing."""

import functools
from dataclasses import replace
from math import prod
from typing import Any


def hurry() -> None:
    """Have the interpreter do the same in a fraction of the time."""
    from triton.runtime.interpreter import interpreter_builder

    _remember_dtypes()
    _remember_shapes()
    _replace_once()
    # Without the option to debug, whether integers overflow is computed and then ignored; for a GPU, it isn't computed.
    if not interpreter_builder.options.debug:
        interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


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
            self.of_tensors = known(*self.shape)
            if key is not None:
                blocks[key] = self.shape, self.numel, self.name, self.of_tensors
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name, self.of_tensors = found

    @functools.cache
    def known(*shape: int) -> tuple[Any, Any]:
        return core.constexpr(prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    of_numbers = known()

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = type.of_tensors if type.is_block() else of_numbers

    core.block_type.__init__ = init_block
    core.tensor.__init__ = init_tensor


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
