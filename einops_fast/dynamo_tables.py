"""Tables of NumPy's functions that torch.compile makes once: native functions have to be there, patched or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["know_functions", "know_native"]


def know_functions() -> None:
    """Have the tables made, if there is a compiler, while NumPy's functions are its own."""
    _tables()


def know_native(native: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Add a function of NumPy's that is back in its place, where the tables were made while it wasn't there."""
    found = _tables()
    # These aren't torch's public names: where they are others, torch.compile breaks its graphs there.
    with suppress(AttributeError, KeyError, TypeError):
        if found is not None and native not in found:
            found[native] = found[replacement]
            sys.modules["torch._dynamo.trace_rules"]._numpy_function_ids.add(id(native))


def _tables() -> dict[Callable[..., Any], Any] | None:
    """What torch has in place of NumPy's functions, by these; ``None`` as long as nothing is compiled."""
    names = "torch._dynamo.variables.misc", "torch._dynamo.trace_rules"
    if not all(name in sys.modules for name in names):
        return None
    misc, rules = (sys.modules[name] for name in names)
    with suppress(AttributeError):
        _ = 0 in rules._numpy_function_ids  # made when it is asked
        known: dict[Callable[..., Any], Any] = misc.get_np_to_tnp_map()
        return known
    return None
