"""Whether a call runs or is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def _asked_of_torch() -> bool:
    if "torch" not in sys.modules:  # in half the time of asking for it
        return False
    torch = sys.modules["torch"]
    return torch.compiler.is_compiling() or torch._guards.TracingContext.try_get() is not None


# Called while torch.compile traces. If it followed the lines, it would go through all modules, which may change.
_asked_of_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


# A function from the start: torch.compile can't remember that it has read something else here, if torch is asked for
# the first time by what it traces.
is_compiling: Callable[[], bool] = _asked_of_torch
"""As :func:`is_tracing`, with one call less. Look it up in this module each time."""


def ask_torch(is_compiling_now: Callable[[], bool], is_followed_now: Callable[[], bool]) -> None:
    """Hand over what torch.compile answers by itself while it traces. Until then it is looked for in each call."""
    global is_compiling, is_followed
    is_compiling = is_compiling_now
    is_followed = is_followed_now


def is_tracing() -> bool:
    """Whether torch.compile is tracing the caller (then torch is imported already)."""
    return is_compiling()


#: The same of what torch.compile follows line by line, at less expense: it leaves out torch.export's other way, where
#: tensors aren't what they are in other calls. Look it up in this module each time.
is_followed: Callable[[], bool] = is_tracing


def is_sharded(array: Any) -> bool:
    """Return whether an array of a call that torch.compile traces is a DTensor."""
    # By the name of the type, which the compiler compares anyhow: an attribute would be one more guard.
    return type(array).__name__ == "DTensor"


def outside_of_graphs(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function does outside of the graphs of torch.compile, which ends one here and begins another."""
    disable = sys.modules["torch"].compiler.disable
    return disable(function, reason="calls on DTensors run eagerly")(*arguments, **options)


outside_of_graphs._torchdynamo_disable = True  # type: ignore[attr-defined]


def known(condition: Any) -> bool:
    """Return whether a condition holds for all sizes that a traced graph is for, without adding a guard to the graph.

    Of numbers, the condition is its own answer. Of the tensors that torch.jit.trace has in place of sizes, none holds.
    """
    if not is_tracing() and (isinstance(condition, bool) or hasattr(condition, "ndim")):
        return condition is True
    return bool(sys.modules["torch"].fx.experimental.symbolic_shapes.statically_known_true(condition))
