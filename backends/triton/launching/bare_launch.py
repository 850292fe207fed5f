"""How a compiled kernel is queued past all that Triton's launcher does before it calls the driver."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

_FORMAT = "iiiKKppOOOOOO"
"""The arguments before a kernel's own of the function that Triton 3.6 writes for a kernel."""

_TOGETHER = "3.7"
"""The version whose function is the same for all kernels, and takes their arguments as a tuple."""


class Launch(NamedTuple):
    """How a kernel is queued: ``queue`` takes the numbers of programs, the stream, and what :meth:`arguments` gives."""

    queue: Callable[..., None]
    head: tuple[Any, ...]  # the kernel and what is fixed about it
    bare: bool  # whether it takes expanded descriptors
    together: bool  # whether it takes the kernel's arguments as a tuple
    boxes: tuple[Any, ...] = ()  # how Triton expands each descriptor that the kernel takes

    def arguments(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what is queued with the kernel's arguments, constants among them."""
        return (*self.head, given) if self.together else self.head + given


def launch_of(compiled: Any) -> Launch:
    """Return how a kernel is queued that is loaded on its device."""
    return _bare(compiled) or Launch(
        compiled.run, (compiled.function, compiled.packed_metadata, None, None, None), False, False
    )


def _bare(compiled: Any) -> Launch | None:
    """Return how Triton's launcher does it in the end; ``None`` if this version of Triton is built otherwise."""
    try:
        import triton
        from triton.backends.nvidia import driver

        launcher = compiled.run
        queue = launcher.launch
        boxes = tuple(compiled.metadata.tensordesc_meta or ())
        if boxes:
            queue = inspect.getclosurevars(queue).nonlocals["launcher"]
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        if not (callable(queue) and all(boxes)) or scratch or launcher.launch_cooperative_grid:
            return None
        first = compiled.function, False, launcher.launch_pdl
        if getattr(driver, "_BASE_ARGS_FORMAT", None) == _FORMAT:
            return Launch(queue, (*first, None, None, compiled.packed_metadata, *(None,) * 3), True, False, boxes)
        if ".".join(triton.__version__.split(".")[:2]) == _TOGETHER:
            signature = launcher.arg_annotations, launcher.kernel_signature
            return Launch(queue, (*first, compiled.packed_metadata, *(None,) * 5, *signature), True, True, boxes)
    except (AttributeError, ImportError, KeyError, TypeError):
        pass
    return None
