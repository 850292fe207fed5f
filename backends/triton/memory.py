"""What the kernels need of a framework: memory, addresses, streams and clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["Memory"]


class Memory(ABC):
    """One framework's arrays on a GPU."""

    @abstractmethod
    def empty(self, like: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """An array beside ``like``, of its dtype, with these strides in elements and nothing in it yet."""

    @abstractmethod
    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        """A flat array beside ``like``."""

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

    @abstractmethod
    def may_measure(self) -> bool:
        """Whether work may be timed now: not while a graph is being captured or a compiler is at work."""

    @abstractmethod
    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        """Times of ``repeat`` runs, each with nothing of the operands left in the cache."""
