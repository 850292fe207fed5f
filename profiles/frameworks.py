"""The frameworks to compare, each behind the same few methods. Nothing is imported before one is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from einops_fast.profiles.timing.clocks import Clock, EventClock, HostClock
from einops_fast.profiles.timing.processors import available_threads, cpu_name, gpu_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

__all__ = ["CACHE_FLUSH_BYTES", "FRAMEWORKS", "Framework", "Unavailable", "default_device", "installed", "load"]

CACHE_FLUSH_BYTES = 256 << 20
"""More than the last cache of any GPU so far."""

Call = Callable[..., Any]


class Unavailable(Exception):
    """A framework, a device, a dtype or a library that this machine doesn't have, or isn't made for a case."""


class Framework(ABC):
    """A framework on one device.

    Attributes:
        name: what to import, and what tables call it.
        product: name of its batched matrix product, the floor of any einsum's overhead.
        default_stream: whether work on a GPU is on CUDA's default stream, where anyone's events see it.
        differentiable: it has gradients.
        namespace: the module that has its einsum.
        bfloat16: arrays can have this dtype.
    """

    name: ClassVar[str]
    product: ClassVar[str]
    default_stream: ClassVar[bool] = False
    differentiable: ClassVar[bool] = False
    bfloat16: ClassVar[bool] = False
    namespace: Any

    def __init__(self, device: str, threads: int) -> None:
        self.device = device
        self.threads = threads

    def array(self, values: Values, dtype: str) -> Any:
        """An array on the device, with these values rounded to ``dtype``."""
        if dtype == "bfloat16" and not self.bfloat16:
            raise Unavailable(f"{self.name} has no bfloat16 that could be made from NumPy")
        return self._array(values, dtype)

    @abstractmethod
    def _array(self, values: Values, dtype: str) -> Any: ...

    def normal(self, shapes: Sequence[tuple[int, ...]], dtype: str, seed: int) -> list[Any]:
        """Standard normal arrays, made wherever that is fastest: elsewhere the same seed gives other values."""
        # Imports NumPy, which reads the number of threads then.
        from einops_fast.profiles.timing.accuracy import random_values

        return [self.array(values, dtype) for values in random_values(shapes, seed)]

    def view(self, array: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """The array with its axes in another order and then, where they have one element, expanded to ``shape``."""
        raise Unavailable(f"{self.name} arrays have no strides")

    @abstractmethod
    def to_float64(self, array: Any) -> Values:
        """The values of an array, exactly."""

    def einsum(self, equation: str, *operands: Any, **options: Any) -> Any:
        """The framework's own einsum, looked up at each call: a patch takes effect."""
        return self.namespace.einsum(equation, *operands, **options)

    @abstractmethod
    def matmul(self, left: Any, right: Any) -> Any:
        """The product of two batches of matrices, by the shortest way."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Overwrite ``target`` with ``source``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all work in flight."""

    def clock(self, *, flushes: int = 1) -> Clock:
        """The best clock of the device.

        Args:
            flushes: how often a GPU's cache is emptied before each call. Once is enough for that; while it lasts, the
                host queues the call, so that with more the launches of many kernels don't count.
        """
        return HostClock(self.synchronize)

    def versions(self) -> dict[str, str]:
        """Versions of what was measured."""
        return {self.name: str(import_module(self.name).__version__)}

    def device_name(self) -> str:
        """The device, as its maker calls it."""
        return cpu_name()

    # By default there is nothing to do for these

    def spoil(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:  # noqa: B027
        """Fill memory that new arrays of these shapes are likely to get, so that no right result is left there."""

    def forget(self) -> None:  # noqa: B027
        """Give memory back that is kept for new arrays, which the next case may need in larger pieces."""

    def track(self, array: Any) -> None:
        """Ask for gradients with respect to ``array``."""
        raise Unavailable(f"{self.name} has no autograd")

    def gradient(self, call: Call, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Run ``call`` forward and backward: what it returns, and the gradient of every leaf.

        A loss, which has no cotangents, is differentiated as it is.
        """
        raise Unavailable(f"{self.name} has no autograd")


class NumPy(Framework):
    """NumPy, and whatever has its functions."""

    name = "numpy"
    product = "np.matmul"

    def __init__(self, device: str, threads: int) -> None:
        if device != "cpu":
            raise Unavailable("NumPy runs on the CPU only")
        super().__init__(device, threads)
        self.namespace = self.np = import_module(self.name)

    def _array(self, values: Values, dtype: str) -> Any:
        return self.np.asarray(values.astype(dtype))

    def view(self, array: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        return self.np.broadcast_to(array.transpose(axes), shape)

    def to_float64(self, array: Any) -> Values:
        result: Values = self.np.asarray(array, "float64")
        return result

    def matmul(self, left: Any, right: Any) -> Any:
        return self.np.matmul(left, right)

    def copy(self, target: Any, source: Any) -> None:
        self.np.copyto(target, source)

    def synchronize(self) -> None:
        pass


class CuPy(NumPy):
    """CuPy, on a GPU."""

    name = "cupy"
    product = "cupy.matmul"
    default_stream = True

    def __init__(self, device: str, threads: int) -> None:
        if device != "gpu":
            raise Unavailable("CuPy runs on a GPU only")
        super().__init__("cpu", threads)
        self.device = device
        if not self.np.cuda.is_available():
            raise Unavailable("CuPy finds no GPU")

    def to_float64(self, array: Any) -> Values:
        result: Values = self.np.asnumpy(array).astype("float64")
        return result

    def synchronize(self) -> None:
        self.np.cuda.get_current_stream().synchronize()

    def clock(self, *, flushes: int = 1) -> Clock:
        cache = self.np.empty(CACHE_FLUSH_BYTES if flushes else 0, "int8")
        return EventClock(
            new_event=self.np.cuda.Event,
            milliseconds=self.np.cuda.get_elapsed_time,
            flush=lambda: [cache.fill(0) for _ in range(flushes)],
            synchronize=self.synchronize,
        )

    def device_name(self) -> str:
        return str(self.np.cuda.runtime.getDeviceProperties(self.np.cuda.Device().id)["name"].decode())


class Torch(Framework):
    """torch, on a CPU or on one GPU."""

    name = "torch"
    product = "torch.bmm"
    default_stream = True
    differentiable = True
    bfloat16 = True

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        self.namespace = self.torch = import_module("torch")
        self.torch.set_num_threads(threads)
        if device == "gpu" and not self.torch.cuda.is_available():
            raise Unavailable("torch finds no GPU")

    @property
    def _device(self) -> str:
        return "cuda" if self.device == "gpu" else "cpu"

    def _array(self, values: Values, dtype: str) -> Any:
        return self.torch.from_numpy(values).to(self._device, getattr(self.torch, dtype), copy=True)

    def normal(self, shapes: Sequence[tuple[int, ...]], dtype: str, seed: int) -> list[Any]:
        if self.device == "cpu":
            return super().normal(shapes, dtype, seed)
        torch = self.torch
        generator = torch.Generator(self._device).manual_seed(seed)
        wide = torch.float64 if dtype == "float64" else torch.float32
        options = {"dtype": wide, "device": self._device, "generator": generator}
        return [torch.randn(shape, **options).to(getattr(torch, dtype)) for shape in shapes]

    def view(self, array: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        return array.permute(axes).expand(shape)

    def to_float64(self, array: Any) -> Values:
        result: Values = array.detach().double().cpu().numpy()
        return result

    def matmul(self, left: Any, right: Any) -> Any:
        return self.torch.bmm(left, right)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def synchronize(self) -> None:
        if self.device == "gpu":
            self.torch.cuda.synchronize()

    def spoil(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
        options = {"dtype": getattr(self.torch, dtype), "device": self._device}
        # All at once, as gradients are: one after the other they would get the same memory.
        [self.torch.full(shape, float("nan"), **options) for shape in shapes]

    def clock(self, *, flushes: int = 1) -> Clock:
        if self.device == "cpu":
            return super().clock()
        cuda = self.torch.cuda
        cache = self.torch.empty(CACHE_FLUSH_BYTES if flushes else 0, dtype=self.torch.int8, device="cuda")
        return EventClock(
            new_event=lambda: cuda.Event(enable_timing=True),
            milliseconds=lambda start, end: start.elapsed_time(end),
            flush=lambda: [cache.zero_() for _ in range(flushes)],
            synchronize=cuda.synchronize,
        )

    def versions(self) -> dict[str, str]:
        found = super().versions()
        # Ours compiles with it on a GPU, and so does torch.compile.
        if self.device == "gpu" and find_spec("triton") is not None:
            found["triton"] = str(import_module("triton").__version__)
        return found

    def device_name(self) -> str:
        return str(self.torch.cuda.get_device_name()) if self.device == "gpu" else super().device_name()

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

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        from einops_fast.backends.mxnet.importing import import_mxnet

        self.mx = import_mxnet()
        self.namespace = self.mx.np
        self.mx.npx.set_np()
        if device == "gpu" and not self.mx.device.num_gpus():
            raise Unavailable("MXNet finds no GPU")

    def _array(self, values: Values, dtype: str) -> Any:
        device = self.mx.gpu() if self.device == "gpu" else self.mx.cpu()
        return self.mx.np.array(values, dtype=dtype, device=device)

    def to_float64(self, array: Any) -> Values:
        result: Values = array.asnumpy().astype("float64")
        return result

    def matmul(self, left: Any, right: Any) -> Any:
        return self.mx.npx.batch_dot(left, right)

    def copy(self, target: Any, source: Any) -> None:
        source.copyto(target)

    def synchronize(self) -> None:
        self.mx.npx.waitall()

    def device_name(self) -> str:
        return "GPU" if self.device == "gpu" else super().device_name()

    def track(self, array: Any) -> None:
        array.attach_grad()

    def gradient(self, call: Call, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        with self.mx.autograd.record():
            result = call()
        result.backward(*cotangents)
        return result, tuple(leaf.grad for leaf in leaves)


FRAMEWORKS: dict[str, type[Framework]] = {kind.name: kind for kind in (NumPy, Torch, MXNet, CuPy)}


def installed(name: str) -> bool:
    """Whether the framework can be imported, without importing it."""
    return find_spec(name) is not None


def load(name: str, device: str = "cpu", threads: int | None = None) -> Framework:
    """Import a framework for use on ``device`` (``cpu`` or ``gpu``) with ``threads`` threads (default: all).

    Raises:
        Unavailable: the framework or the device isn't here.
    """
    if not installed(name):
        raise Unavailable(f"{name} isn't installed")
    return FRAMEWORKS[name](device, threads or available_threads())


def default_device(name: str) -> str:
    """``gpu`` where this machine has one that the framework can use, else ``cpu``."""
    return "gpu" if name == "cupy" or (name != "numpy" and gpu_count()) else "cpu"
