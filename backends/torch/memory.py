"""torch's tensors, as the kernels of our own see them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch

from einops_fast.backends.absent_gpu import absent_gpu, aimed
from einops_fast.backends.clock import EventStopwatch, gpu_times
from einops_fast.backends.gpu_driver import driver_version
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton_support import interpreted
from einops_fast.dtypes import dtype_name
from einops_fast.planning.layout import reach
from einops_fast.runtime.tuning import is_reproducible

New = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes a tensor of a shape, strides and a dtype with nothing in it."""

# What torch.compile's own code makes tensors by, on the current device: past all that may have a say in it elsewhere.
_new_on_gpu: New | None = None
if torch.version.cuda:
    _new_on_gpu = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)

_event: Any = torch.cuda.Event

# Triton's interpreter works on the CPU, where torch with CUDA may find no GPU to ask about these; torch
# without CUDA doesn't have them.
_interpreting = interpreted()
_cuda = None if _interpreting else torch._C
_current_device: Callable[[], int] = getattr(_cuda, "_cuda_getDevice", lambda: 0)
_raw_stream: Callable[[int], int] = getattr(_cuda, "_cuda_getCurrentRawStream", lambda device: 0)
_capturing: Callable[[], bool] = (
    torch.cuda.is_current_stream_capturing if torch.version.cuda and not _interpreting else lambda: False
)


_CUBLAS_SETTINGS = {
    "float16": (
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction_split_k",
        "allow_fp16_accumulation",
    ),
    "bfloat16": ("allow_bf16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction_split_k"),
}
"""What decides by which kernels cuBLAS multiplies numbers of a dtype, in ``torch.backends.cuda.matmul``."""


class TorchMemory(Memory):
    """Tensors on a CUDA device, or on the CPU for Triton's interpreter."""

    exhausted = torch.cuda.OutOfMemoryError
    pointer = staticmethod(torch.Tensor.data_ptr)  # type: ignore[assignment]
    current_device = staticmethod(_current_device)
    stream = staticmethod(_raw_stream)  # type: ignore[assignment]
    capturing = staticmethod(_capturing)
    empty = staticmethod(torch.Tensor.new_empty_strided)  # type: ignore[assignment]

    def maker(self, dtype: str) -> Callable[[Any, tuple[int, ...], tuple[int, ...]], Any]:
        new, empty, own = _new_on_gpu, self.empty, getattr(torch, dtype)
        if new is None:
            return empty
        # In Triton's interpreter, tensors aren't on the GPU that there may be.
        return lambda like, shape, strides: new(shape, strides, own) if like.is_cuda else empty(like, shape, strides)

    def here(self, like: Any) -> New:
        """What makes tensors on the device of ``like`` as long as that is the current one."""
        return new_here(like.device)

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        if _new_on_gpu is not None and like.is_cuda and like.get_device() == _current_device():
            return _new_on_gpu((int(elements),), (1,), getattr(torch, dtype))
        return like.new_empty(elements, dtype=getattr(torch, dtype))

    def layout(self, array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(array.shape), array.stride()

    def sample(self, device: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        kind = getattr(torch, dtype)
        flat = torch.empty(reach(shape, strides), dtype=kind, device=torch.device("cuda", device))
        values = flat.normal_() if kind.is_floating_point or kind.is_complex else flat.random_(0, 8)
        return values.as_strided(shape, strides)

    def parts(self, array: Any) -> Any:
        return torch.view_as_real(array) if array.is_complex() else array

    def device(self, array: Any) -> int:
        found = int(array.get_device())
        return found if found >= 0 else _current_device()  # less than 0 where it has no memory, or the CPU's

    def on_device(self, device: int) -> AbstractContextManager[Any]:
        return torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()

    def dtype(self, array: Any) -> str:
        return dtype_name(array.dtype)

    def limits(self, device: int) -> tuple[int, int]:
        """Bytes of shared memory that a program may have, and multiprocessors; as on an H200 where there is no GPU."""
        aim = aimed()
        return _limits(device) if aim is None else aim.limits

    def processors(self, device: int) -> tuple[tuple[int, int], int]:
        """Return the compute capability and the number of multiprocessors; as on an H200 where there is no GPU."""
        aim = aimed() or (None if torch.cuda.is_available() else absent_gpu("h200"))
        return _processors(device) if aim is None else (aim.capability, aim.multiprocessors)

    def device_name(self, device: int) -> str:
        aim = aimed()
        if aim is not None:
            return aim.name
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "driver": driver_version()}

    def library_settings(self, dtype: str) -> dict[str, str]:
        # Not every version of torch has all of them.
        found = {name: getattr(torch.backends.cuda.matmul, name, None) for name in _CUBLAS_SETTINGS.get(dtype, ())}
        found["preferred_blas_library"] = torch.backends.cuda.preferred_blas_library()
        return {name: str(value) for name, value in found.items()}

    def may_measure(self) -> bool:
        return not (torch.cuda.is_available() and self.capturing()) and not torch.compiler.is_compiling()

    def deterministic(self) -> bool:
        return is_reproducible() or torch.are_deterministic_algorithms_enabled()

    def stopwatch(self) -> EventStopwatch:
        start, end = _event(enable_timing=True), _event(enable_timing=True)
        return EventStopwatch(start, end, _event.query, _event.elapsed_time)

    def synchronize(self, device: int) -> None:
        torch.cuda.synchronize(device)

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        new_event = partial(_event, enable_timing=True)
        synchronize = partial(torch.cuda.synchronize, device)
        return gpu_times(run, repeat, _cache_flush(device).zero_, new_event, _event.elapsed_time, synchronize)


@lru_cache(maxsize=64)
def new_here(device: torch.device) -> New:
    """What makes tensors on a device as long as that is the current one."""
    if _new_on_gpu is not None and device.type == "cuda":
        return _new_on_gpu
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _cache_flush(device: int) -> torch.Tensor:
    """Memory to overwrite so that the device's cache holds nothing else; that takes longer than a launch."""
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20)
    return torch.empty(4 * size, dtype=torch.int8, device=torch.device("cuda", device))


@lru_cache
def _limits(device: int) -> tuple[int, int]:
    if not torch.cuda.is_available():
        return absent_gpu("h200").limits
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin), int(properties.multi_processor_count)


@lru_cache
def _processors(device: int) -> tuple[tuple[int, int], int]:
    properties: Any = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)
