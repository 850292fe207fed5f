"""How many clusters of thread blocks a GPU runs at a time, as its driver says."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from einops_fast.backends.gpu_driver import library

__all__ = ["ask_for_shared", "clusters_at_a_time"]

_CLUSTER_DIMENSION = 4
_MAX_DYNAMIC_SHARED = 8
_ANY_CLUSTER_SIZE = 14
"""Of CUlaunchAttributeID and, both others, CUfunction_attribute."""


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
    """Let a kernel have so many bytes of dynamic shared memory.

    Triton does if they are more than 48 KiB. But there may be static shared memory beside them.
    """
    with suppress(OSError):
        library().cuFuncSetAttribute(ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, size)


def clusters_at_a_time(function: int, blocks: int, threads: int, shared: int) -> int | None:
    """Return how many clusters of a kernel run at a time on the current device; ``None`` if that isn't known.

    A cluster has so many thread blocks, and each of these so many threads and bytes of dynamic shared memory.
    Multiprocessors come in groups that no cluster goes beyond, and not all groups are as large.
    """
    try:
        driver = library()
    except OSError:
        return None
    attribute = _Attribute(_CLUSTER_DIMENSION, 0, (blocks, 1, 1))
    asked = _Configuration((blocks, 1, 1), (threads, 1, 1), shared, None, ctypes.pointer(attribute), 1)
    found, kernel = ctypes.c_int(), ctypes.c_void_p(function)
    failed = driver.cuFuncSetAttribute(kernel, _ANY_CLUSTER_SIZE, 1)
    failed = failed or driver.cuOccupancyMaxActiveClusters(ctypes.byref(found), kernel, ctypes.byref(asked))
    return None if failed or found.value < 1 else found.value
