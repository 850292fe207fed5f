"""Compile for a device in a process that has none: what Triton asks a driver is answered for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

__all__ = ["aimed_at", "architecture"]

_PLENTY = 1 << 30


def architecture() -> int:
    """Return what kernels are compiled for on the current device: its compute capability, 90 for 9.0.

    Triton hashes itself for that, which takes a second.
    """
    triton_key()
    target = driver.active.get_current_target()
    if target.backend != "cuda":
        raise NotImplementedError(f"kernels aren't compiled elsewhere for {target.backend}")
    return int(target.arch)


@contextmanager
def aimed_at(arch: int) -> Iterator[None]:
    """While this is open, Triton compiles for devices of an architecture, and loads nothing."""
    from triton.backends.nvidia import driver as nvidia

    # Triton 3.6 compiles for each kernel what launches it; later versions don't, and ask the driver's own code here.
    launcher = (lambda *kernel: None) if hasattr(nvidia, "PyKernelArg") else nvidia.CudaLauncher
    utils = SimpleNamespace(
        # How much a device has is seen by who loads the kernel.
        get_device_properties=lambda device: {"max_shared_mem": _PLENTY},
        # A module, a function, registers, spills, threads.
        load_binary=lambda *kernel: (0, 0, 0, 0, _PLENTY),
        launch=None,
    )
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", arch, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            launcher_cls=launcher,
            utils=utils,
        )
    )
    try:
        yield
    finally:
        driver.set_active(None)
