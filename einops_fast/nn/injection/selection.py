"""Which modules a caller means: by name, by class, by a pattern of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from einops_fast.errors import EinsumError

__all__ = ["selected"]


def selected(
    kinds: Mapping[str, tuple[str, ...]], only: str | Sequence[str] | None, exclude: str | Sequence[str] | None
) -> dict[str, str]:
    """Of the modules that are not meant, by name, why not."""
    wanted = None if only is None else _matched(kinds, only, "only")
    unwanted = set() if exclude is None else _matched(kinds, exclude, "exclude")
    found = {name: "not among `only`" for name in kinds if wanted is not None and name not in wanted}
    return {**found, **dict.fromkeys(unwanted, "excluded")}


def _matched(kinds: Mapping[str, tuple[str, ...]], patterns: str | Sequence[str], argument: str) -> set[str]:
    found: set[str] = set()
    given: list[Any] = list(patterns) if isinstance(patterns, (list, tuple, set, frozenset)) else [patterns]
    for pattern in given:
        if not isinstance(pattern, str):
            raise EinsumError(f"{argument} takes names of modules and of classes, as text, not {pattern!r}")
        here = {name for name, classes in kinds.items() if _fits(pattern, name, classes)}
        if not here:
            raise EinsumError(f"{argument}: {pattern!r} fits no module, neither by its name nor by its class")
        found |= here
    return found


def _fits(pattern: str, name: str, classes: tuple[str, ...]) -> bool:
    """By its class, by its name, or by that of a module around it."""
    steps = name.split(".")
    around = [".".join(steps[:end]) for end in range(1, len(steps) + 1)]
    return any(fnmatchcase(each, pattern) for each in (*classes, *around))
