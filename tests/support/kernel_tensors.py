"""What kernels are tested with: where they run, random tensors, and memory that holds what no right result does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fused_steps import ON

from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.torch.ceilings import KERNEL_DTYPES
from einops_fast.backends.torch.memory import TorchMemory, new_here
from einops_fast.backends.triton.contraction import choice
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.dtypes import dtype_name
from einops_fast.planning.cost import is_integer
from einops_fast.runtime.plan_cache import clear_plans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu" and not interpreted():
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)


def _filled(tensor: Any) -> Any:
    return tensor.fill_(85 if is_integer(dtype_name(tensor.dtype)) else torch.nan)


class Poisoned(TorchMemory):
    """Memory that is full of NaN when it is handed out, or of one number where there is no NaN."""

    def empty(self, like: Any, shape: Any, strides: Any) -> Any:  # type: ignore[override]
        return _filled(like.new_empty_strided(shape, strides))

    def maker(self, dtype: str) -> Any:
        return self.empty

    def here(self, like: Any) -> Any:
        return lambda *given: _filled(new_here(like.device)(*given))

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        return _filled(super().workspace(like, elements, dtype))


MEMORY = Poisoned()


def randn(*shape: int, dtype: str = "float32", seed: int = 0, device: str = DEVICE) -> Any:
    """Normal numbers, or whole ones over the whole range of the dtype. Small arrays are the same on every device."""
    kind = getattr(torch, dtype)
    if device == "meta":
        return torch.empty(shape, dtype=kind, device="meta")
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        values = np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        return torch.from_numpy(values).to(device)
    wide = torch.complex128 if kind.is_complex else torch.float64
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=wide).to(device, kind)


def randoms(shapes: Iterable[tuple[int, ...]], dtype: str = "float32", device: str = DEVICE) -> list[Any]:
    return [randn(*shape, dtype=dtype, seed=at, device=device) for at, shape in enumerate(shapes)]


@contextmanager
def decided(which: Callable[[Sequence[Any]], Any], on: Any = ON) -> Iterator[list[str]]:
    """Every step that can be is run by a kernel, ``which`` of those that might be tried; the names of these."""
    ran: list[str] = []

    def decide(self: Any, arrays: Sequence[Any]) -> Any:
        way = which(kernel_candidates(self.step, self.memory.dtype(arrays[0]), on, self.precision))
        ran.append(way.name)
        return way

    clear_plans()
    with (
        mock.patch.object(choice.StepProblem, "decide", decide),
        mock.patch.object(choice, "_small", return_value=False),
        mock.patch.object(torch_backend, "kernel_dtypes", return_value=KERNEL_DTYPES),
    ):
        try:
            yield ran
        finally:
            clear_plans()
