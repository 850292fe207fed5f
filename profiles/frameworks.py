"""The frameworks to compare, each behind the same few methods. Nothing is imported before one is made."""

from __future__ import annotations

import platform
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from einops_fast.backends.gpu_driver import gpu_properties
from einops_fast.profiles.timing.clocks import Clock, EventClock, HostClock
from einops_fast.runtime.background import processors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

CACHE_FLUSH_BYTES = 256 << 20  # More than the last cache of any GPU so far

Call = Callable[..., Any]
Shape = tuple[int, ...]


class Unavailable(Exception):
    """A framework, a device, a dtype or a library that this machine doesn't have, or isn't made for a case."""


def thread_environment(threads: int) -> dict[str, str]:
    """Return environment variables that give any framework ``threads`` threads; read when it is imported."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def cpu_name() -> str:
    """Return the CPU, as its maker calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class Framework:
    """A framework on one device; by itself NumPy, which the others are like."""

    name: ClassVar[str] = "numpy"  # what to import, and what tables call it
    product: ClassVar[str] = "np.matmul"  # name of its batched matrix product, the floor of any einsum's overhead
    differentiable: ClassVar[bool] = False  # it has gradients
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(self, device: str, threads: int) -> None:
        if device not in self.devices:
            raise Unavailable(f"{self.name} runs on {' and '.join(self.devices)} only")
        self.device = device
        self.threads = threads
        self.np: Any = self.load()

    def load(self) -> Any:
        """Import it; returns the module that has its einsum."""
        return import_module(self.name)

    def array(self, values: Values, dtype: str) -> Any:
        """Return an array on the device, with these values rounded to ``dtype``."""
        if dtype == "bfloat16":
            raise Unavailable(f"{self.name} has no bfloat16 that could be made from NumPy")
        return self.np.asarray(values.astype(dtype))

    def normal(self, shapes: Sequence[Shape], dtype: str, seed: int) -> list[Any]:
        """Return standard normal arrays, made wherever that is fastest: elsewhere the same seed gives other values."""
        # Imports NumPy, which reads the number of threads then.
        from einops_fast.profiles.timing.accuracy import random_values

        return [self.array(values, dtype) for values in random_values(shapes, seed)]

    def view(self, array: Any, axes: Shape, shape: Shape) -> Any:
        """Return the array with its axes in another order and, where they have one element, expanded to ``shape``."""
        return self.np.broadcast_to(array.transpose(axes), shape)

    def to_float64(self, array: Any) -> Any:
        """Return the values of an array for NumPy."""
        return self.np.asarray(array, "float64")

    def einsum(self, equation: str, *operands: Any, **options: Any) -> Any:
        """Return the framework's own einsum, looked up at each call: a patch takes effect."""
        return self.np.einsum(equation, *operands, **options)

    def matmul(self, left: Any, right: Any) -> Any:
        return self.np.matmul(left, right)

    def copy(self, target: Any, source: Any) -> None:
        self.np.copyto(target, source)

    def synchronize(self) -> None:
        """Wait for all work in flight."""

    def peak_memory(self, call: Call) -> int:
        """Return the bytes that a call holds at most, its result included, beyond what there was before."""
        if self.name != "numpy":
            raise Unavailable(f"{self.name} doesn't tell what memory it takes")
        call()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            call()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    def clock(self, *, flushes: int = 1) -> Clock:
        """Return the best clock of the device, which empties a GPU's cache so often before each call.

        Once is enough for that. While it lasts, the host queues the call: with more, many launches don't count.
        """
        return HostClock(self.synchronize)

    def versions(self) -> dict[str, str]:
        return {self.name: str(import_module(self.name).__version__)}

    def device_name(self) -> str:
        return next((gpu.name for gpu in gpu_properties()), "GPU") if self.device == "gpu" else cpu_name()

    def spoil(self, shapes: Sequence[Shape], dtype: str) -> None:
        """Fill memory that new arrays of these shapes are likely to get, so that no right result is left there."""

    def forget(self) -> None:
        """Give memory back that is kept for new arrays, which the next case may need in larger pieces."""

    def track(self, array: Any) -> None:
        """Ask for gradients with respect to ``array``."""
        raise Unavailable(f"{self.name} has no autograd")

    def gradient(self, call: Call, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Run ``call`` forward and backward: what it returns, and the gradient of every leaf.

        A loss, which has no cotangents, is differentiated as it is.
        """
        raise Unavailable(f"{self.name} has no autograd")


class CuPy(Framework):
    """CuPy, on a GPU."""

    name = "cupy"
    product = "cupy.matmul"
    devices = ("gpu",)

    def load(self) -> Any:
        cupy: Any = import_module("cupy")
        if not cupy.cuda.is_available():
            raise Unavailable("CuPy finds no GPU")
        return cupy

    def to_float64(self, array: Any) -> Any:
        return self.np.asnumpy(array).astype("float64")

    def synchronize(self) -> None:
        self.np.cuda.get_current_stream().synchronize()

    def clock(self, *, flushes: int = 1) -> Clock:
        cache = self.np.empty(CACHE_FLUSH_BYTES if flushes else 0, "int8")
        cuda = self.np.cuda
        return EventClock(
            cuda.Event, cuda.get_elapsed_time, lambda: [cache.fill(0) for _ in range(flushes)], self.synchronize
        )


class Torch(Framework):
    """torch, on a CPU or on one GPU."""

    name = "torch"
    product = "torch.bmm"
    differentiable = True
    devices = ("cpu", "gpu")

    def load(self) -> Any:
        self._device = "cuda" if self.device == "gpu" else "cpu"
        self.torch: Any = import_module("torch")
        self.torch.set_num_threads(self.threads)
        if self.device == "gpu" and not self.torch.cuda.is_available():
            raise Unavailable("torch finds no GPU")
        return self.torch

    def array(self, values: Values, dtype: str) -> Any:
        return self.torch.from_numpy(values).to(self._device, getattr(self.torch, dtype), copy=True)

    def normal(self, shapes: Sequence[Shape], dtype: str, seed: int) -> list[Any]:
        if self.device == "cpu":
            return super().normal(shapes, dtype, seed)
        torch = self.torch
        generator = torch.Generator(self._device).manual_seed(seed)
        wide = torch.float64 if dtype == "float64" else torch.float32
        options = {"dtype": wide, "device": self._device, "generator": generator}
        return [torch.randn(shape, **options).to(getattr(torch, dtype)) for shape in shapes]

    def view(self, array: Any, axes: Shape, shape: Shape) -> Any:
        return array.permute(axes).expand(shape)

    def to_float64(self, array: Any) -> Any:
        return array.detach().double().cpu().numpy()

    def matmul(self, left: Any, right: Any) -> Any:
        return self.torch.bmm(left, right)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def synchronize(self) -> None:
        if self.device == "gpu":
            self.torch.cuda.synchronize()

    def peak_memory(self, call: Call) -> int:
        if self.device == "gpu":
            cuda = self.torch.cuda
            call()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            call()
            return int(cuda.max_memory_allocated() - before)
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            call()
        events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
        return int(max(accumulate(changes, initial=0)))

    def spoil(self, shapes: Sequence[Shape], dtype: str) -> None:
        options = {"dtype": getattr(self.torch, dtype), "device": self._device}
        # All at once, as gradients are: one after the other they would get the same memory.
        [self.torch.full(shape, float("nan"), **options) for shape in shapes]

    def clock(self, *, flushes: int = 1) -> Clock:
        if self.device == "cpu":
            return super().clock()
        cuda = self.torch.cuda
        cache = self.torch.empty(CACHE_FLUSH_BYTES if flushes else 0, dtype=self.torch.int8, device="cuda")
        return EventClock(
            lambda: cuda.Event(enable_timing=True),
            lambda start, end: start.elapsed_time(end),
            lambda: [cache.zero_() for _ in range(flushes)],
            cuda.synchronize,
        )

    def versions(self) -> dict[str, str]:
        found = super().versions()
        # Ours compiles with it on a GPU, and so does torch.compile.
        if self.device == "gpu" and find_spec("triton") is not None:
            found["triton"] = str(import_module("triton").__version__)
        return found

    def forget(self) -> None:
        if self.device == "gpu":
            self.torch.cuda.empty_cache()

    def track(self, array: Any) -> None:
        array.requires_grad_()

    def gradient(self, call: Call, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        results = call()
        return results, self.torch.autograd.grad(results, leaves, cotangents or None)


class MXNet(Framework):
    """MXNet's numpy interface."""

    name = "mxnet"
    product = "npx.batch_dot"
    differentiable = True
    devices = ("cpu", "gpu")

    def load(self) -> Any:
        from einops_fast.backends.mxnet.importing import import_mxnet

        self.mx = import_mxnet()
        self.mx.npx.set_np()
        if self.device == "gpu" and not self.mx.device.num_gpus():
            raise Unavailable("MXNet finds no GPU")
        return self.mx.np

    def array(self, values: Values, dtype: str) -> Any:
        if dtype == "bfloat16":
            raise Unavailable("MXNet arrays of bfloat16 can't be made from NumPy")
        return self.np.array(values, dtype=dtype, device=getattr(self.mx, self.device)())

    def view(self, array: Any, axes: Shape, shape: Shape) -> Any:
        raise Unavailable("mxnet arrays have no strides")

    def to_float64(self, array: Any) -> Any:
        return array.asnumpy().astype("float64")

    def matmul(self, left: Any, right: Any) -> Any:
        return self.mx.npx.batch_dot(left, right)

    def copy(self, target: Any, source: Any) -> None:
        source.copyto(target)

    def synchronize(self) -> None:
        self.mx.npx.waitall()

    def track(self, array: Any) -> None:
        array.attach_grad()

    def gradient(self, call: Call, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        with self.mx.autograd.record():
            result = call()
        result.backward(*cotangents)
        return result, tuple(leaf.grad for leaf in leaves)


FRAMEWORKS: dict[str, type[Framework]] = {kind.name: kind for kind in (Framework, Torch, MXNet, CuPy)}


def installed(name: str) -> bool:
    """Whether the framework can be imported, without importing it."""
    return find_spec(name) is not None


def load(name: str, device: str = "cpu", threads: int | None = None) -> Framework:
    """Import a framework for use on ``device`` (``cpu`` or ``gpu``) with ``threads`` threads (default: all)."""
    if not installed(name):
        raise Unavailable(f"{name} isn't installed")
    return FRAMEWORKS[name](device, threads or processors())


def default_device(name: str) -> str:
    """``gpu`` where this machine has one that the framework can use, else ``cpu``."""
    return "gpu" if name == "cupy" or (name != "numpy" and gpu_properties()) else "cpu"
