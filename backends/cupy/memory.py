"""CuPy's arrays, as the kernels of our own see them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import cupy as cp

from einops_fast.backends.clock import EventStopwatch, gpu_times
from einops_fast.backends.gpu_driver import driver_version
from einops_fast.backends.memory import Memory
from einops_fast.planning.layout import reach


class CupyMemory(Memory):
    """Arrays of CuPy. Kernels go to CuPy's current stream, and memory comes from its pool."""

    exhausted = cp.cuda.memory.OutOfMemoryError

    def empty(self, like: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        flat = cp.empty(reach(shape, strides), like.dtype)  # strides may leave gaps
        item = like.itemsize
        return cp.ndarray(shape, like.dtype, memptr=flat.data, strides=tuple([stride * item for stride in strides]))

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        return cp.empty(elements, dtype)

    def layout(self, array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return array.shape, tuple([stride // array.itemsize for stride in array.strides])

    def sample(self, device: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        strides = tuple([abs(stride) for stride in strides])
        with cp.cuda.Device(device):
            flat = cp.random.standard_normal(reach(shape, strides), "float32").astype(dtype)
        item = flat.itemsize
        return cp.ndarray(shape, dtype, memptr=flat.data, strides=tuple([stride * item for stride in strides]))

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def device(self, array: Any) -> int:
        return int(array.device.id)

    def current_device(self) -> int:
        return int(cp.cuda.runtime.getDevice())

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = cp.cuda.Device(device)
        return context

    def stream(self, device: int) -> int:
        return int(cp.cuda.get_current_stream().ptr)

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def device_name(self, device: int) -> str:
        return str(cp.cuda.runtime.getDeviceProperties(device)["name"].decode())

    def versions(self) -> dict[str, str]:
        return {
            "cupy": cp.__version__,
            "cuda": str(cp.cuda.runtime.runtimeGetVersion()),
            "driver": driver_version(),
        }

    def capturing(self) -> bool:
        return bool(cp.cuda.get_current_stream().is_capturing())

    def may_measure(self) -> bool:
        return not self.capturing()

    def stopwatch(self) -> EventStopwatch:
        return EventStopwatch(cp.cuda.Event(), cp.cuda.Event(), lambda event: event.done, cp.cuda.get_elapsed_time)

    def synchronize(self, device: int) -> None:
        cp.cuda.Device(device).synchronize()

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        size = int(cp.cuda.runtime.getDeviceProperties(device)["l2CacheSize"])
        overwrite = partial(cp.empty(4 * size, cp.int8).fill, 0)
        synchronize = cp.cuda.get_current_stream().synchronize
        return gpu_times(run, repeat, overwrite, cp.cuda.Event, cp.cuda.get_elapsed_time, synchronize)
