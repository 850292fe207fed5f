"""Which modules a caller means: by name, by class, by a pattern of either."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from einops_fast.errors import EinsumError
from einops_fast.nn.injection.replacement import original_class

__all__ = ["selected"]


def selected(
    modules: dict[str, nn.Module], only: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> dict[str, str]:
    """Of the modules that are not meant, by name, why not.

    Raises:
        EinsumError: a pattern fits no module.
    """
    wanted = None if only is None else _matched(modules, only, "only")
    unwanted = set() if exclude is None else _matched(modules, exclude, "exclude")
    found = {name: "not among `only`" for name in modules if wanted is not None and name not in wanted}
    return {**found, **dict.fromkeys(unwanted, "excluded")}


def _matched(modules: dict[str, nn.Module], patterns: str | Sequence[str], argument: str) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        here = {name for name, module in modules.items() if _fits(pattern, name, module)}
        if not here:
            raise EinsumError(f"{argument}: {pattern!r} fits no module, neither by its name nor by its class")
        found |= here
    return found


def _fits(pattern: str, name: str, module: nn.Module) -> bool:
    """By its class, by its name, or by that of a module around it."""
    steps = name.split(".")
    around = [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
    return fnmatchcase(original_class(module).__name__, pattern) or any(fnmatchcase(each, pattern) for each in around)
