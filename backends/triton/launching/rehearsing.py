"""Rehearse a call: all that it would launch is planned and listed, and nothing runs.

Arrays of a rehearsal have no memory. What a call would compile is known then, and can be compiled elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from einops_fast.backends.triton.launching.compiling import Signature, compiled_for, is_compiled
from einops_fast.backends.triton.launching.elsewhere import aimed_at, architecture
from einops_fast.runtime import background

if TYPE_CHECKING:
    from einops_fast.backends.triton.launching.kernel_call import KernelCall

__all__ = ["Rehearsed", "compile_elsewhere", "is_rehearsal", "rehearsing", "take_down"]


class Rehearsed(NamedTuple):
    """A kernel that a call would launch.

    Attributes:
        call: the kernel, with everything fixed but its arrays.
        arrays: an :class:`~einops_fast.backends.triton.launching.arrays.Array` in place of each.
    """

    call: KernelCall
    arrays: tuple[Any, ...]

    def compile(self) -> None:
        """Compile and load it on the current device."""
        self.call.compile_for(*self.arrays)

    def is_loaded(self) -> bool:
        """Return whether that is done."""
        return is_compiled(*self.call.source_for(*self.arrays))


class _Thread(threading.local):
    launches: list[Rehearsed] | None = None


_thread = _Thread()


@contextmanager
def rehearsing() -> Iterator[list[Rehearsed]]:
    """List what calls in this block would launch, in this thread."""
    launches: list[Rehearsed] = []
    before, _thread.launches = _thread.launches, launches
    try:
        yield launches
    finally:
        _thread.launches = before


def is_rehearsal() -> bool:
    """Return whether this thread rehearses a call."""
    return _thread.launches is not None


def take_down(call: KernelCall, arrays: tuple[Any, ...]) -> bool:
    """Return whether this is a rehearsal; then the kernel is listed."""
    if _thread.launches is None:
        return False
    _thread.launches.append(Rehearsed(call, arrays))
    return True


def compile_elsewhere(launches: Sequence[Rehearsed]) -> list[Future[Any]]:
    """Have kernels compiled for the current device in other processes, and return what tells when each is done.

    Kernels of modules can be; others are compiled when they're loaded.
    """
    arch = architecture()
    sources = {each.call.source_for(*each.arrays): None for each in launches if not each.is_loaded()}
    pieces = []
    for source in sources:
        module, name = source[0].__module__, source[0].__name__
        if getattr(import_module(module), name, None) is source[0]:
            pieces.append(background.submit(_compile, arch, module, name, *source[1:]))
    return pieces


def _compile(arch: int, module: str, name: str, given: Signature, options: tuple[tuple[str, Any], ...]) -> None:
    """Compile a kernel for a device that is another process's, which then finds it in Triton's cache."""
    with aimed_at(arch):
        compiled_for(getattr(import_module(module), name), given, options)
