"""What NumPy and CuPy share: a step becomes the same call of either namespace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from einops_fast.backends.base import Backend, Run, as_is, diagonal_equation
from einops_fast.errors import OperandError
from einops_fast.patching.function_body import private_copy
from einops_fast.planning.destinations import matrices_of
from einops_fast.planning.steps import Arrange, Cast, Diagonal, Gemm, Multiply, Native, Select, Step, Sum, View
from einops_fast.planning.target import Numerics, Operand

_BLOCK, _ROWS = 1 << 20, 64
"""Elements of a product that are made at a time where it is added to an array, and rows of it at least."""

_GEMM_KINDS = {"float32", "float64", "complex64", "complex128"}


class NdarrayBackend(Backend):
    """A namespace ``xp`` with NumPy's functions and arrays with NumPy's methods."""

    def __init__(self, xp: Any, einsum: Callable[..., Any]) -> None:
        self.xp = xp
        self.einsum = private_copy(einsum)  # native, also while that is patched
        self.matmul, self.multiply_arrays = xp.matmul, xp.multiply
        self._ndarray = xp.ndarray

    def owns(self, array_type: type) -> bool:
        return array_type is self._ndarray

    def signature(self, operands: Sequence[Any]) -> Hashable:
        return tuple([(a.shape, a.strides, a.dtype, type(a)) for a in operands])

    def inspect(self, array: Any) -> Operand:
        dtype = array.dtype
        item = dtype.itemsize or 1
        strides = tuple([stride // item or int(stride != 0) for stride in array.strides])
        return Operand(array.shape, strides, _name_of(dtype))

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        xp = self.xp
        result = operands[0].dtype
        if dtype is not None or not result.isnative or any(operand.dtype is not result for operand in operands):
            result = xp.dtype(dtype) if dtype is not None else xp.result_type(*operands)
            for at, operand in enumerate(operands):
                if operand.dtype != result and not xp.can_cast(operand, result, casting):
                    raise OperandError(
                        f"operand {at} has dtype {operand.dtype}, which casting={casting!r} doesn't convert to {result}"
                    )
        return _numerics_of(result)

    def dtype_with(self, operands: Sequence[Any], out: Any) -> Any:
        return self.xp.result_type(*operands, out.dtype)

    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Any:
        return self.einsum(equation, *operands, **options)

    def sums_of(self, part: Any, shape: tuple[int, ...]) -> Any:
        return self.xp.zeros(shape, part.dtype)

    def in_pieces(self, run: Run, operands: Sequence[Any]) -> Run:
        return run

    def check_out(self, result: Any, out: Any, casting: str) -> None:
        super().check_out(result, out, casting)
        if not self.xp.can_cast(result.dtype, out.dtype, casting):
            raise OperandError(f"casting={casting!r} doesn't convert {result.dtype} to out's {out.dtype}")
        if not getattr(out.flags, "writeable", True):
            raise OperandError("out is read-only: give an array that can be written to, as out.copy() is")

    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        if out is not None:
            self.check_out(result, out, casting)
            self.xp.copyto(out, result, casting=casting)
            return out
        return result if order == "K" or not result.ndim else self.xp.asarray(result, order=order)

    def destination(self, out: Any, operands: Sequence[Any]) -> Any:
        if type(out) is not self._ndarray:
            if not self.writes_to(out):
                return None
            out = self.xp.asarray(out)
        if not (getattr(out.flags, "writeable", True) and out.dtype.isnative):
            return None
        shares = self.xp.may_share_memory
        for each in operands:
            if shares(out, each):
                return None
        return out

    def writing(self, step: Step, out: Operand, adds: bool) -> Run | None:
        if adds:
            in_blocks = self._added_in_blocks(step, out) if isinstance(step, Gemm) and self.loops is not None else None
            if in_blocks is not None:
                return in_blocks
            made = self.emit(step)

            def add(*arrays: Any) -> None:
                *operands, out, beta = arrays
                part = made(*operands)
                if beta != 1:
                    out *= beta
                out += part

            return add
        if isinstance(step, Cast):
            return _convert
        if isinstance(step, (Diagonal, Select, View)):
            view = self.arrange(Arrange(step.how.perm)) if isinstance(step, View) else self.emit(step)
            copy = self.xp.copyto
            return lambda a, out: copy(out, view(a))
        if isinstance(step, Multiply) and not step.summed:
            left, right, product = self.arrange(step.left), self.arrange(step.right), self.multiply_arrays
            return lambda a, b, out: product(left(a), right(b), out=out)
        if isinstance(step, (Native, Sum)):
            equation, loops = step.equation if isinstance(step, Native) else sum_equation(step), self.loops
            if loops is None or equation is None or np.dtype(out.dtype).kind not in "biufc":
                return None
            return lambda *arrays: loops(equation, *arrays[:-1], out=arrays[-1])
        if not isinstance(step, Gemm) or step.m == step.n == 1:
            return None
        views, matmul = self._matrices_and(step, out), self.matmul
        if views is None:
            return None
        one, two, view = views
        return lambda a, b, out: matmul(one(a), two(b), out=view(out))

    def _matrices_and(self, step: Gemm, out: Operand) -> tuple[Run, Run, Run] | None:
        """Return what makes matrices of operands and of ``out``, if BLAS can write there."""
        found = matrices_of(step, out)
        if found is None:
            return None
        one, two = self._matrices(step.left, step.transpose_left), self._matrices(step.right, step.transpose_right)
        if found.splits:
            one, two = _split(one, found.batch), _split(two, found.batch)
        return one, two, self.arrange(found.view)

    def _added_in_blocks(self, step: Gemm, out: Operand) -> Run | None:
        """Return a large product added to ``out`` some rows at a time: NumPy has none that adds."""
        rows = max(_ROWS, _BLOCK // (prod(step.batch) * step.n))
        views, matmul = self._matrices_and(step, out), self.matmul
        if views is None or step.m <= rows:
            return None
        one, two, view = views

        def add(a: Any, b: Any, out: Any, beta: Any) -> None:
            left, right, result = one(a), two(b), view(out)
            block = part = matmul(left[..., :rows, :], right)
            for begin in range(0, step.m, rows):
                if begin:
                    part = block[..., : step.m - begin, :]
                    matmul(left[..., begin : begin + rows, :], right, out=part)
                place = result[..., begin : begin + rows, :]
                if beta != 1:
                    place *= beta
                place += part

        return add

    def contiguous(self, array: Any) -> Any:
        """The array in C order."""
        return self.xp.ascontiguousarray(array)

    def arrange(self, how: Arrange) -> Run:
        perm, shape = how.perm, how.shape
        contiguous = self.contiguous if how.moves else None

        def run(a: Any) -> Any:
            if perm is not None:
                a = a.transpose(perm)
            if contiguous is not None:
                a = contiguous(a)
            return a if shape is None else a.reshape(shape)

        return run

    def cast(self, step: Cast) -> Run:
        dtype, order = self.xp.dtype(step.dtype), "C" if step.in_order else "K"
        return lambda a: a.astype(dtype, order=order)

    def diagonal(self, step: Diagonal) -> Run:
        return partial(self.einsum, diagonal_equation(step))

    def sum(self, step: Sum) -> Run:
        axes = step.axes
        return lambda a: a.sum(axis=axes, dtype=a.dtype)

    def view(self, step: View) -> Run:
        perm = step.how.perm or tuple(range(len(step.shape)))
        if step.how.moves:
            return lambda a: self.contiguous(a.transpose(perm))
        return lambda a: a.transpose(perm)

    def multiply(self, step: Multiply) -> Run:
        left, right, product = self.arrange(step.left), self.arrange(step.right), self.multiply_arrays
        if not step.summed:
            return lambda a, b: product(left(a), right(b))
        axes = tuple(range(-step.summed, 0))

        def run(a: Any, b: Any) -> Any:
            if a.dtype.char == "e":
                # As in a GEMM, products and sums are kept in float32 until the end.
                return product(left(a).astype("float32"), right(b)).sum(axis=axes).astype(a.dtype)
            full = product(left(a), right(b))
            return full.sum(axis=axes, dtype=full.dtype)

        return run

    def gemm(self, step: Gemm) -> Run:
        empty, matmul = self.xp.empty, self.matmul
        left, right = self._matrices(step.left, step.transpose_left), self._matrices(step.right, step.transpose_right)
        shape = step.shape
        if step.buffer is not None:
            view = self.arrange(step.buffer)

            def into(a: Any, b: Any) -> Any:
                # Of foreign byte order are operands only, as what other steps make.
                result = empty(shape, a.dtype if a.dtype.isnative else a.dtype.newbyteorder())
                matmul(left(a), right(b), out=view(result))
                return result

            return into
        if (*step.batch, step.m, step.n) != shape:
            return lambda a, b: matmul(left(a), right(b)).reshape(shape)
        if left is as_is and right is as_is:
            run: Run = matmul
            return run
        return lambda a, b: matmul(left(a), right(b))

    def _matrices(self, how: Arrange, transpose: bool) -> Run:
        """The arrangement, then the transposition."""
        if how.trivial and not transpose:
            return as_is
        arranged = self.arrange(how)
        return (lambda a: arranged(a).swapaxes(-1, -2)) if transpose else arranged


def sum_equation(step: Sum) -> str | None:
    """Return the equation of a sum; ``None`` if it has more axes than there are letters."""
    rank = len(step.shape) + len(step.axes)
    every = ascii_letters[:rank]
    kept = "".join(label for at, label in enumerate(every) if at not in step.axes)
    return f"{every}->{kept}" if rank <= len(ascii_letters) else None


def _split(arranged: Run, batch: tuple[int, ...]) -> Run:
    """Make several batch axes of one, if that isn't of one element."""

    def run(a: Any) -> Any:
        matrices = arranged(a)
        return matrices if len(matrices) == 1 else matrices.reshape(*batch, *matrices.shape[1:])

    return run


def _convert(array: Any, out: Any) -> None:
    with np.errstate(all="ignore"):
        out[...] = array


@cache
def _name_of(dtype: Any) -> str:
    """Return the name of a dtype, which takes NumPy longer than a look-up."""
    return str(dtype.name)


@cache
def _numerics_of(dtype: Any) -> Numerics:
    """Return how a result of this dtype is computed."""
    name = _name_of(dtype)
    if name == "float16":
        # There is no half GEMM in BLAS, and einsum itself accumulates in float32.
        return Numerics("float32", name)
    if name in _GEMM_KINDS and dtype.isnative:
        return Numerics(name, name)
    return Numerics(name, name, f"{name} has no GEMM in BLAS")
