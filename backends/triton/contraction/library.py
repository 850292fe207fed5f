"""The framework's own calls as one of the ways to run a fused step. Nothing here needs Triton."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, step_costs
from einops_fast.planning.steps import Fused

__all__ = ["Candidate", "LibraryCalls", "LibraryCandidate", "Run"]

Run = Callable[..., Any]


class Candidate:
    """One way to run a step.

    Attributes:
        name: unique among the ways to run one step, and stable, so that a measured choice can be kept.
        seconds: predicted time.
        in_order: whether the result lies in C order.
        kind: which kernel it is, whose predictions are comparable.
        compiles_late: as for :class:`LibraryCalls`.
        in_boxes: the hardware copies its operands, which have to be at aligned addresses.
    """

    name: str
    seconds: float
    in_order: bool
    kind: object = None
    in_boxes = False
    compiles_late = False

    def compile(self, aligned: bool = True) -> None:
        """Do beforehand what takes long the first time, for operands at aligned addresses or at any."""

    def run(self, memory: Memory, device: int) -> Run:
        """What takes the operands, on a device that is the current one, and returns the result."""
        raise NotImplementedError


class LibraryCalls(NamedTuple):
    """A way to run a step by the framework's own calls.

    Attributes:
        name: stable, and unique among the ways to run the step.
        run: what takes the operands.
        in_order: the result lies in the order that users of the framework are used to.
        compiles_late: a first call compiles kernels, so that it isn't for calls that mustn't wait.
    """

    name: str
    run: Run
    in_order: bool = True
    compiles_late: bool = False


class LibraryCandidate(Candidate):
    """The framework's own calls."""

    def __init__(self, calls: LibraryCalls, step: Fused, dtype: str, on: Ceilings) -> None:
        self.name, self._run, self.in_order, self.compiles_late = calls
        operands = [prod(loop.size for loop in step.loops if loop.strides[at]) for at in range(len(step.reads))]
        self.seconds = sum(cost.seconds for cost in step_costs(step.library, operands, dtype, on))
        # An activation, and rows with gaps between them, are passes of their own.
        passes = int(step.epilogue is not None and step.epilogue.activation != "none") + int(step.strides is not None)
        self.seconds += passes * (2 * prod(step.shape) * ITEM_SIZES[dtype] / on.bandwidth + on.call)

    def run(self, memory: Memory, device: int) -> Run:
        return self._run
