"""Measure what a CUDA device reaches, by torch's own calls."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from einops_fast.backends.clock import DeviceClock
from einops_fast.backends.gpu_rates import MEASURED_DTYPES, Rates, keep_rates
from einops_fast.backends.memory import Memory
from einops_fast.backends.torch.memory import TorchMemory

_SMALLEST, _LARGEST = 64 << 20, 512 << 20
"""Bytes of what is copied: twice the device's cache, if that is between these."""

_EXTENTS = (512, 1024, 2048, 4096)
"""Of square matrix products: the first that takes long enough is timed, or the last that there is room for."""

_AIM = 5e-4
"""Seconds that are long enough."""

_SHORT_RUNS, _HOST_RUNS = 4, 64
"""Of a short kernel, for the device's time and for the host's."""

_SAMPLES = 10
"""Times of each rate."""

_AGREE = 1.1
"""How much longer the second best time may be than the best: other work makes times longer, each by another amount."""


class Disturbed(Exception):
    """The device had other work while it was measured."""


def measure_now(number: int) -> bool:
    """Measure a device, and write down what was measured; return whether it could be, or other work disturbed it.

    torch's setting for products of float32, which holds for all threads, is changed meanwhile.
    """
    as_set = torch.backends.cuda.matmul.allow_tf32
    try:
        with torch.cuda.device(number), torch.no_grad():
            rates = measured_rates(torch.device("cuda", number), number, TorchMemory())
    except Disturbed:
        return False
    finally:
        torch.backends.cuda.matmul.allow_tf32 = as_set
    keep_rates(torch.cuda.get_device_name(number), rates)
    return True


def measured_rates(device: torch.device, number: int, memory: Memory) -> Rates:
    """Return what a device, which is the current one, reaches."""
    properties = torch.cuda.get_device_properties(number)
    size = min(max(2 * getattr(properties, "L2_cache_size", 0), _SMALLEST), _LARGEST)
    source, target = (torch.empty(size // 4, device=device) for _ in range(2))
    random = torch.Generator(device).manual_seed(0)  # of its own: the program's numbers stay what they are

    def product(dtype: str, extent: int) -> Callable[[], Any]:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        kind = _kind(dtype)
        # Of zeros, products take less power and so less time.
        factors = source.view(kind)[: 2 * extent**2].uniform_(-1, 1, generator=random)
        left, right = factors.view(2, extent, extent)
        return partial(torch.mm, left, right, out=target.view(kind)[: extent**2].view(extent, extent))

    def flops(dtype: str) -> float:
        for extent in _EXTENTS:
            seconds = _least(product(dtype, extent), number, memory)
            if seconds >= _AIM or 8 * extent**2 > source.view(_kind(dtype)).numel():  # no room for the next
                break
        return float(2 * extent**3 / seconds)

    bandwidth = 2 * size / _least(partial(target.copy_, source), number, memory)
    left, right, result = torch.zeros(3, 16, 16, device=device)
    short = partial(torch.mm, left, right, out=result)
    clock = DeviceClock(memory, number)
    return Rates(
        bandwidth,
        {dtype: flops(dtype) for dtype in MEASURED_DTYPES},
        _least(lambda: [short() for _ in range(_SHORT_RUNS)], number, memory) / _SHORT_RUNS,
        min([clock.wall_seconds(short, _HOST_RUNS) for _ in range(_SAMPLES)]),
        properties.multi_processor_count,
        datetime.date.today().isoformat(),
    )


def _kind(dtype: str) -> torch.dtype:
    kind: torch.dtype = getattr(torch, "float32" if dtype == "tf32" else dtype)
    return kind


def _least(run: Callable[[], Any], number: int, memory: Memory) -> float:
    """Return the device's least time of a run, on which two of its times agree."""
    run()  # the first run of anything loads its kernel
    best, second, *_ = sorted(memory.seconds(run, number, _SAMPLES))
    if second > _AGREE * best:
        raise Disturbed
    return best
