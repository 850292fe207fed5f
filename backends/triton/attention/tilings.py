"""Tiles worth trying for a kernel of attention, the first one the default."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tiling"]


@dataclass(frozen=True)
class Tiling:
    """Tiles of one kernel.

    Attributes:
        block_m: queries.
        block_n: keys.
        warps, stages: of a program.
        packed: a tile's rows are queries of all batch elements that share k and v.
        parts: into how many the keys are cut; each is worked on by programs of its own.
    """

    block_m: int
    block_n: int
    warps: int = 4
    stages: int = 3
    packed: bool = False
    parts: int = 1
