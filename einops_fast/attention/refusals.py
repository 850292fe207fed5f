"""Libraries that refuse a call after all, when it is made: which errors say so, and who refused which problem."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from einops_fast.attention.spec import AttentionSpec
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

__all__ = ["forget_refusals", "is_refusal", "refusals_of", "remember_refusal", "warn_of_refusals"]

_NO_REFUSALS = (
    "out of memory",
    "allocate memory",
    "alloc_failed",
    "cuda error",
    "cuda driver error",
    "triton error",
    "execution_failed",
    "internal_error",
)
"""Parts of messages of errors that come of too little memory, or of something that was launched."""

_refused: dict[tuple[AttentionSpec, str], dict[str, str]] = emptied_with_plans({})
"""By problem and device, each implementation that refused it, and its reason."""


def is_refusal(error: BaseException, kind: type[Exception] = RuntimeError) -> bool:
    """Return whether a library says with an error that it can't do a call, and hasn't begun with it.

    Args:
        error: the error.
        kind: what refusals of the library are.
    """
    if not isinstance(error, kind) or isinstance(error, MemoryError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if any(part in text for part in _NO_REFUSALS):
            return False
        cause = cause.__cause__
    return True


def refusals_of(spec: AttentionSpec, device: str) -> Mapping[str, str]:
    """Return the reasons of the implementations that have refused a problem, by name."""
    return _refused.get((spec, device), {})


def remember_refusal(spec: AttentionSpec, device: str, name: str, error: BaseException) -> None:
    """Leave an implementation out of the choice for a problem."""
    reason = f"it refused when it was called: {str(error).strip().partition(chr(10))[0]}"
    keep(_refused, (spec, device), {**refusals_of(spec, device), name: reason})


def forget_refusals(spec: AttentionSpec, device: str) -> None:
    """Ask all implementations again: nobody else can do a problem."""
    _refused.pop((spec, device), None)


def warn_of_refusals(spec: AttentionSpec, device: str, instead: str) -> None:
    """Warn that an implementation computes a problem in place of those that refused it."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals_of(spec, device).items())
    warnings.warn(f"attention by {reasons}. Such calls go to {instead}", RuntimeWarning, stacklevel=5)
