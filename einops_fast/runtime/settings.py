"""The settings that a call may have as arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from einops_fast.runtime import tuning
from einops_fast.runtime.precision import allow_precision, allowed


def settings_hold(autotune: Any, precision: Any) -> bool:
    """Return whether what is given is set already, so that no block of :func:`settings` is needed."""
    # The environment may say what is no mode.
    if autotune is not None and not (type(autotune) is str and autotune == tuning.unchecked_mode() in tuning.MODES):
        return False
    return precision is None or (type(precision) is str and precision == allowed())


@contextmanager
def settings(autotune: Any, precision: Any) -> Iterator[None]:
    """Set what is given of the arguments of :func:`fast_einsum` for a block.

    Raises:
        EinsumError: there is no such mode, or no such precision.
    """
    with ExitStack() as stack:
        if autotune is not None:
            stack.enter_context(tuning.autotune(autotune))
        if precision is not None:
            stack.enter_context(allow_precision(precision))
        yield
