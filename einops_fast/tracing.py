"""Whether a call runs or is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["ask_torch", "is_followed", "is_tracing"]

_is_compiling: Callable[[], bool] | None = None


def ask_torch(is_compiling: Callable[[], bool], is_followed_now: Callable[[], bool]) -> None:
    """Hand over what torch.compile answers by itself while it traces. Until then it is looked for in each call."""
    global _is_compiling, is_followed
    _is_compiling = is_compiling
    is_followed = is_followed_now


def is_tracing() -> bool:
    """Whether torch.compile is tracing the caller (then torch is imported already)."""
    if _is_compiling is not None:
        return _is_compiling()
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


#: The same of what torch.compile follows line by line, at less expense: it leaves out torch.export's other way, where
#: tensors aren't what they are in other calls. Look it up in this module each time.
is_followed: Callable[[], bool] = is_tracing
