"""The ways to run a fused step: our kernels with tiles worth trying, and the library's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from einops_fast.backends.triton import chain_tilings, contraction_tilings, reduction_tilings
from einops_fast.backends.triton.chain_tilings import ChainProblem
from einops_fast.backends.triton.contraction_tilings import Contraction
from einops_fast.backends.triton.copies import with_copies
from einops_fast.backends.triton.fma_tilings import fma_tilings
from einops_fast.backends.triton.launch import ALIGNMENT, Kernel, accumulator, follow_early, interpreted
from einops_fast.backends.triton.memory import Memory
from einops_fast.backends.triton.problems import as_reduction, layouts, problem, with_more_rows
from einops_fast.backends.triton.reduction_tilings import Reduction
from einops_fast.backends.triton.tma_launch import BoxKernel, copies_boxes
from einops_fast.backends.triton.tma_tiles import BoxTiling
from einops_fast.backends.triton.tma_tilings import box_tilings
from einops_fast.cost import ITEM_SIZES, Ceilings, is_integer, step_costs
from einops_fast.steps import Fused

__all__ = ["Candidate", "LibraryCalls", "LibraryCandidate", "kernel_candidates"]

Run = Callable[..., Any]

_BOXES_WORTH_TRYING = 4
"""Tilings that are tried of the kernel that has boxes copied by the hardware."""

_COPIES_WORTH_TRYING = 3
"""Kernels that are tried on a copied operand."""


_THIN = 8
"""Products for each element of operands and result up to which products of matrices are tried as loops, too."""


class Candidate:
    """One way to run a step.

    Attributes:
        name: unique among the ways to run one step, and stable, so that a measured choice can be kept.
        seconds: predicted time.
        in_order: whether the result lies in C order.
        kind: which kernel it is, whose predictions are comparable.
    """

    name: str
    seconds: float
    in_order: bool
    kind: object = None

    def compile(self) -> None:
        """Do beforehand what takes long the first time."""

    def run(self, memory: Memory, device: int) -> Run:
        """What takes the operands, on a device that is the current one, and returns the result."""
        raise NotImplementedError


class LibraryCalls(NamedTuple):
    """A way to run a step by the framework's own calls.

    Attributes:
        name: stable, and unique among the ways to run the step.
        run: what takes the operands.
        in_order: the result lies in the order that users of the framework are used to.
    """

    name: str
    run: Run
    in_order: bool = True


class LibraryCandidate(Candidate):
    """The framework's own calls."""

    def __init__(self, calls: LibraryCalls, step: Fused, dtype: str, on: Ceilings) -> None:
        self.name, self._run, self.in_order = calls
        operands = [prod(loop.size for loop in step.loops if loop.strides[at]) for at in range(len(step.reads))]
        self.seconds = sum(cost.seconds for cost in step_costs(step.library, operands, dtype, on))
        if step.epilogue is not None and step.epilogue.activation != "none":
            self.seconds += 2 * prod(step.shape) * ITEM_SIZES[dtype] / on.bandwidth + on.call

    def run(self, memory: Memory, device: int) -> Run:
        return self._run


class KernelCandidate(Candidate):
    """A kernel of our own with one tiling; ``swapped`` if it takes its two operands the other way round.

    A bias follows the operands; an epilogue that keeps what it is done to has two results.
    """

    def __init__(
        self,
        order: int,
        seconds: float,
        tiling: Any,
        step: Fused,
        strides: tuple[int, ...],
        swapped: bool,
        dtype: str,
    ) -> None:
        self.name = f"{tiling.name}, order {order}" if order else tiling.name
        self.seconds, self.in_order = seconds, order == 0
        if tiling.split > 1 and follow_early():
            tiling = replace(tiling, leads=True)
        self.tiling: Any = tiling
        self.kind = type(tiling)
        self.shape, self.strides, self.swapped, self.dtype = step.shape, strides, swapped, dtype
        self.keeps = step.epilogue is not None and step.epilogue.keeps

    @cached_property
    def _kernel(self) -> Kernel:
        return Kernel(self.tiling, self.dtype, self.dtype if self.tiling.split == 1 else accumulator(self.dtype))

    def compile(self) -> None:
        self._kernel.compile()

    def run(self, memory: Memory, device: int) -> Run:
        launch, empty, shape, strides = self._kernel.launch, memory.maker(self.dtype), self.shape, self.strides
        swapped = self.swapped
        if self.keeps:

            def run_keeping(a: Any, b: Any, *bias: Any) -> Any:
                out, before = empty(a, shape, strides), empty(a, shape, strides)
                launch(memory, device, (b, a, *bias) if swapped else (a, b, *bias), out, before)
                return out, before

            return run_keeping
        if self.tiling.split == 1:

            def run(*operands: Any) -> Any:
                out = empty(operands[0], shape, strides)
                launch(memory, device, (*operands[1::-1], *operands[2:]) if swapped else operands, out)
                return out

            return run

        def launch_parts(operands: Sequence[Any], workspace: Any) -> None:
            launch(memory, device, operands[::-1] if swapped else operands, workspace)

        return _in_parts(launch_parts, self.tiling.split, self, memory, device)


def _in_parts(
    launch_parts: Callable[[Sequence[Any], Any], None],
    parts: int,
    of: KernelCandidate,
    memory: Memory,
    device: int,
) -> Run:
    """Partial results first, by what takes the operands and an array for them; then their sum, always in one order."""
    shape, strides, elements, wide = of.shape, of.strides, prod(of.shape), accumulator(of.dtype)
    then = replace(reduction_tilings.sum_of_parts(parts, elements), follows=follow_early())
    addition, empty = Kernel(then, wide, of.dtype), memory.maker(of.dtype)

    def run_in_parts(*operands: Any) -> Any:
        workspace = memory.workspace(operands[0], parts * elements, wide)
        launch_parts(operands, workspace)
        out = empty(operands[0], shape, strides)
        addition.launch(memory, device, (workspace,), out)
        return out

    return run_in_parts


class BoxCandidate(Candidate):
    """The kernel that has boxes copied by the hardware; another way where an address isn't one that this can do.

    Args:
        order: which of the orders that the result may have.
        seconds: predicted time.
        tiling: what the kernel is specialised for.
        other: a kernel for the same order of the result.
        units: multiprocessors of the device.
    """

    def __init__(self, order: int, seconds: float, tiling: BoxTiling, other: KernelCandidate, units: int) -> None:
        self.name = f"{tiling.name}, order {order}" if order else tiling.name
        self.seconds, self.in_order = seconds, order == 0
        if tiling.split > 1 and follow_early():
            tiling = replace(tiling, leads=True)
        self.tiling, self.kind, self._other, self._units = tiling, BoxTiling, other, units

    @cached_property
    def _kernel(self) -> BoxKernel:
        return BoxKernel(self.tiling, self._other.dtype, self._units)

    def compile(self) -> None:
        self._kernel.compile()

    def run(self, memory: Memory, device: int) -> Run:
        launch, pointer, empty = self._kernel.launch, memory.pointer, memory.maker(self._other.dtype)
        other, shape, strides, swapped = self._other, self._other.shape, self._other.strides, self._other.swapped
        keeps = other.keeps
        elsewhere: list[Run] = []
        if self.tiling.split > 1:

            def launch_parts(operands: Sequence[Any], workspace: Any) -> None:
                launch(memory, device, operands[::-1] if swapped else operands, None, workspace, workspace)

            whole = _in_parts(launch_parts, self.tiling.split, other, memory, device)
        else:

            def whole(a: Any, b: Any, bias: Any = None) -> Any:
                out = empty(a, shape, strides)
                before = empty(a, shape, strides) if keeps else out
                launch(memory, device, (b, a) if swapped else (a, b), bias, out, before)
                return (out, before) if keeps else out

        def run(a: Any, b: Any, bias: Any = None) -> Any:
            if (pointer(a) | pointer(b) | (pointer(bias) if bias is not None else 0)) % ALIGNMENT:
                if not elsewhere:
                    elsewhere.append(other.run(memory, device))
                return elsewhere[0](a, b) if bias is None else elsewhere[0](a, b, bias)
            return whole(a, b) if bias is None else whole(a, b, bias)

        return run


class CopyCandidate(Candidate):
    """Copies of operands in an order that suits the kernel, then the kernel."""

    def __init__(self, copies: dict[int, Candidate], then: Candidate) -> None:
        which = " and ".join(f"operand {at}" for at in copies)
        self.name, self.in_order = f"copy of {which}, {then.name}", then.in_order
        self.seconds = sum(copy.seconds for copy in copies.values()) + then.seconds
        self._copies, self._then, self.kind = copies, then, then.kind
        last = copies[max(copies)]
        if isinstance(last, KernelCandidate) and isinstance(then, KernelCandidate | BoxCandidate) and follow_early():
            last.tiling, then.tiling = replace(last.tiling, leads=True), replace(then.tiling, follows=True)

    def compile(self) -> None:
        for way in (*self._copies.values(), self._then):
            way.compile()

    def run(self, memory: Memory, device: int) -> Run:
        copies = {at: copy.run(memory, device) for at, copy in self._copies.items()}
        then, first, second = self._then.run(memory, device), copies.get(0), copies.get(1)

        def run(a: Any, b: Any, *bias: Any) -> Any:
            return then(first(a) if first else a, second(b) if second else b, *bias)

        return run


def kernel_candidates(step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> list[Candidate]:
    """Kernels for a step, the one predicted to be fastest first.

    Args:
        step: the step.
        dtype: of its operands and its result.
        on: ceilings of the device.
        precision: of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
    """
    orders = layouts(step)
    found = [*_direct(step, orders, dtype, on, precision), *_as_loops(step, orders, dtype, on)]
    for copies, then in (
        [] if is_integer(dtype) else with_copies(step, ITEM_SIZES[dtype], _on_tensor_cores(dtype, precision))
    ):
        first = {at: _direct(copy.step, [copy.strides], dtype, on, precision)[0] for at, copy in copies.items()}
        direct = _direct(then, layouts(then), dtype, on, precision)[:_COPIES_WORTH_TRYING]
        found += [CopyCandidate(first, each) for each in direct]
    return sorted(found, key=lambda candidate: candidate.seconds)


def _on_tensor_cores(dtype: str, precision: str) -> bool:
    return ITEM_SIZES[dtype] == 2 or (dtype == "float32" and precision != "ieee")


def _as_loops(step: Fused, orders: Sequence[tuple[int, ...]], dtype: str, on: Ceilings) -> list[Candidate]:
    """Kernels for products of matrices that have few products for each element: tiles may take longer than loops."""
    loops = problem(step, orders[0])
    if not isinstance(loops, Contraction) or loops.epilogue is not None:
        return []
    _, m, n, k = loops.extents
    if m * n * k > _THIN * (m * k + k * n + m * n):
        return []
    return [
        KernelCandidate(order, seconds, tiling, step, strides, False, dtype)
        for order, strides in enumerate(orders)
        for seconds, tiling in reduction_tilings.tilings(as_reduction(step, strides), ITEM_SIZES[dtype], on)
    ]


def _direct(
    step: Fused, orders: Sequence[tuple[int, ...]], dtype: str, on: Ceilings, precision: str
) -> list[Candidate]:
    """Kernels that read the operands as they lie, for a result with one of these strides."""
    found: list[Candidate] = []
    step, swapped = with_more_rows(step)
    for order, strides in enumerate(orders):
        loops = problem(step, strides)
        tilings: Sequence[tuple[float, Any]]
        if isinstance(loops, Reduction):
            tilings = reduction_tilings.tilings(loops, ITEM_SIZES[dtype], on)
        elif isinstance(loops, ChainProblem):
            tilings = chain_tilings.tilings(loops, dtype, on, precision)
        else:
            tilings = contraction_tilings.tilings(loops, dtype, on, precision)
        kernels = [
            KernelCandidate(order, seconds, tiling, step, strides, swapped, dtype) for seconds, tiling in tilings
        ]
        found += kernels
        if isinstance(loops, Contraction) and dtype == "float32" and precision == "ieee" and not interpreted():
            found += [
                KernelCandidate(order, seconds, tiling, step, strides, swapped, dtype)
                for seconds, tiling in fma_tilings(loops, on)
            ]
        apart = isinstance(loops, Contraction) and loops.along_batch
        if isinstance(loops, Contraction) and not is_integer(dtype) and copies_boxes():
            boxes = box_tilings(loops, ITEM_SIZES[dtype], on)[:_BOXES_WORTH_TRYING]
            found += [BoxCandidate(order, seconds, tiling, kernels[0], on.units) for seconds, tiling in boxes]
            apart = apart or any(tiling.loose for _, tiling in boxes)
        if order == 0 and not apart and not any(tiling.scattered for _, tiling in tilings):
            break  # the kernels store C order as fast as any other
    return sorted(found, key=lambda candidate: candidate.seconds)
