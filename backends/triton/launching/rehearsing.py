"""Rehearse a call: all that it would launch is planned and listed, and nothing runs.

Arrays of a rehearsal have no memory. What a call would compile is known then, and can be compiled elsewhere: in a
process that has no device, what Triton asks a driver is answered for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key

from einops_fast.backends.triton.launching.compiling import Files, Signature, compiled_for, elsewhere, is_compiled
from einops_fast.runtime import background
from einops_fast.runtime.plan_cache import keep

if TYPE_CHECKING:
    from einops_fast.backends.triton.launching.kernel_call import KernelCall

Source = tuple[Any, Signature, tuple[tuple[str, Any], ...]]


class Rehearsed(NamedTuple):
    """A kernel that a call would launch, and an ``Array`` in place of each of its arrays."""

    call: KernelCall
    arrays: tuple[Any, ...]

    @property
    def source(self) -> Source:
        """The function to compile, its signature and the compiler's options."""
        return self.call.source_for(*self.arrays)

    def compile(self) -> None:
        """Compile and load it on the current device."""
        self.call.compile_for(*self.arrays)

    def is_loaded(self) -> bool:
        """Return whether that is done."""
        return is_compiled(*self.source)


_listed: ContextVar[list[Rehearsed] | None] = ContextVar("_listed", default=None)


@contextmanager
def rehearsing() -> Iterator[list[Rehearsed]]:
    """List what calls in this block would launch, in this thread."""
    launches: list[Rehearsed] = []
    token = _listed.set(launches)
    try:
        yield launches
    finally:
        _listed.reset(token)


def is_rehearsal() -> bool:
    """Return whether this thread rehearses a call."""
    return _listed.get() is not None


def take_down(call: KernelCall, arrays: tuple[Any, ...]) -> bool:
    """Return whether this is a rehearsal; then the kernel is listed."""
    launches = _listed.get()
    if launches is None:
        return False
    launches.append(Rehearsed(call, arrays))
    return True


def compile_elsewhere(launches: Sequence[Rehearsed]) -> Future[Any]:
    """Have kernels compiled for the current device in other processes, and return what tells when all are done.

    Kernels of modules can be; others are compiled when they're loaded.
    """
    arch = _architecture()
    sources = {each.source: None for each in launches if not each.is_loaded()}
    pieces = []
    for function, *source in sources:
        module, name = function.__module__, function.__name__
        if getattr(import_module(module), name, None) is function:
            piece = background.submit(_compile, arch, module, name, *source)
            piece.add_done_callback(partial(_note, (function, *source, arch)))
            pieces.append(piece)
    return _all_of(pieces)


def _note(key: tuple[Any, ...], piece: Future[Files]) -> None:
    """Note the files of a kernel that another process has compiled, unless it failed."""
    if piece.exception() is None:
        keep(elsewhere, key, piece.result())


def _all_of(pieces: Sequence[Future[Any]]) -> Future[Any]:
    whole: Future[Any] = Future()
    left, lock = len(pieces), threading.Lock()

    def one_is_done(piece: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            failed = next((error for each in pieces if (error := each.exception()) is not None), None)
            whole.set_result(None) if failed is None else whole.set_exception(failed)

    for each in pieces:
        each.add_done_callback(one_is_done)
    if not pieces:
        whole.set_result(None)
    return whole


def _compile(arch: int, module: str, name: str, given: Signature, options: tuple[tuple[str, Any], ...]) -> Files:
    """Compile a kernel for a device that is another process's; return its files."""
    with aimed_at(arch):
        compiled = compiled_for(getattr(import_module(module), name), given, options)
        return compiled.hash, {each: str(path) for each, path in compiled.metadata_group.items()}


_PLENTY = 1 << 30


def _architecture() -> int:
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
