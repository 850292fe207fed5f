"""A GPU that isn't here: what plans ask of it while kernels are compiled for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from einops_fast.backends.capabilities import GENERATIONS, shared_memory
from einops_fast.errors import EinsumError
from einops_fast.vocabulary import closest

_MODELS = {
    "a100": ("A100", (8, 0), 108),
    "a10": ("A10", (8, 6), 72),
    "l40": ("L40", (8, 9), 142),
    "h200": ("H200", (9, 0), 132),
    "h100": ("H100", (9, 0), 132),
    "b200": ("B200", (10, 0), 148),
    "rtx5090": ("RTX 5090", (12, 0), 170),
}
"""Models, compute capabilities and multiprocessors; the first one of a capability stands for it."""


class AbsentGpu(NamedTuple):
    """A model of a compute capability."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def arch(self) -> int:
        """The compute capability as Triton has it, 90 for 9.0."""
        return 10 * self.capability[0] + self.capability[1]

    @property
    def limits(self) -> tuple[int, int]:
        """Bytes of shared memory that a program may have, and multiprocessors."""
        return shared_memory(self.capability), self.multiprocessors


_aim: ContextVar[AbsentGpu | None] = ContextVar("einops_fast_aim", default=None)

#: The GPU that isn't here and that kernels are compiled for now; ``None`` for the one that is.
aimed = _aim.get


def absent_gpu(text: str) -> AbsentGpu:
    """Return the GPU of this name, or the one that stands for a compute capability.

    Raises:
        EinsumError: there are no kernels for it.

    Example:
        >>> absent_gpu('sm_90').name, absent_gpu('H100').capability
        ('H200', (9, 0))
    """
    models = {name: AbsentGpu(*each) for name, each in _MODELS.items()}
    by_arch = {f"sm_{each.arch}": each for each in reversed(models.values())}
    found = (by_arch | models).get(text.lower().replace(" ", ""))
    if found is None:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in GENERATIONS)
        others = "" if text.startswith("sm_") else f" and {', '.join(_MODELS)}"
        raise EinsumError(f"kernels are compiled for {known}{others}, not for {text!r}{closest(text, _MODELS)}")
    return found


@contextmanager
def aiming(gpu: AbsentGpu) -> Iterator[None]:
    """Have tensors without memory be planned, in this block, as if they were on a GPU that isn't here."""
    before = _aim.set(gpu)
    try:
        yield
    finally:
        _aim.reset(before)
