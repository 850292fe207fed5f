"""NumPy: BLAS through ``matmul``, which takes batch axes with any strides and writes where it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from numbers import Number
from typing import Any

import numpy as np

from einops_fast.backends.base import Likeness, Run
from einops_fast.backends.blocked_copies import LEAST, block_extents, copy_in_blocks
from einops_fast.backends.host import cpu_threads, free_memory
from einops_fast.backends.ndarray import NdarrayBackend, sum_equation
from einops_fast.errors import OperandError
from einops_fast.foreign import is_foreign, refuse_foreign
from einops_fast.patching.small_calls import FIRST_OF_OTHERS, own_loops
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.steps import Cast, Gemm, Multiply, Native, Step, Sum
from einops_fast.planning.target import Numerics, Target
from einops_fast.runtime.tuning import is_reproducible

# Before version 2, a scalar has the smallest dtype that holds its value.
_VALUES_PROMOTE = np.result_type(np.float64(0), np.zeros(1, "float32")) == np.float32

_AT_ONCE = {"b": 1 << 17, "i": 1 << 17, "u": 1 << 17, "f": 1 << 18, "c": 1 << 15}
"""Multiply-adds up to which the loops take no longer than it takes to make a plan, by kind of dtype."""

_KINDS = "?biufcO"
"""Dtypes that einsum's loops multiply and add; of dates and texts it has views only."""

_BLAS = frozenset(map(np.dtype, "fdFD"))

_SMALL = 1 << 13
"""Elements of matrices that BLAS multiplies in less time than it takes to look a plan up and more."""

_PIECE = 4096
"""Elements of a dot product in single precision whose rounding is no matter."""

_FEW_LABELS = 12
"""The most labels for which a contraction of two elements along each takes no time."""


class NumpyBackend(NdarrayBackend):
    """NumPy arrays; a step becomes a BLAS call, a ufunc or einsum's own loops."""

    name = "numpy"
    module = "numpy"
    loops: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__(np, np.einsum)
        self.matmul, self.multiply_arrays = _quiet(np.matmul), _quiet(np.multiply)
        self.loops = own_loops(self.einsum) or self.einsum
        threads = cpu_threads()
        self._target = Target(
            self.name,
            "cpu",
            Ceilings(
                bandwidth=2e10,
                runs=1e10,
                gather=4e9,
                flops={"float32": 8e10 * threads, "float64": 4e10 * threads},
                call=1e-6,
                again=1e-6,
                item=8e-8,
                vector_item=3e-8,
                run=1.2e-8,
                # OpenBLAS shares out every matrix of a stack, one after the other.
                fork=3e-6 if threads > 1 else 0.0,
                fork_above=64**3,
                broadcast=1.2e10,
                native=5e9,
                native_products=5e9,
                native_call=3e-6,
                native_run=4e-9,
                native_complex=9e8,
                native_complex_products=2.4e8,
                # In single precision these have one thread, which the loops of einsum don't keep up with.
                dots={"float32": 8e9, "complex64": 2.5e9, "complex128": 2.5e9},
                dot_kernels=frozenset({"float64", "complex64", "complex128"}),
            ),
            batch_axes=32,
        )

    def likeness(self, operands: Sequence[Any], kernels: bool = False) -> Likeness | None:
        if any(type(operand) is not np.ndarray for operand in operands):
            return None
        if len(operands) == 2:
            return _like_two(*operands)
        kinds = [(operand.shape, operand.strides, operand.dtype) for operand in operands]

        def like(others: Sequence[Any]) -> bool:
            return all(type(each) is np.ndarray for each in others) and kinds == [
                (each.shape, each.strides, each.dtype) for each in others
            ]

        return like

    def target(self, operands: Sequence[Any]) -> Target:
        return self._target

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        dtypes = {operand.dtype for operand in operands}
        if dtype is not None and dtypes != {wanted := np.dtype(dtype)}:
            _check_numbers(wanted)
        elif len(dtypes) > 1:
            _check_numbers(*dtypes)
        numerics = super().numerics(operands, dtype, casting)
        scalars = _VALUES_PROMOTE and dtype is None and not all(operand.ndim for operand in operands)
        if scalars and len(dtypes) > 1:
            name = numerics.result
            return Numerics(name, name, "the dtype depends on the value of a scalar", whole=True)
        return numerics

    def dtype_with(self, operands: Sequence[Any], out: Any) -> Any:
        # Beside the dtype of ``out`` alone, the values of scalars would decide; it's a scalar as well.
        if any(operand.dtype != out.dtype for operand in operands):
            _check_numbers(*[operand.dtype for operand in operands], out.dtype)
        scalars = not any(operand.ndim for operand in operands)
        return super().dtype_with([operand.dtype for operand in operands] if scalars else operands, out)

    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        if out is None and not isinstance(result, np.ndarray):
            return result
        result = _boxed(result)
        return super().finish(result, out, order, casting)

    def convert(self, value: Any, name: str) -> Any:
        # Subclasses that change nothing but methods (a matrix, a memmap) count as plain arrays, as in numpy.einsum.
        refuse_foreign(value, name)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise OperandError(f"{name} is a {type(value).__name__} that is no array: {error}") from None
        if array.dtype == object and not isinstance(value, (np.ndarray, list, tuple, Number)):
            raise OperandError(f"{name} is of type {type(value).__name__}: no backend knows it")
        return array

    def writes_to(self, out: Any) -> bool:
        return isinstance(out, np.ndarray) and not is_foreign(out)

    def example(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Any:
        one = np.empty(1, dtype)
        steps = [stride * one.itemsize for stride in strides or contiguous_strides(shape)]
        return np.lib.stride_tricks.as_strided(one, shape, steps)

    def room(self, operands: Sequence[Any]) -> int | None:
        return free_memory() // max(int(operand.itemsize) for operand in operands)

    def contiguous(self, array: Any) -> Any:
        extents = None
        if array.size >= LEAST and not array.dtype.hasobject:
            item = array.itemsize
            extents = block_extents(array.shape, tuple([stride // item for stride in array.strides]), item)
        if extents is None:
            return np.ascontiguousarray(array)
        result = np.empty(array.shape, array.dtype)
        copy_in_blocks(result, array, extents)
        return result

    def cast(self, step: Cast) -> Run:
        dtype = np.dtype(step.dtype)

        def run(a: Any) -> Any:
            with np.errstate(all="ignore"):
                return a.astype(dtype)

        return run

    def gemm(self, step: Gemm) -> Run:
        plain = super().gemm(step)
        if step.m > 1 or step.n > 1 or step.k < 2 * _PIECE or step.buffer is not None:
            return plain
        left, right = self.arrange(step.left), self.arrange(step.right)
        matmul, loops, shape = self.matmul, self.loops, step.shape
        pieces, rest = divmod(step.k, _PIECE)
        whole, add = pieces * _PIECE, _quiet(np.add)

        def by_pieces(a: Any, b: Any) -> Any:
            # BLAS adds up all of a dot product in a few numbers: the longer it is, the more it rounds off.
            if a.dtype.char != "f":
                return plain(a, b)
            a, b = left(a), right(b)
            one, two = a.reshape(*a.shape[:-2], -1), b.reshape(*b.shape[:-2], -1)
            parts = matmul(
                one[..., :whole].reshape(*one.shape[:-1], pieces, 1, _PIECE),
                two[..., :whole].reshape(*two.shape[:-1], pieces, _PIECE, 1),
            )
            sums = loops("...pmn->...", parts)
            if rest:
                sums = add(sums, matmul(one[..., None, whole:], two[..., whole:, None])[..., 0, 0])
            return _boxed(sums).reshape(shape)

        return by_pieces

    def sum(self, step: Sum) -> Run:
        # einsum's loops are up to three times as fast as add.reduce, and have the same dtype rules.
        equation = sum_equation(step)
        return super().sum(step) if equation is None else partial(self._in_loops, equation)

    def trusts_native(self, operands: Sequence[Any]) -> bool:
        return all(operand.dtype.num >= 0 for operand in operands)

    def computes(self, operands: Sequence[Any]) -> bool:
        return all(operand.dtype.num < FIRST_OF_OTHERS and operand.dtype.kind in _KINDS for operand in operands)

    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Any:
        try:
            return super().native(equation, operands, **options)
        except TypeError as error:
            self._explain(error, operands)
            raise

    def _explain(self, error: TypeError, operands: Sequence[Any]) -> None:
        """Raise OperandError in place of an error about a dtype of another package."""
        for operand in operands:
            if not self.computes((operand,)):
                raise _no_numbers(operand.dtype) from error

    def native_step(self, step: Native) -> Run:
        return partial(self.loops if step.plain else self._in_loops, step.equation)

    def _in_loops(self, equation: str, *operands: Any) -> Any:
        for operand in operands:
            if operand.dtype.num < 0:
                return self._by_ufuncs(equation, operands)
        try:
            return self.loops(equation, *operands)
        except TypeError as error:
            self._explain(error, operands)
            raise

    def at_once(self, operands: Sequence[Any], full: int = 0) -> Run | None:
        dtypes = [operand.dtype for operand in operands]
        few = 0 < full <= min([_AT_ONCE.get(dtype.kind, 0) for dtype in dtypes]) and not is_reproducible()
        # Of empty arrays, the loops don't compare all extents.
        few = few and 0 not in [operand.size for operand in operands]
        return self._at_once if few and all(0 <= dtype.num < FIRST_OF_OTHERS for dtype in dtypes) else None

    def product(self, subscripts: Subscripts) -> Callable[..., Any] | None:
        # Of one axis each, rows, columns and the sum need no reshaping, so that sizes make no difference.
        terms, output, matmul = subscripts.inputs, subscripts.output, self.matmul
        if len(terms) != 2 or len(output) < 2:
            return None
        batch, rows, columns = output[:-2], output[-2], output[-1]
        turned = rows in terms[1]
        left, right = terms[::-1] if turned else terms
        summed = "".join([label for label in left if label not in output])
        ways = (batch + rows + summed, batch + summed + rows), (batch + summed + columns, batch + columns + summed)
        if len(summed) != 1 or left not in ways[0] or right not in ways[1] or len(set(left + right)) != len(output) + 1:
            return None
        turn_left, turn_right, rank = left == ways[0][1], right == ways[1][1], len(output)

        def run(*operands: Any) -> Any:
            for each in operands:
                if type(each) is not np.ndarray or each.size > _SMALL or each.ndim != rank or each.dtype not in _BLAS:
                    return None
                if not (each.flags.c_contiguous or (rank == 2 and each.flags.f_contiguous)):
                    return None
            try:
                a, b = operands[::-1] if turned else operands
                if a.dtype is b.dtype:
                    return matmul(a.swapaxes(-1, -2) if turn_left else a, b.swapaxes(-1, -2) if turn_right else b)
            except ValueError:  # axes of size 1 that broadcast, or sizes or a count that doesn't fit
                pass
            return None

        return run

    def _at_once(self, equation: str, operands: Sequence[Any]) -> Any:
        return self.loops(equation, *operands)

    def memory_order(self, equation: str, operands: Sequence[Any], optimize: bool) -> Sequence[int]:
        # It depends on the order of the strides, whatever the sizes are: few elements tell as much as all.
        few = [operand[tuple([slice(2)] * operand.ndim)] for operand in operands]
        labels = {label for label in equation.partition("->")[0] if label.isalpha()}
        if len(labels) > _FEW_LABELS or any(operand.dtype.kind not in "fc" for operand in operands):
            return ()
        try:
            result = self.native(equation, few, optimize=True) if optimize else self.loops(equation, *few)
        except Exception:  # the call itself says what is wrong
            return ()
        axes = [at for at in range(result.ndim) if result.shape[at] > 1]
        slowest_first = sorted(axes, key=lambda at: -result.strides[at])
        if slowest_first == axes:
            return ()
        return *slowest_first, *(at for at in range(result.ndim) if at not in axes)

    def _by_ufuncs(self, equation: str, operands: Sequence[Any]) -> Any:
        """Multiply, then sum: einsum has no loops for dtypes of other packages without a number, and returns zeros."""
        inputs, _, output = equation.partition("->")
        labels = output + "".join(dict.fromkeys(label for label in inputs if label.isalpha() and label not in output))
        product: Any = None
        for term, operand in zip(inputs.split(","), operands, strict=True):
            view = self.einsum(f"{term}->{''.join(label for label in labels if label in term)}", operand)
            view = view[tuple([slice(None) if label in term else None for label in labels])]
            product = view if product is None else self.multiply_arrays(product, view)
        summed = tuple(range(len(output), len(labels)))
        return product.sum(axis=summed) if summed else product

    def emit(self, step: Step) -> Run:
        run = super().emit(step)
        if step.shape or not isinstance(step, (Multiply, Native, Sum)):
            return run
        return lambda *arrays: _boxed(run(*arrays))

    def answer(self, rank: int) -> Run | None:
        # NumPy's functions return scalars, not arrays without axes. Of objects, some are the object itself.
        return (lambda result: result[()] if isinstance(result, np.ndarray) else result) if rank == 0 else None


def _check_numbers(*dtypes: Any) -> None:
    """Raise OperandError for dtypes of NumPy's own that aren't numbers, which have few dtypes in common with others."""
    if any(dtype.kind == "O" for dtype in dtypes):  # whose elements may be multiplied with any others
        return
    for dtype in dtypes:
        if dtype.kind not in _KINDS and 0 <= dtype.num < FIRST_OF_OTHERS:
            raise _no_numbers(dtype)


def _no_numbers(dtype: Any) -> OperandError:
    return OperandError(
        f"NumPy's einsum has no products and sums of {dtype}: convert the operands of this dtype, or give dtype="
    )


def _boxed(result: Any) -> Any:
    """As an array, what has no axes: of objects NumPy gives the object, which the next step would take for a number."""
    if isinstance(result, (np.ndarray, np.generic)):
        return result
    box = np.empty((), object)
    box[()] = result
    return box


def _like_two(one: Any, other: Any) -> Likeness:
    """Return what compares two plain arrays with these: in half the time that it takes to hash what they are."""
    array, shape, strides, dtype = np.ndarray, one.shape, one.strides, one.dtype
    other_shape, other_strides, other_dtype = other.shape, other.strides, other.dtype

    def like(others: Sequence[Any]) -> bool:
        if len(others) != 2:
            return False
        a, b = others
        return (
            type(a) is array
            and type(b) is array
            and a.shape == shape
            and b.shape == other_shape
            and a.strides == strides
            and b.strides == other_strides
            and a.dtype is dtype
            and b.dtype is other_dtype
        )

    return like


def _quiet(ufunc: Any) -> Callable[..., Any]:
    """The function without floating-point warnings: einsum gives none, whatever ``numpy.errstate`` says."""
    if _VALUES_PROMOTE:
        # NumPy 1 takes buffer size, error mask and handler as an argument; its errstate costs 3 µs.
        return partial(ufunc, extobj=[np.getbufsize(), 0, None])
    umath: Any = import_module("numpy._core.umath")
    try:
        # What errstate does; it makes this anew for each call, which takes 1 µs.
        state, ignoring = umath._extobj_contextvar, umath._make_extobj(all="ignore")
    except AttributeError:

        def with_errstate(*arrays: Any, **options: Any) -> Any:
            with np.errstate(all="ignore"):
                return ufunc(*arrays, **options)

        return with_errstate

    def quiet(*arrays: Any, **options: Any) -> Any:
        token = state.set(ignoring)
        try:
            return ufunc(*arrays, **options)
        finally:
            state.reset(token)

    return quiet
