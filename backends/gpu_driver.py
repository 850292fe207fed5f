"""Asks NVIDIA's driver about GPUs and loaded kernels, without importing a framework."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_RELAXED = 2
"""The mode of a thread whose calls are no concern of graphs that other threads capture."""


class GpuProperties(NamedTuple):
    """One GPU: clocks in hertz, the width of the memory's bus in bits, the L2 cache in bytes."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock: float
    memory_clock: float
    bus: int
    cache: int

    @property
    def computes(self) -> float:
        """Return multiprocessors times their clock, by which devices are compared."""
        return self.multiprocessors * self.clock

    @property
    def moves(self) -> float:
        """Return the width of the bus times the memory's clock, by which devices are compared."""
        return self.bus * self.memory_clock


@cache
def driver_version() -> str:
    """Return the version of NVIDIA's driver, or of the CUDA that it is for where it doesn't tell its own."""
    with suppress(OSError):
        told = re.search(r"\b\d+(\.\d+)+\b", Path("/proc/driver/nvidia/version").read_text("utf-8"))
        if told:
            return told[0]
    version = ctypes.c_int(0)
    with suppress(OSError):
        _library().cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


@cache
def gpu_properties() -> tuple[GpuProperties, ...]:
    """Return the GPUs that this process sees, in CUDA's order; none where there is no driver."""
    count = ctypes.c_int(0)
    try:
        driver = _library()
    except OSError:
        return ()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_properties(driver, at) for at in range(count.value))


def _properties(driver: Any, number: int) -> GpuProperties:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), number)
    driver.cuDeviceGetName(name, len(name), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    # The numbers are those of CUdevice_attribute in cuda.h; clocks are in kilohertz.
    return GpuProperties(
        name.value.decode(),
        (attribute(75), attribute(76)),
        multiprocessors=attribute(16),
        clock=attribute(13) * 1e3,
        memory_clock=attribute(36) * 1e3,
        bus=attribute(37),
        cache=attribute(38),
    )


@contextmanager
def unbound_from_captures() -> Iterator[None]:
    """While this is open, calls of this thread can't spoil a graph that another thread captures."""
    mode = ctypes.c_int(_RELAXED)
    exchange = _library().cuThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _library() -> Any:
    """Return the driver's library; an ``OSError`` where there is none."""
    return ctypes.CDLL("libcuda.so.1")


_CLUSTER_DIMENSION = 4
_MAX_DYNAMIC_SHARED = 8
_ANY_CLUSTER_SIZE = 14
"""Numbers of the driver: the first is a CUlaunchAttributeID, the other two are CUfunction_attributes."""


class _Attribute(ctypes.Structure):
    """A CUlaunchAttribute, of the size of a cluster: its value has 64 bytes, whatever it is."""

    _fields_ = [("id", ctypes.c_int), ("_", ctypes.c_int), ("cluster", 3 * ctypes.c_uint), ("rest", 13 * ctypes.c_uint)]


class _Configuration(ctypes.Structure):
    """A CUlaunchConfig."""

    _fields_ = [
        ("grid", 3 * ctypes.c_uint),
        ("block", 3 * ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


def ask_for_shared(function: int, size: int) -> None:
    """Let a kernel have ``size`` bytes of dynamic shared memory.

    Triton does if they are more than 48 KiB. But there may be static shared memory beside them.
    """
    with suppress(OSError):
        _library().cuFuncSetAttribute(ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, size)


def clusters_at_a_time(function: int, blocks: int, threads: int, shared: int) -> int | None:
    """Return how many clusters of a kernel run at a time on the current device; ``None`` if that isn't known.

    A cluster has ``blocks`` thread blocks, each with ``threads`` threads and ``shared`` bytes of dynamic memory.
    Multiprocessors come in groups that no cluster goes beyond, and not all groups are as large.
    """
    try:
        driver = _library()
    except OSError:
        return None
    attribute = _Attribute(_CLUSTER_DIMENSION, 0, (blocks, 1, 1))
    asked = _Configuration((blocks, 1, 1), (threads, 1, 1), shared, None, ctypes.pointer(attribute), 1)
    found, kernel = ctypes.c_int(), ctypes.c_void_p(function)
    failed = driver.cuFuncSetAttribute(kernel, _ANY_CLUSTER_SIZE, 1)
    failed = failed or driver.cuOccupancyMaxActiveClusters(ctypes.byref(found), kernel, ctypes.byref(asked))
    return None if failed or found.value < 1 else found.value
