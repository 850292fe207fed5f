"""The framework's own calls as one of the ways to run a fused step. Nothing here needs Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, step_costs
from einops_fast.planning.steps import Fused

Run = Callable[..., Any]


class Candidate:
    """One way to run a step, with a predicted time.

    A measured choice is kept by the name. Ways of one ``kind`` are by one kernel, whose predictions are comparable;
    where the hardware copies operands ``in_boxes``, these have to be at aligned addresses.
    """

    name: str
    seconds: float
    in_order: bool
    kind: object = None
    in_boxes = False

    def launches(self, aligned: bool = True) -> Sequence[Any]:
        """The kernels of ours that it queues, for operands at aligned addresses or at any."""
        return ()

    def compile(self, aligned: bool = True) -> None:
        """Compile and load these on the current device."""
        for each in self.launches(aligned):
            each.compile()

    def run(self, memory: Memory, device: int) -> Run:
        """Return what takes the operands, on a device that is the current one, and returns the result."""
        raise NotImplementedError


class LibraryCandidate(Candidate):
    """The framework's own calls."""

    in_order = True

    def __init__(self, name: str, calls: Run, step: Fused, dtype: str, on: Ceilings) -> None:
        self.name, self._run = name, calls
        operands = [prod(loop.size for loop in step.loops if loop.strides[at]) for at in range(len(step.reads))]
        self.seconds = sum(cost.seconds for cost in step_costs(step.library, operands, dtype, on))
        # An activation, and rows with gaps between them, are passes of their own.
        passes = int(step.epilogue is not None and step.epilogue.activation != "none") + int(step.strides is not None)
        self.seconds += passes * (2 * prod(step.shape) * ITEM_SIZES[dtype] / on.bandwidth + on.call)

    def run(self, memory: Memory, device: int) -> Run:
        return self._run
