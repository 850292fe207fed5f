"""Triton's interpreter, without a search that takes a third of its time.

Whenever one function of a kernel calls another, it goes through everything that ``triton.language`` has, to put its
own functions where those are that only a compiler can call. Which ones these are doesn't change.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def remember_builtins() -> None:
    """Let the interpreter look once for what it replaces; the same is replaced at the same times."""
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def names(module: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(module) if core.is_builtin(member)]

    def patch(module: Any, builder: Any, scope: Any) -> None:
        for name in names(module):
            member = getattr(module, name)
            if core.is_builtin(member):
                interpreter._patch_attr(module, name, member, builder, scope)

    # The first search is now, before anything is replaced.
    for module in (core, core.tensor, core.tensor_descriptor_base):
        names(module)
    interpreter._patch_builtin = patch
