"""The studies by name, and what each of them provides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from einops_fast.profiles import study_contraction, study_einsum, study_overhead
from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.records import Note, Options, Row
from einops_fast.profiles.report import Table

__all__ = ["STUDIES", "Study"]


class Study(Protocol):
    """What is measured in each framework, and the tables that it makes.

    Attributes:
        frameworks: measured unless others are asked for, where they are installed.
        families: the cases by family; ``--cases`` chooses one, and ``--only`` selects from it.
    """

    frameworks: tuple[str, ...]
    families: dict[str, tuple[Case, ...]]

    def measure(self, framework: Framework, options: Options) -> Iterator[Row | Note]: ...

    def tables(self, rows: Sequence[Row]) -> list[Table]: ...


STUDIES: dict[str, Study] = {
    "einsum": study_einsum,
    "contraction": study_contraction,
    "overhead": study_overhead,
}
