"""The ways to run a fused step by kernels of our own: one with a tiling, or copies of operands and then one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.launch import BoxKernel, Kernel
from einops_fast.backends.triton.contraction.library import Candidate, Run
from einops_fast.backends.triton.contraction.loops.tilings import sum_of_parts
from einops_fast.backends.triton.launching.launch import ALIGNMENT, accumulator, follow_early
from einops_fast.backends.triton.launching.rehearsing import Rehearsed
from einops_fast.planning.steps import Fused

__all__ = ["ANY_SIZE", "ORDER", "BoxCandidate", "CopyCandidate", "KernelCandidate", "Order"]

ANY_SIZE = "any size, "
"""What the name of a kernel begins with that is told sizes and strides when it runs."""

ORDER = ", order "
"""What is between the name of a kernel and the number of the order that its result has, if that isn't the first."""


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
        self.name = f"{name}{ORDER}{order.number}" if order.number else name
        self._order, self._generic = order, generic
        self.seconds, self.in_order = seconds, order.number == 0
        self.tiling, self.kind = tiling, type(tiling)
        _, self.step, self.strides, self.swapped, self.dtype = order
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

    def run(self, memory: Memory, device: int) -> Run:
        launch, empty, shape, strides = self._kernel, memory.maker(self.dtype), self.step.shape, self.strides
        if self.tiling.split > 1:
            return self._run_in_parts(memory, device)
        if self.step.epilogue is not None and self.step.epilogue.keeps:

            def run_keeping(*operands: Any) -> Any:
                out, before = empty(operands[0], shape, strides), empty(operands[0], shape, strides)
                launch(memory, device, *operands, out, before)
                return out, before

            return run_keeping

        def run(*operands: Any) -> Any:
            out = empty(operands[0], shape, strides)
            launch(memory, device, *operands, out)
            return out

        return run

    def _run_in_parts(self, memory: Memory, device: int) -> Run:
        """Return what computes partial results first, then their sum, always in one order."""
        launch, add, empty = self._kernel, self._addition, memory.maker(self.dtype)
        shape, strides, wide = self.step.shape, self.strides, accumulator(self.dtype)
        elements = self.tiling.split * self.tiling.reach

        def run(*operands: Any) -> Any:
            workspace = memory.workspace(operands[0], elements, wide)
            launch(memory, device, *operands, workspace)
            out = empty(operands[0], shape, strides)
            add(memory, device, workspace, out)
            return out

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

    def run(self, memory: Memory, device: int) -> Run:
        whole, pointer, other = super().run(memory, device), memory.pointer, self._other
        elsewhere: list[Run] = []

        def run(a: Any, b: Any, third: Any = None) -> Any:
            if (pointer(a) | pointer(b) | (pointer(third) if third is not None else 0)) % ALIGNMENT:
                if not elsewhere:
                    elsewhere.append(other().run(memory, device))
                return elsewhere[0](a, b) if third is None else elsewhere[0](a, b, third)
            return whole(a, b) if third is None else whole(a, b, third)

        return run


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
