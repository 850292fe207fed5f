"""What a CUDA device reaches, measured by torch's own calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter, sleep
from typing import Any

import torch

from einops_fast.backends.gpu_driver import unbound_from_captures
from einops_fast.backends.gpu_rates import AHEAD, Slice, keep_rates, measure_behind, measured_rates
from einops_fast.backends.torch.backend import fp32_precision
from einops_fast.backends.torch.memory import TorchMemory

_cuda: Any = torch.cuda

_SMALLEST, _LARGEST = 64 << 20, 512 << 20
"""Bytes of what is copied: twice the device's cache, if that is between these."""

_KILOHERTZ = 1_500_000
"""Of a device's clock, where torch doesn't tell it."""

_SHARE = 16
"""How many times as much memory as the slices take has to be free."""

_POLL, _TOO_LONG = 2e-4, 5.0
"""Seconds between two looks whether a slice is over, and after which nobody looks any more."""


class TorchBench:
    """One CUDA device; ``dtypes`` are those that torch multiplies in as it is set, and a copy moves ``copied`` bytes.

    If it ``sets_precision``, torch's setting for float32 products, which holds for all threads, is changed meanwhile.
    """

    def __init__(self, number: int, sets_precision: bool = False) -> None:
        properties = _cuda.get_device_properties(number)
        self.name, self.units = torch.cuda.get_device_name(number), properties.multi_processor_count
        self._device, self._sets_precision = torch.device("cuda", number), sets_precision
        self._stream, self._default = _cuda.Stream(number), _cuda.default_stream(number)
        size = min(max(2 * getattr(properties, "L2_cache_size", 0), _SMALLEST), _LARGEST)
        self.copied, self._elements = 2 * size, size // 4
        self._hertz = getattr(properties, "clock_rate", _KILOHERTZ) * 1e3
        single = "tf32" if fp32_precision() == "tf32" else "float32"
        self.dtypes = ("bfloat16", "float16", *(("tf32", "float32") if sets_precision else (single,)), "float64")

    def idle(self) -> bool:
        """Return whether the device is idle, and may be measured now."""
        with unbound_from_captures():
            free, _ = torch.cuda.mem_get_info(self._device)
            calm = not torch.are_deterministic_algorithms_enabled() and TorchMemory().may_measure()
            return calm and free > _SHARE * self.copied and bool(self._default.query())

    @contextmanager
    def opened(self) -> Iterator[None]:
        as_set = torch.backends.cuda.matmul.allow_tf32 if self._sets_precision else None
        with unbound_from_captures(), torch.cuda.device(self._device), torch.no_grad():
            # Memory of the program's own stream, which gets it back when all slices are over.
            self._source, self._target = (torch.empty(self._elements, device=self._device) for _ in range(2))
            self._tiny = torch.zeros(3, 16, 16, dtype=torch.float32, device=self._device)
            self._random = torch.Generator(self._device).manual_seed(0)
            self._stream.wait_stream(self._default)
            try:
                with torch.cuda.stream(self._stream):
                    yield
            finally:
                self._stream.synchronize()
                del self._source, self._target, self._tiny
                if as_set is not None:
                    torch.backends.cuda.matmul.allow_tf32 = as_set

    def copy(self) -> None:
        self._target.copy_(self._source)

    def product(self, dtype: str, extent: int) -> Callable[[], Any] | None:
        """Return what queues a product of two square matrices; ``None`` where there is no room for them."""
        if self._sets_precision:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        source, target = self._source.view(kind), self._target.view(kind)
        size = extent * extent
        if 2 * size > source.numel():
            return None
        # Of zeros, products take less power and so less time.
        left, right = source[: 2 * size].uniform_(-1, 1, generator=self._random).view(2, extent, extent)
        return partial(torch.mm, left, right, out=target[:size].view(extent, extent))

    def short(self) -> None:
        """Queue a library call that computes next to nothing."""
        left, right, result = self._tiny
        torch.mm(left, right, out=result)

    def slice(self, run: Callable[[], Any], times: int) -> Slice:
        """Queue other work and runs behind it, on a stream of their own, and wait until all is over."""
        before, start, end = (_cuda.Event(enable_timing=True) for _ in range(3))
        before.record()
        began = perf_counter()
        # One thread that counts: a program's kernels have all the rest. It is queued by a single call.
        _cuda._sleep(int(AHEAD * self._hertz))
        start.record()
        middle = perf_counter()
        for _ in range(times):
            run()
        queued = perf_counter()
        end.record()
        while not end.query():
            if perf_counter() > began + _TOO_LONG:
                raise TimeoutError
            sleep(_POLL)
        ahead, seconds = before.elapsed_time(start) / 1e3, start.elapsed_time(end) / 1e3
        return Slice(ahead, seconds, queued - began, queued - middle, self._default.query())


def measure_now(number: int) -> bool:
    """Measure a device, and write down what was measured; return whether it could be, or other work disturbed it."""
    rates = measured_rates(TorchBench(number, sets_precision=True))
    if rates is not None:
        keep_rates(torch.cuda.get_device_name(number), rates)
    return rates is not None


def measure_when_idle(number: int) -> None:
    """Have a device measured behind the program's back, for the processes to come."""
    measure_behind(torch.cuda.get_device_name(number), partial(TorchBench, number))
