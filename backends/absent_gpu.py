"""A GPU that isn't here: what plans ask of it while kernels are compiled for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from einops_fast.backends.capabilities import GENERATIONS, shared_memory
from einops_fast.errors import EinsumError

__all__ = ["AbsentGpu", "absent_gpu", "aimed", "aiming"]

_MODELS = {
    (8, 0): ("A100", 108),
    (8, 6): ("A10", 72),
    (8, 9): ("L40", 142),
    (9, 0): ("H200", 132),
    (10, 0): ("B200", 148),
    (12, 0): ("RTX 5090", 170),
}
"""A model of each generation, and its multiprocessors."""


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
    """Return the GPU that stands for a compute capability.

    Raises:
        EinsumError: there are no kernels for it.

    Example:
        >>> absent_gpu('sm_90').name
        'H200'
    """
    found = re.fullmatch(r"sm_(\d+)(\d)", text)
    capability = (int(found[1]), int(found[2])) if found else (0, 0)
    if capability not in _MODELS:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in GENERATIONS)
        raise EinsumError(f"kernels are compiled for {known}, not for {text!r}")
    return AbsentGpu(_MODELS[capability][0], capability, _MODELS[capability][1])


@contextmanager
def aiming(gpu: AbsentGpu) -> Iterator[None]:
    """Have tensors without memory be planned, in this block, as if they were on a GPU that isn't here."""
    before = _aim.set(gpu)
    try:
        yield
    finally:
        _aim.reset(before)
