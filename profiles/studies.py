"""The studies by name, and what each of them provides. To add one is to add its entry to :data:`STUDIES`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from einops_fast.profiles.attention import study as study_attention
from einops_fast.profiles.cases import Named
from einops_fast.profiles.contraction import study as study_contraction
from einops_fast.profiles.einsum import study as study_einsum
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.ops import study as study_ops
from einops_fast.profiles.overhead import study as study_overhead
from einops_fast.profiles.reporting.records import Options, Record, Row
from einops_fast.profiles.reporting.report import Table

__all__ = ["STUDIES", "Study"]


class Study(Protocol):
    """What is measured in each framework, and the tables that it makes.

    Attributes:
        frameworks: measured unless others are asked for, where they are installed.
        families: the cases by family; ``--cases`` chooses one, and ``--only-run`` selects from it.
        about: what it measures, in a few words.
        own_cases: whether ``--cases`` may also be a file of einsums (see
            :mod:`einops_fast.profiles.contraction.own_cases`).
        peers: what ours can be measured against, for ``--peers``.
    """

    frameworks: tuple[str, ...]
    about: str
    own_cases: bool
    peers: tuple[str, ...]

    @property
    def families(self) -> Mapping[str, tuple[Named, ...]]: ...

    def measure(self, framework: Framework, options: Options) -> Iterator[Record]: ...

    def tables(self, rows: Sequence[Row]) -> list[Table]: ...


STUDIES: dict[str, Study] = {
    "einsum": study_einsum,
    "contraction": study_contraction,
    "overhead": study_overhead,
    "attention": study_attention,
    "ops": study_ops,
}
