"""Whether choices are made by measurement: the mode, from an argument, a ``with`` block or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, get_args

from einops_fast.annotations import Autotune
from einops_fast.errors import EinsumError
from einops_fast.runtime.blocks import Setting, holding

MODES: tuple[str, ...] = get_args(Autotune)
"""What :func:`autotune` takes."""

ANY_SIZE = "any size"
"""The mode of calls that take, of the kernels along rows, those that serve any size. The runtime alone sets it."""

T = TypeVar("T")

_VARIABLE = "EINOPS_FAST_AUTOTUNE"

# The default may be wrong: who imports the package needn't ever ask for it, so that is said at the first use.
_mode: ContextVar[str] = ContextVar("einops_fast_autotune", default=os.environ.get(_VARIABLE) or "auto")

#: The mode of a call without an argument, to compare with one that :func:`current_mode` gave before.
unchecked_mode = _mode.get


def autotune(mode: Autotune) -> Setting:
    """Set how choices are made.

    A call alone holds from then on; ``with autotune(...):`` holds in the block, and a function that is decorated with
    it has it in its calls (a generator, or an ``async`` one, while it runs). Blocks nest, and each thread and each
    asyncio task has its own, as with ``torch.set_grad_enabled``: a task inherits the mode of where it is created, while
    a new thread starts with the default. That is what the environment variable ``EINOPS_FAST_AUTOTUNE`` said when the
    package was imported, or else ``'auto'``; it holds for all threads.

    In a function that torch.compile compiles, a block holds for what our operator contracts in it, as a constant. What
    is outside of all its blocks has the mode that holds where the compiled function is called; so have the operators of
    :mod:`einops_fast.ops` and of attention.

    Args:
        mode: ``'auto'`` lets no call wait: it begins with the framework's own functions; kernels are compiled in other
            processes when they pay, and calls find out which way is the fastest while they run. ``'wait'`` compiles and
            measures at the first call, where the predicted times are too close to choose by; tiles of
            :mod:`einops_fast.ops`, where arrays are large. ``'never'`` times nothing; what was measured before, and
            is on disk, may still be used. ``'always'`` measures every choice at the first call, takes nothing from
            disk, and writes what it finds there. ``'reproducible'`` chooses by the problem and the model of the device
            alone: neither by what was measured, here or earlier, nor by how often a call came. So a call gives the
            same bits from the first time on, in each process, and on each rank of a job whose devices are alike;
            attention's gradients are summed in one order, as with ``deterministic=True``. Kernels are compiled at the
            first call.

    Raises:
        EinsumError: there is no such mode.

    Example:
        >>> import einops_fast
        >>> from einops_fast.runtime.tuning import current_mode
        >>> with einops_fast.autotune('never'):
        ...     current_mode()
        'never'
    """
    return holding(_mode, _checked(mode, "the mode of autotune"), "autotune")


def by_any_size(run: Callable[..., T]) -> Callable[..., T]:
    """Return what calls a function in the mode :data:`ANY_SIZE`, in less time than a block takes."""

    def inside(*arguments: Any) -> T:
        before = _mode.set(ANY_SIZE)
        try:
            return run(*arguments)
        finally:
            _mode.reset(before)

    return inside


def current_mode(override: str | None = None) -> str:
    """The mode of a call: its own argument, else the innermost :func:`autotune` block's, else the default."""
    # What a block has set is known to be right.
    return _checked(_mode.get(), _VARIABLE) if override is None else _checked(override, "the mode of autotune")


def is_reproducible() -> bool:
    """Return whether a call has to give the same bits each time and in each process."""
    return unchecked_mode() == "reproducible"


def _checked(mode: str, what: str) -> str:
    if mode is not ANY_SIZE and not (isinstance(mode, str) and mode in MODES):
        *others, last = map(repr, MODES)
        raise EinsumError(f"{what} is one of {', '.join(others)} and {last}, not {mode!r}")
    return mode


# It is called while tracing, so that what it raises is told.
_checked._dynamo_marked_constant = True  # type: ignore[attr-defined]
