"""What Triton's launcher calls in the end, to queue a kernel past all that it does before."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

__all__ = ["Launch", "keep", "launch_of"]

_MOST_KEPT = 256
"""Of a kernel, the arrays' addresses that something is kept for; then all are forgotten."""

T = TypeVar("T")

_FORMAT = "iiiKKppOOOOOO"
"""What a function that Triton 3.6 writes for a kernel takes before the kernel's arguments."""

_TOGETHER = "3.7"
"""The version whose function is the same for all kernels, and takes their arguments as a tuple."""


class Launch(NamedTuple):
    """How a kernel is queued.

    Attributes:
        queue: takes the numbers of programs, the stream, and what :meth:`arguments` gives.
        head: the kernel and what is fixed about it.
        bare: whether it takes expanded descriptors.
        together: whether it takes the kernel's arguments as a tuple.
    """

    queue: Callable[..., None]
    head: tuple[Any, ...]
    bare: bool
    together: bool

    def arguments(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is queued with the kernel's arguments, constants among them."""
        return (*self.head, given) if self.together else self.head + given


def keep(kept: dict[Any, T], addresses: Any, made: T) -> T:
    """Keep what was made for arrays at some addresses, for the next launch there."""
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[addresses] = made
    return made


def launch_of(compiled: Any) -> Launch:
    """How a kernel is queued that is loaded on its device."""
    return _bare(compiled) or Launch(
        compiled.run, (compiled.function, compiled.packed_metadata, None, None, None), False, False
    )


def _bare(compiled: Any) -> Launch | None:
    """By the function itself; ``None`` if this version of Triton is built otherwise."""
    try:
        import triton
        from triton.backends.nvidia import driver

        launcher = compiled.run
        queue = launcher.launch
        described = compiled.metadata.tensordesc_meta
        if described:
            queue = inspect.getclosurevars(queue).nonlocals["launcher"]
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        if not (callable(queue) and all(described or ())) or scratch or launcher.launch_cooperative_grid:
            return None
        first = compiled.function, False, launcher.launch_pdl
        if getattr(driver, "_BASE_ARGS_FORMAT", None) == _FORMAT:
            return Launch(queue, (*first, None, None, compiled.packed_metadata, *(None,) * 3), True, False)
        if ".".join(triton.__version__.split(".")[:2]) == _TOGETHER:
            signature = launcher.arg_annotations, launcher.kernel_signature
            return Launch(queue, (*first, compiled.packed_metadata, *(None,) * 5, *signature), True, True)
    except (AttributeError, ImportError, KeyError, TypeError):
        pass
    return None
