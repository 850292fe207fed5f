"""The way of long rows through a ring, among the others for a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contest import Launch, Way
from einops_fast.backends.triton.kernel_call import KernelCall

__all__ = ["RingWay"]


class RingWay(Way):
    """One kernel, see :mod:`~einops_fast.backends.triton.row_ring`.

    Args:
        call: the kernel.
        unused: how many arrays it takes after those of the call, which aren't there.
    """

    name = "ring"

    def __init__(self, call: KernelCall, unused: int) -> None:
        self._call, self._unused = call, unused

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        return [(self._call, (*arrays, *(None,) * self._unused))]
