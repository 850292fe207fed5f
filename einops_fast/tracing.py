"""Whether a call runs or is traced."""

from __future__ import annotations

import sys

__all__ = ["is_tracing"]


def is_tracing() -> bool:
    """Whether torch.compile is tracing the caller (then torch is imported already)."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
