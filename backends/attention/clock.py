"""Timing implementations of attention on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import torch

from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch_memory import TorchMemory
from einops_fast.cost import Ceilings

_cudnn: Any = torch.backends.cudnn

__all__ = ["TorchClock"]


class TorchClock:
    """Of CUDA devices."""

    def __init__(self) -> None:
        self._memory = TorchMemory()

    def may_measure(self) -> bool:
        return self._memory.may_measure()

    def device_name(self, device: str) -> str:
        return str(torch.cuda.get_device_name(device))

    def versions(self) -> dict[str, str]:
        found = {**self._memory.versions(), "cudnn": str(_cudnn.version())}
        with suppress(PackageNotFoundError):
            found["flash-attn-4"] = version("flash-attn-4")
        return found

    def ceilings(self, device: str) -> Ceilings:
        return gpu_ceilings(self.device_name(device))

    @contextmanager
    def aside(self, device: str) -> Iterator[None]:
        with torch.random.fork_rng(devices=[torch.device(device)]), torch.cuda.device(device):
            yield

    def seconds(
        self, way: Implementation, spec: AttentionSpec, inputs: AttentionInputs, device: str, repeat: int
    ) -> list[float]:
        return self._memory.seconds(_run(way, spec, inputs, device), torch.device(device).index or 0, repeat)

    def wall_seconds(
        self, way: Implementation, spec: AttentionSpec, inputs: AttentionInputs, device: str, calls: int
    ) -> float:
        run = _run(way, spec, inputs, device)
        run()  # after those of another one, caches and pools of memory aren't what they are in a loop
        torch.cuda.synchronize(device)
        began = perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize(device)
        return (perf_counter() - began) / calls


def _run(way: Implementation, spec: AttentionSpec, inputs: AttentionInputs, device: str) -> Callable[[], None]:
    """A call without arguments, with gradients if the spec has them."""
    apart, leaves = _apart(inputs)
    if spec.dropout_p and way.seeded:
        apart.seed = torch.zeros(1, dtype=torch.int64, device=device)
    # Made once: an implementation that compiles would compile anew for each call.
    call = way.compiled(spec)

    def forward() -> None:
        with torch.no_grad():
            call(apart)

    def both() -> None:
        with torch.enable_grad():
            result, _ = call(apart)
            torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)

    return both if spec.gradients and leaves else forward


def _apart(inputs: AttentionInputs) -> tuple[AttentionInputs, list[torch.Tensor]]:
    """The same memory in tensors of our own, so that no gradient gets anywhere; and those that have gradients."""
    leaves = []
    own: dict[str, Any] = {}
    for each in fields(inputs):
        tensor = getattr(inputs, each.name)
        if isinstance(tensor, torch.Tensor):
            wanted = tensor.requires_grad
            tensor = tensor.detach()
            if wanted:
                leaves.append(tensor.requires_grad_())
        own[each.name] = tensor
    return AttentionInputs(**own), leaves
