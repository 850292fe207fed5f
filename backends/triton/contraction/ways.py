"""The ways to run a fused step by kernels of our own: one with a tiling, or copies of operands and then one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.boxes.kernel import box_kernel
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling, View
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling, chain_kernel
from einops_fast.backends.triton.contraction.library import Candidate, Run
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling, reduce_kernel
from einops_fast.backends.triton.contraction.loops.tilings import sum_of_parts
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling, contract_kernel
from einops_fast.backends.triton.contraction.threads.kernel import fma_kernel
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.contraction.tiling import Tiling
from einops_fast.backends.triton.device.generic import generic
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.backends.triton.launching.launch import DTYPES, accumulator, follow_early
from einops_fast.backends.triton.launching.rehearsing import Rehearsed
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.cost import ITEM_SIZES, is_complex
from einops_fast.planning.layout import VECTOR
from einops_fast.planning.steps import Fused

ANY_SIZE = "any size, "
"""What the name of a kernel begins with that is told sizes and strides when it runs."""

_KERNELS = {
    ReductionTiling: reduce_kernel,
    ChainTiling: chain_kernel,
    ContractionTiling: contract_kernel,
    FmaTiling: fma_kernel,
}

GENERIC = ContractionTiling, ReductionTiling
"""Tilings of the kernels that may be told sizes and strides when they run."""


def _places_in_call(tiling: BoxTiling | ContractionTiling, swapped: bool) -> tuple[int, ...]:
    """Return where left, right, a third array, the result and kept sums are in a call, or what is in their place."""
    epilogue = tiling.epilogue
    third = tiling.factored or (epilogue is not None and epilogue.bias is not None)
    out = 2 + third
    return int(swapped), 1 - swapped, 2, out, out + (epilogue is not None and epilogue.keeps)


class Kernel(DeclaredCall):
    """A kernel that takes addresses, for one tiling and for operands and a result of these dtypes.

    Where it is ``told`` sizes and strides when it runs, one is compiled for many. The second operand of a call is the
    left one if they are ``swapped``.
    """

    def __init__(self, tiling: Any, dtype: str, result: str, swapped: bool = False, told: bool = False) -> None:
        self.tiling = tiling
        operand, out = Array(dtype), Array(result)
        pattern, numbers = tiling, None
        if told:
            in_chunks = dtype == "float32" and isinstance(tiling, ContractionTiling) and tiling.precision == "ieee"
            pattern, numbers = generic(tiling, VECTOR // ITEM_SIZES[dtype], in_chunks)
        constants: dict[str, Any] = {"tiling": pattern, "acc_type": DTYPES[accumulator(dtype)]}
        if isinstance(tiling, ReductionTiling):
            constants["parts"] = 2 if is_complex(dtype) else 1
        else:
            constants["upcast"] = interpreted() and dtype == "bfloat16"
        arrays: tuple[Any, ...] = operand, operand, operand, out, out
        order: tuple[Any, ...]
        if isinstance(tiling, ContractionTiling):
            order = _places_in_call(tiling, swapped)
        else:
            arrays, order = ((operand,) * tiling.operands, out), (tuple(range(tiling.operands)), tiling.operands)
        registers = tiling.most_registers if isinstance(tiling, FmaTiling) else None
        options = _options(tiling, registers, num_warps=tiling.warps, num_stages=tiling.stages)
        tail = (numbers,) if type(tiling) in GENERIC else ()
        super().__init__(_KERNELS[type(tiling)], tiling.grid[:2], arrays, tail, constants, options, order=order)


class BoxKernel(DeclaredCall):
    """The kernel that has boxes copied by the hardware, for one tiling and a device of so many multiprocessors.

    Where the steps are cut into parts, the result is for the sums of all of them.
    """

    def __init__(self, tiling: BoxTiling, dtype: str, units: int, swapped: bool = False) -> None:
        self.tiling = tiling
        # Where threads write the result, the hardware gets any array in its place, and writes nothing.
        piece, rest = (tiling.left, tiling.left) if tiling.by_threads else (tiling.out_piece, tiling.out_rest)

        def seen(view: View) -> Array:
            sizes, strides = tuple([dim.size for dim in view.dims]), tuple([dim.stride for dim in view.dims])
            return Array(dtype, sizes, strides, tuple(view.block))

        views = tiling.left, tiling.right, piece, piece, tiling.right_rest, rest, rest
        arrays = (*map(seen, views), Array(dtype), Array(dtype if tiling.split == 1 else "float32"))
        left, right, third, out, kept = _places_in_call(tiling, swapped)
        result, before = (left, left) if tiling.by_threads else (out, kept)
        order = left, right, result, before, right, result, before, third, out
        options = _options(tiling, tiling.registers, num_warps=tiling.warps)
        programs = min(tiling.total, units)
        super().__init__(box_kernel, (programs, 1), arrays, (), {"tiling": tiling}, options, order=order)


def _options(tiling: Tiling, registers: int | None, **options: Any) -> dict[str, Any]:
    """Return what the compiler is told of a tiling."""
    if registers is not None:
        options["maxnreg"] = registers
    if tiling.follows:
        options["launch_pdl"] = True
    return options


class Order(NamedTuple):
    """A step, and one of the orders of its result; the kernel takes the operands the other way round if ``swapped``."""

    number: int
    step: Fused
    strides: tuple[int, ...]
    swapped: bool
    dtype: str


class KernelCandidate(Candidate):
    """A kernel of our own with one tiling; ``generic`` if it is told sizes and strides when it runs.

    A bias follows the operands; an epilogue that keeps the sums has two results.
    """

    def __init__(self, order: Order, seconds: float, tiling: Any, generic: bool = False) -> None:
        name = f"{ANY_SIZE}{tiling.name}" if generic else tiling.name
        self.name = f"{name}, order {order.number}" if order.number else name
        self._order, self._generic = order, generic
        self.seconds, self.in_order = seconds, order.number == 0
        self.tiling, self.kind = tiling, type(tiling)
        _, self.step, self.strides, self.swapped, self.dtype = order
        if self.step.conjugated:  # no other kernel multiplies complex numbers
            self.tiling = replace(tiling, conjugated=self.step.conjugated)
        self.leads, self.follows = tiling.split > 1 and follow_early(), False

    @cached_property
    def _kernel(self) -> Kernel | BoxKernel:
        """The kernel, which takes the operands as the step has them, then what it writes."""
        result = self.dtype if self.tiling.split == 1 else accumulator(self.dtype)
        return Kernel(self._in_turn(), self.dtype, result, self.swapped, self._generic)

    @cached_property
    def _addition(self) -> Kernel:
        """What adds up the parts of a sum that was cut."""
        then = replace(sum_of_parts(self.tiling.split, self.tiling.reach), follows=follow_early())
        return Kernel(then, accumulator(self.dtype), self.dtype, told=self._generic)

    def launches(self, aligned: bool = True) -> list[Rehearsed]:
        kernels = [Rehearsed(self._kernel, self._kernel.declared(aligned))]
        if self.tiling.split > 1:
            kernels.append(Rehearsed(self._addition, self._addition.declared()))
        return kernels

    @property
    def compiled_as(self) -> Hashable:
        """What its kernels are compiled for: those of two problems that are alike here are the same ones."""
        kernels = [each.call for each in self.launches()]
        return self.dtype, *[(each.constants["tiling"], *sorted(each.options.items())) for each in kernels]

    def _in_turn(self) -> Any:
        """The tiling, which says to the kernel whether it leads and follows."""
        if not self.leads and not self.follows:
            return self.tiling
        return replace(self.tiling, leads=self.leads, follows=self.follows)

    def _elsewhere(self) -> KernelCandidate:
        """Return the kernel for arrays at addresses that this one can't take."""
        raise NotImplementedError

    def run(self, memory: Memory, device: int) -> Run:
        launch, empty, shape, strides = self._kernel, memory.maker(self.dtype), self.step.shape, self.strides

        @cache
        def elsewhere() -> Run:
            return self._elsewhere().run(memory, device)

        if self.step.placed:

            def run_placed(*arrays: Any) -> Any:
                *operands, out = arrays
                written = out
                if self.tiling.split > 1:
                    elements = self.tiling.split * self.tiling.reach
                    written = memory.workspace(out, elements, accumulator(self.dtype))
                if not launch(memory, device, *operands, written):
                    return elsewhere()(*arrays)
                if written is not out:
                    self._addition(memory, device, written, out)
                return out

            return run_placed
        if self.tiling.split > 1:
            add, wide, elements = self._addition, accumulator(self.dtype), self.tiling.split * self.tiling.reach

            def run_in_parts(*operands: Any) -> Any:
                workspace = memory.workspace(operands[0], elements, wide)
                if not launch(memory, device, *operands, workspace):
                    return elsewhere()(*operands)
                out = empty(operands[0], shape, strides)
                add(memory, device, workspace, out)
                return out

            return run_in_parts
        keeps = self.step.epilogue is not None and self.step.epilogue.keeps

        def run(*operands: Any) -> Any:
            out = empty(operands[0], shape, strides)
            results = (out, empty(operands[0], shape, strides)) if keeps else (out,)
            if not launch(memory, device, *operands, *results):
                return elsewhere()(*operands)
            return results if keeps else out

        return run


class BoxCandidate(KernelCandidate):
    """The kernel that has boxes copied by the hardware; ``other`` finds one for addresses that this can't do."""

    in_boxes = True

    def __init__(
        self, order: Order, seconds: float, tiling: BoxTiling, other: Callable[[], KernelCandidate], units: int
    ) -> None:
        super().__init__(order, seconds, tiling)
        self._other, self._units = other, units

    @cached_property
    def _kernel(self) -> BoxKernel:
        return BoxKernel(self._in_turn(), self.dtype, self._units, self.swapped)

    def _elsewhere(self) -> KernelCandidate:
        return self._other()


class CopyCandidate(Candidate):
    """Copies in an order that suits the kernel, then the kernel; ``other`` finds a way where no memory is left."""

    def __init__(self, copies: dict[int, Candidate], then: Candidate, other: Callable[[], Candidate]) -> None:
        self.name, self.in_order = self.described(copies) + then.name, then.in_order
        self.seconds = sum(copy.seconds for copy in copies.values()) + then.seconds
        self._copies, self._then, self._other, self.kind = copies, then, other, then.kind
        last = copies[max(copies)]
        if isinstance(last, KernelCandidate) and isinstance(then, KernelCandidate) and follow_early():
            # Chains wait for all that is before them.
            last.leads = then.follows = then.kind is not ChainTiling

    @staticmethod
    def described(copied: Iterable[int]) -> str:
        """What the name begins with."""
        return f"copy of {' and '.join(f'operand {at}' for at in copied)}, "

    def launches(self, aligned: bool = True) -> list[Any]:
        copies = [each for way in self._copies.values() for each in way.launches(aligned)]
        return [*copies, *self._then.launches()]

    def run(self, memory: Memory, device: int) -> Run:
        copies = [(at, copy.run(memory, device)) for at, copy in self._copies.items()]
        then, exhausted, other = self._then.run(memory, device), memory.exhausted, self._other
        elsewhere: list[Run] = []

        def run(*given: Any) -> Any:
            if not elsewhere:
                operands = [*given]
                try:
                    for at, copy in copies:
                        operands[at] = copy(operands[at])
                    return then(*operands)
                except exhausted:
                    # From now on: to look for memory that isn't there takes long.
                    elsewhere.append(other().run(memory, device))
            return elsewhere[0](*given)

        return run
