"""What the kernels need of a framework: memory, addresses, streams and clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from einops_fast.runtime.measuring import Stopwatch

_COUNTERS = 1 << 12
"""That a stream gets; more are seldom needed, and then they are made anew."""

_SPARE_COUNTERS = 1 << 18
"""That graphs on a device can have, all together. Those that come later fill their own with zeros in each run."""


class Memory(ABC):
    """One framework's arrays on a GPU; it raises ``exhausted`` where no memory is left."""

    exhausted: type[Exception] = MemoryError

    def __init__(self) -> None:
        self._counters: dict[tuple[int, int], tuple[int, Any]] = {}
        self._spare: dict[int, tuple[int, Any]] = {}

    def counters(self, like: Any, device: int, count: int) -> Any:
        """So many 32-bit integers beside ``like`` that are 0, for a kernel that leaves them so.

        The kernels of one stream run one after the other, and get the same ones again and again. Those of a graph that
        is captured may run beside any others: each gets its own, for good.
        """
        if not self.pointer(like):  # in a rehearsal
            return self._zeros(like, count)
        if self.capturing():
            left, spare = self._spare.get(device, (0, None))
            if left < count:
                return self._zeros(like, count)
            self._spare[device] = left - count, spare
            return spare[left - count : left]
        key = device, self.stream(device)
        size, found = self._counters.get(key, (0, None))
        if size < count:
            size = max(count, _COUNTERS)
            found = self._zeros(like, size)
            self._counters[key] = size, found
            if device not in self._spare:
                self._spare[device] = _SPARE_COUNTERS, self._zeros(like, _SPARE_COUNTERS)
        return found

    def _zeros(self, like: Any, count: int) -> Any:
        found = self.workspace(like, count, "int32")
        found[:] = 0
        return found

    @abstractmethod
    def empty(self, like: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """An array beside ``like``, of its dtype, with these strides in elements and nothing in it yet."""

    def maker(self, dtype: str) -> Callable[[Any, tuple[int, ...], tuple[int, ...]], Any]:
        """:meth:`empty` beside arrays of a dtype on the device that is current in each call; it may take less time."""
        return self.empty

    @abstractmethod
    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        """A flat array beside ``like``."""

    @abstractmethod
    def layout(self, array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return its shape, and its strides in elements."""

    @abstractmethod
    def sample(self, device: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """Return an array of random numbers to measure with."""

    def conjugated(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Return which arrays stand for the conjugates of what is in memory."""
        return ()

    def parts(self, array: Any) -> Any:
        """Return an array of complex numbers as one of their parts, for Triton's interpreter."""
        return array

    @abstractmethod
    def pointer(self, array: Any) -> int:
        """Address of the first element."""

    @abstractmethod
    def device(self, array: Any) -> int:
        """Number of the device that holds the array."""

    @abstractmethod
    def current_device(self) -> int:
        """Number of the device that calls go to."""

    @abstractmethod
    def on_device(self, device: int) -> AbstractContextManager[Any]:
        """Makes a device the current one."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """Handle of the stream that the framework's work on this device goes to."""

    @abstractmethod
    def dtype(self, array: Any) -> str:
        """Name of the dtype, as in NumPy."""

    @abstractmethod
    def device_name(self, device: int) -> str:
        """The device, as its maker calls it."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the framework and of the driver, which the speed of its calls depends on."""

    def library_settings(self, dtype: str) -> dict[str, str]:
        """What the framework lets its library do with products of this dtype, beyond the precision of float32."""
        return {}

    def deterministic(self) -> bool:
        """Return whether all calls are to give the same bits."""
        return False

    @abstractmethod
    def capturing(self) -> bool:
        """Whether work on the current stream is captured in a graph now."""

    @abstractmethod
    def may_measure(self) -> bool:
        """Whether work may be timed now: not while a graph is being captured or a compiler is at work."""

    @abstractmethod
    def stopwatch(self) -> Stopwatch:
        """Return a new stopwatch for runs on the current stream."""

    @abstractmethod
    def synchronize(self, device: int) -> None:
        """Wait until the device has done all its work."""

    @abstractmethod
    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        """Times of ``repeat`` runs on the device, each with nothing of the operands left in the cache.

        What the host takes to queue a run isn't in it: that's hidden behind other work.
        """
