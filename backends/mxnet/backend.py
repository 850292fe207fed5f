"""MXNet's NumPy arrays: oneDNN through ``batch_dot``, the one fast matrix product that MXNet has.

Arrays have no strides, so whatever isn't in the order that a step wants is transposed first. No step writes
to an array that another made: it may be wanted for a gradient, or belong to a graph that is being traced.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from einops_fast.backends.base import Backend, Likeness, Run, as_is, diagonal_equation, one_device
from einops_fast.backends.host import cpu_threads, free_memory
from einops_fast.backends.mxnet.importing import import_mxnet
from einops_fast.backends.mxnet.ops import is_deferred, multiply, native_einsum, nothing, reshape, sum_over
from einops_fast.backends.mxnet.traced import contract_any_size, merge_axes, split_axes
from einops_fast.errors import OperandError
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.plan import Plan
from einops_fast.planning.steps import Arrange, Cast, Contraction, Diagonal, Gemm, Multiply, Sum, View
from einops_fast.planning.target import Numerics, Operand, Target

mxnet = import_mxnet()
mnp, npx = mxnet.np, mxnet.npx


class MxnetBackend(Backend):
    """``mxnet.numpy``; not the legacy ``mxnet.ndarray``."""

    name = "mxnet"
    module = "mxnet"
    fortran = False
    any_size = staticmethod(is_deferred)
    split = staticmethod(split_axes)
    merge = staticmethod(merge_axes)

    def owns(self, array_type: type) -> bool:
        return array_type is mnp.ndarray

    def signature(self, operands: Sequence[Any]) -> Hashable:
        return (*[(a.shape, a.dtype, a.device, type(a)) for a in operands], is_deferred())

    def likeness(self, operands: Sequence[Any], kernels: bool = False) -> Likeness | None:
        # Each look at an array is a call of MXNet's library, which takes as long as a look-up of all operands.
        if _gpus() or any(type(each) is not mnp.ndarray for each in operands):
            return None
        own, deferred = [(each.shape, each.dtype) for each in operands], is_deferred()
        return lambda others: (
            all(type(each) is mnp.ndarray for each in others)
            and [(each.shape, each.dtype) for each in others] == own
            and is_deferred() is deferred
        )

    def inspect(self, array: Any) -> Operand:
        return Operand(array.shape, contiguous_strides(array.shape), np.dtype(array.dtype).name)

    def target(self, operands: Sequence[Any]) -> Target:
        device = one_device([operand.device for operand in operands])
        return _target(str(device), is_deferred())

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        dtypes = [np.dtype(operand.dtype) for operand in operands]
        result = dtypes[0] if dtype is None else np.dtype(dtype)
        for at, own in enumerate(dtypes):
            if dtype is None and own != result:
                raise OperandError(
                    f"operands 0 and {at} have two dtypes, {result} and {own}, which MXNet doesn't mix; "
                    "convert one of them, or say dtype="
                )
            if not _can_cast(own, result, casting):
                raise OperandError(
                    f"operand {at} has dtype {own}, which casting={casting!r} doesn't convert to {result}"
                )
        name = result.name
        if name in ("float32", "float64"):
            return Numerics(name, name)
        if name == "float16":
            # The CPU has no half GEMM, and einsum itself accumulates in float32.
            on_cpu = operands[0].device.device_type == "cpu"
            return Numerics("float32" if on_cpu else name, name)
        # Integers can at least be multiplied, summed and transposed; bool can't.
        return Numerics(name, name, f"{name} has no GEMM in MXNet", whole=result.kind not in "iu")

    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Any:
        return native_einsum(equation, *operands, **options)

    def check_out(self, result: Any, out: Any, casting: str) -> None:
        super().check_out(result, out, casting)
        wanted, own = np.dtype(out.dtype), np.dtype(result.dtype)
        if not _can_cast(own, wanted, casting):
            raise OperandError(f"casting={casting!r} doesn't convert {own} to out's {wanted}")

    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        if order == "F" and result.ndim > 1:
            raise OperandError("order='F' can't be had: MXNet's arrays are in C order")
        if out is None:
            return result
        self.check_out(result, out, casting)
        out[()] = result
        return out

    def example(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Any:
        if strides is not None:
            raise OperandError("MXNet's arrays have no strides to choose")
        return mnp.empty(shape, dtype)

    def may_keep(self, arrays: Sequence[Any]) -> bool:
        return self.versions(arrays) == (False, False)

    def versions(self, arrays: Sequence[Any]) -> Hashable:
        # Any array may have gradients, which are asked for where autograd records.
        return is_deferred(), mxnet.autograd.is_recording()

    def sums_of(self, part: Any, shape: tuple[int, ...]) -> Any:
        return mnp.zeros(shape, part.dtype, device=part.device)

    def in_pieces(self, run: Run, operands: Sequence[Any]) -> Run:
        if mxnet.autograd.is_recording():
            raise OperandError(
                "memory_limit isn't for calls that MXNet records gradients of: pieces are written to a result"
            )
        return run

    def room(self, operands: Sequence[Any]) -> int | None:
        if operands[0].device.device_type != "cpu":
            return None
        return free_memory() // max(np.dtype(operand.dtype).itemsize for operand in operands)

    def enclosed(self, plan: Plan, run: Run) -> Run:
        result = plan.numerics.result
        if plan.target.any_size or all(plan.sizes.values()) or np.dtype(result).kind != "f":
            return run
        shape = [plan.sizes[label] for label in plan.subscripts.output]
        return partial(nothing, shape, result)

    def mark(self, array: Any) -> Any:
        # Calls only queue work; a graph that is being recorded has none.
        if not is_deferred():
            npx.waitall()
        return super().mark(array)

    def arrange(self, how: Arrange) -> Run:
        perm, shape = how.perm, how.shape
        if shape is None:
            return as_is if perm is None else partial(mnp.transpose, axes=perm)
        if perm is None:
            return partial(reshape, shape=shape)
        return lambda a: reshape(mnp.transpose(a, perm), shape)

    def cast(self, step: Cast) -> Run:
        dtype = step.dtype
        return lambda a: a.astype(dtype)

    def diagonal(self, step: Diagonal) -> Run:
        return partial(native_einsum, diagonal_equation(step))

    def sum(self, step: Sum) -> Run:
        return partial(sum_over, axes=step.axes)

    def view(self, step: View) -> Run:
        # The answer is never the operand itself: its memory would be shared.
        return mnp.copy if step.how.perm is None else self.arrange(step.how)

    def multiply(self, step: Multiply) -> Run:
        left, right, summed = self.arrange(step.left), self.arrange(step.right), step.summed
        return lambda a, b: multiply(left(a), right(b), summed)

    def gemm(self, step: Gemm) -> Run:
        m, n, k = step.m, step.n, step.k
        left = self._matrices(step.left, step.batch, (k, m) if step.transpose_left else (m, k))
        right = self._matrices(step.right, step.batch, (n, k) if step.transpose_right else (k, n))
        product = partial(npx.batch_dot, transpose_a=step.transpose_left, transpose_b=step.transpose_right)
        shape = step.shape
        if step.batch and shape == (*step.batch, m, n):
            return lambda a, b: product(left(a), right(b))
        return lambda a, b: reshape(product(left(a), right(b)), shape)

    def contraction(self, step: Contraction) -> Run:
        return partial(contract_any_size, step.equation)

    def _matrices(self, how: Arrange, batch: tuple[int, ...], matrix: tuple[int, int]) -> Run:
        # batch_dot wants a batch axis.
        return self.arrange(how if batch else Arrange(how.perm, (1, *matrix)))


# NumPy declares ``casting`` as one of five literals.
_can_cast: Any = np.can_cast


@lru_cache(maxsize=1)
def _gpus() -> int:
    """How many there are; without any, arrays needn't be asked where they are."""
    return int(mxnet.device.num_gpus())


@lru_cache(maxsize=64)
def _target(device: str, deferred: bool) -> Target:
    # Measured on one core of a Zen 4. For a GPU only how the rates compare with one another matters.
    scale = 1 if device.startswith("cpu") else 100
    rate = cpu_threads() * scale
    ceilings = Ceilings(
        bandwidth=1e10 * scale,
        runs=1.1e10 * scale,
        gather=5e9 * scale,
        flops={"float32": 9e10 * rate, "float64": 1.5e10 * rate},
        call=2.5e-5,
        again=2.5e-5,
        item=8e-8 / scale,
        broadcast=4e9 * scale,
    )
    return Target("mxnet", device, ceilings, strided=False, broadcasts=False, writes=False, any_size=deferred)
