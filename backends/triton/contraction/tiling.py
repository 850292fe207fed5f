"""What problems and tilings of a step's kernels have in common, and how tilings worth trying are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import Protocol, TypeVar

from einops_fast.backends.triton.device.tiling import Axis, Role, needs_64_bits
from einops_fast.planning.epilogue import Epilogue

__all__ = ["MatrixTiling", "Product", "Tiling", "even_parts", "listed"]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """What a kernel is specialised for.

    Attributes:
        split: into how many parts the summed range is cut; each writes a result of its own.
        wide: offsets need 64 bits.
        warps, stages: of a program.
        epilogue: what is done to the sums before they are stored; not where the summed range is cut.
        leads, follows: the next kernel may begin while this one ends; this one may, while that before it does.
    """

    split: int = 1
    wide: bool = False
    warps: int = 4
    stages: int = 1
    epilogue: Epilogue | None = None
    leads: bool = False
    follows: bool = False


@dataclass(frozen=True)
class MatrixTiling(Tiling):
    """What a kernel is specialised for whose program computes tiles of rows × columns.

    Attributes:
        batch: axes of which a program has one index.
        rows, columns: the axes of the first operand and of the last one; the result has both.
        swath: tiles of rows that are worked on together, for the L2 cache.
        scattered: the result's contiguous axis is not where the product has it.
        precision: of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
    """

    batch: tuple[Axis, ...]
    rows: Role
    columns: Role
    _: KW_ONLY
    swath: int = 8
    scattered: bool = False
    precision: str = "ieee"

    @property
    def batches(self) -> int:
        """Elements of the batch."""
        return prod(axis.size for axis in self.batch)


@dataclass(frozen=True)
class Product:
    """Loops of a product of matrices by role: those of the result, and in ``summed`` the others."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]

    @property
    def summed(self) -> tuple[tuple[Axis, ...], ...]:
        """The axes that two neighbours share, for each two."""
        raise NotImplementedError

    @cached_property
    def roles(self) -> tuple[tuple[Axis, ...], ...]:
        """All axes but those of the batch."""
        return self.rows, self.columns, *self.summed

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of batch, rows, columns and each of the summed roles."""
        return tuple([prod([axis.size for axis in role]) for role in (self.batch, *self.roles)])

    @cached_property
    def wide(self) -> bool:
        """Whether an offset, or a position among a role's axes, may not fit in 32 bits."""
        return needs_64_bits(sum(self.roles, ()), self.extents)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def listed(found: Iterable[T], seconds: Callable[[T], float], name: str = "") -> Iterable[tuple[float, T]]:
    """Return tilings with predicted seconds, fastest first; if a name is given, find only those of this name.

    Args:
        found: the tilings, some maybe twice.
        seconds: predicts the time of one.
        name: of the tilings that are wanted, if not all are.
    """
    if name:
        return ((seconds(tiling), tiling) for tiling in found if tiling.name == name)
    return sorted([(seconds(tiling), tiling) for tiling in dict.fromkeys(found)], key=itemgetter(0))


def even_parts(steps: int, most: int) -> int:
    """Return into how many parts, at most, steps are cut so that none is empty."""
    return -(-steps // -(-steps // most))
