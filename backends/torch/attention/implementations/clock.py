"""Timing implementations of attention on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation
from einops_fast.backends.clock import DeviceClock
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.types import is_traced
from einops_fast.planning.cost import Ceilings

_cudnn: Any = torch.backends.cudnn


class TorchClock(DeviceClock):
    """The clock of a CUDA device."""

    def __init__(self, device: str) -> None:
        self._name = device
        super().__init__(TorchMemory(), torch.device(device).index or 0)

    def may_measure(self) -> bool:
        return self._memory.may_measure() and not is_traced()

    def device_name(self) -> str:
        return str(torch.cuda.get_device_name(self._name))

    def versions(self) -> dict[str, str]:
        """Return the versions of what times depend on."""
        return {**self._memory.versions(), "cudnn": str(_cudnn.version())}

    def ceilings(self) -> Ceilings:
        return gpu_ceilings(self.device_name())

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave no trace in torch's state, random numbers included."""
        with torch.random.fork_rng(devices=[torch.device(self._name)]), torch.cuda.device(self._name):
            yield

    def run_of(self, way: Implementation, plan: Plan, arrays: Sequence[Any]) -> Callable[[], None]:
        """Return what makes such a call as its callers make it, with gradients, if any, which go nowhere."""
        # The same memory in tensors of our own, so that no gradient gets anywhere.
        given = [array.detach().requires_grad_(array.requires_grad) for array in arrays]
        leaves = [each for each in given if each.requires_grad]
        # Made once: an implementation that compiles would compile anew for each run.
        run = way.prepared(plan, given).run
        cotangents: list[torch.Tensor] = []

        def forward() -> None:
            with torch.no_grad():
                run(*given)

        def both() -> None:
            with torch.enable_grad():
                found = run(*given)
                result = found[0] if plan.spec.lse else found
                if not cotangents:
                    cotangents.append(torch.ones_like(result))
                torch.autograd.grad(result, leaves, cotangents, allow_unused=True)

        return both if plan.spec.gradients and leaves else forward
