"""Triton's interpreter, without what takes most of its time and changes nothing."""

import functools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np


def hurry() -> None:
    """Have the interpreter do the same in a third of the time."""
    from triton.runtime.interpreter import interpreter_builder

    _remember_dtypes()
    _remember_shapes()
    _unwrap_quickly()
    _know_types_of_tuples_later()
    _replace_once()
    _combine_at_once()
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


def _combine_at_once() -> None:
    """See at once that operands are of one dtype or of one shape, and fill or broadcast those that aren't."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter
    from triton.runtime.interpreter import TensorHandle

    broadcast, combine, cast = (
        TritonSemantic.broadcast_impl_value,
        TritonSemantic.binary_op_type_checking_impl,
        TritonSemantic.cast,
    )

    def filled(of: Any, shape: Any) -> Any:
        data = np.empty(shape, interpreter._get_np_dtype(of.handle.dtype))
        data[...] = of.handle.data
        return core.tensor(TensorHandle(data, of.handle.dtype), core.block_type(of.type, shape))

    def expanded(of: Any, shape: Any) -> Any:
        if of.type.shape.values == shape:
            return of
        data = np.broadcast_to(of.handle.data, shape)
        return core.tensor(TensorHandle(data, of.handle.dtype), core.block_type(of.type.scalar, shape))

    def broadcast_at_once(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        if not other.is_block():
            return (lhs, filled(rhs, one.shape.values)) if one.is_block() else (lhs, rhs)
        if not one.is_block():
            return filled(lhs, other.shape.values), rhs
        left, right = one.shape.values, other.shape.values
        if left == right:
            return lhs, rhs
        if len(left) != len(right) or any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
            return broadcast(self, lhs, rhs)
        shape = [max(pair) for pair in zip(left, right, strict=True)]
        return expanded(lhs, shape), expanded(rhs, shape)

    def is_one_of(number: Any, dtype: Any) -> bool:
        """Whether a number of Python becomes one of a dtype beside a tensor of it."""
        if type(number) is int and dtype.name in ("int32", "int64"):
            return -(1 << 31) <= number < 1 << 31
        return type(number) in (int, float) and dtype.is_floating()

    def combine_at_once(self: Any, lhs: Any, rhs: Any, *options: Any, **named: Any) -> Any:
        # The fourth option is for quotients, for which numbers of few digits get more.
        if named or len(options) > 3:
            return combine(self, lhs, rhs, *options, **named)
        if type(rhs) is core.tensor and is_one_of(lhs, rhs.dtype):
            lhs = self.scalar_constant(lhs, dtype=rhs.dtype)
        elif type(lhs) is core.tensor and is_one_of(rhs, lhs.dtype):
            rhs = self.scalar_constant(rhs, dtype=lhs.dtype)
        elif not (type(lhs) is type(rhs) is core.tensor and lhs.dtype is rhs.dtype and not lhs.dtype.is_ptr()):
            return combine(self, lhs, rhs, *options)
        return broadcast_at_once(self, lhs, rhs)

    def cast_at_once(self: Any, input: Any, dst_ty: Any, *options: Any) -> Any:
        return input if input.type.scalar is dst_ty else cast(self, input, dst_ty, *options)

    TritonSemantic.broadcast_impl_value = broadcast_at_once
    TritonSemantic.binary_op_type_checking_impl = combine_at_once
    TritonSemantic.cast = cast_at_once
