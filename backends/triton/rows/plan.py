"""What the ways to run one kind of call have in common, and how they become kernels with all fixed but the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import gcd
from typing import Any

from einops_fast.backends.triton.launching.compiling import ONES
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.cluster_tilings import Share, cluster_tilings, in_parts
from einops_fast.backends.triton.rows.column_sums import column_sums
from einops_fast.backends.triton.rows.contest import NONE, Call, Contest, Site, Step, Steps, Way
from einops_fast.backends.triton.rows.rows import RowFeatures, Rows, RowTiling, typical
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import VECTOR
from einops_fast.planning.target import Operand

Operands = Sequence[Any]
"""An :class:`~einops_fast.planning.target.Operand` for each array, ``None`` where there is none."""

_CLUSTERS_LEAD = 12288
"""Columns up to which the kernels with one program for a row are as fast, on an H200."""


@dataclass(frozen=True)
class RowCall:
    """One kind of call of an operator, which has a name for people.

    ``places`` gives strides of rows, or of parts of them, as the kernels take them: each a tuple, since where others
    are among them, Triton 3.6 loses the strides that are 1 in loops. ``operands`` are the arrays of the call, in the
    kernels' order; of the first one's dtype is what tiles are of.
    """

    site: Site
    name: str
    rows: Rows
    features: RowFeatures
    places: Callable[[Rows], Any]
    operands: Operands
    in_place: bool = False

    @cached_property
    def alike(self) -> Rows:
        """Rows that stand for these when ways are chosen."""
        return typical(self.rows, self.site.any_size)

    @property
    def size(self) -> int:
        """Bytes of an element of the first array."""
        return size_of(self.operands[0])

    @property
    def acc(self) -> str:
        """The dtype of sums."""
        return "float64" if self.features.double else "float32"

    def kernel(
        self,
        function: Any,
        tiling: RowTiling,
        grid: tuple[int, int],
        numbers: Sequence[Any],
        features: RowFeatures | None = None,
        **constants: Any,
    ) -> KernelCall:
        """Return a kernel with tiles of these rows.

        It takes arrays, sizes and strides of rows, their number, their length, ``numbers``, features, rows and columns
        of a tile, ``constants``.
        """
        rows, f, even = self.rows, features or self.features, None
        if self.site.any_size:
            # No more is known of numbers than that what a thread reads at once lies together.
            most, even = VECTOR // self.size, ONES
            f = replace(f, unit=min(f.unit, most), across=min(f.across, most))
        tail = rows.sizes, self.places(rows), rows.count, rows.columns, *numbers
        constants = {"f": f, "together": tiling.rows, "block": tiling.block, **constants}
        registers = tiling.registers or None
        return KernelCall(function, grid, tail, constants, tiling.warps, 1, registers=registers, even=even)

    def way(
        self,
        function: Any,
        sums: int,
        tiling: RowTiling,
        numbers: Sequence[Any],
        features: RowFeatures | None = None,
    ) -> Way:
        """Return the way of whole rows, of blocks one after the other, or of parts of rows.

        The kernel takes the call's arrays and so many ``sums`` more, in which parts of rows leave something for each
        other in a first step.
        """
        if self.site.any_size:
            tiling = tiling.without_empty_parts(self.rows.columns)
        parts, count = tiling.parts, len(self.operands)
        grid, numbers = (-(-self.rows.count // tiling.rows), parts), (tiling.part(self.rows.columns), *numbers)
        kernels = [
            self.kernel(
                function, tiling, grid, numbers, features, whole=tiling.whole, pieces=tiling.pieces, parts=parts,
                step=step, stages=tiling.stages,
            )
            for step in ((1, 2) if parts > 1 else (0,))
        ]  # fmt: skip
        if parts == 1:
            return Way(tiling.name, [(kernels[0], (*range(count), *[NONE] * sums))])
        work = [(self.rows.count * parts, self.acc)] * sums
        return Way(tiling.name, [(kernel, range(count + sums)) for kernel in kernels], work)

    def clusters(
        self,
        function: Any,
        shares: Sequence[Share],
        whole: Sequence[int],
        items: Sequence[int],
        numbers: Sequence[Any],
        features: Callable[[Rows], RowFeatures],
        steps: Callable[[KernelCall, int], Steps] | None = None,
    ) -> list[Way]:
        """Return the ways of long rows through clusters, see :mod:`~einops_fast.backends.triton.rows.cluster`.

        The kernel takes the call's arrays, sizes of the axes that count whole rows, strides of parts, the number of
        rows, their length, that of a part, ``numbers``, features of parts and the tiling. ``shares``, ``whole`` and
        ``items`` are as for :func:`~einops_fast.backends.triton.rows.cluster_tilings.cluster_tilings`; ``steps`` are
        everything that is launched, if that is more than a kernel with so many clusters.
        """
        rows, ways = self.rows, []
        for tiling in cluster_tilings(rows, whole, items, shares, self.site.limits[0]):
            share, parts = tiling.share, in_parts(rows, tiling.parts)
            tail = parts.sizes[:-1], self.places(parts), rows.count, rows.columns, parts.columns, *numbers
            options = {"f": features(parts), "t": tiling}, share.warps, 1, tiling.ctas, share.registers

            def made(clusters: int, tail: Any = tail, options: Any = options) -> Steps:
                kernel = KernelCall(function, (clusters, 1), tail, *options)
                return ([(kernel, range(len(self.operands)))], ()) if steps is None else steps(kernel, clusters)

            clusters = tiling.clusters(rows.count, self.site.limits[1])
            ways.append(Way(tiling.name, *made(clusters), made if tiling.several else None))
        return ways

    def added_up(self, count: int, results: Sequence[int]) -> tuple[list[int], list[tuple[int, str]], list[Step]]:
        """Return what adds up columns of which ``count`` programs have made a sum each: places, workspaces, steps.

        ``results`` are positions of one or two arrays of total sums, or ``NONE``.
        """
        columns, wanted = self.rows.columns, [at for at in results if at != NONE]
        work = [(count * columns, self.acc)] * len(wanted)
        first = len(self.operands)
        sums = dict(zip(wanted, range(first, first + len(wanted)), strict=True))
        arrays = *sums.values(), *[NONE] * (2 - len(sums)), *wanted, *[NONE] * (2 - len(sums))
        steps: list[Step] = [(column_sums(count, columns, self.site.any_size), arrays)] if wanted else []
        return [sums.get(at, NONE) for at in results], work, steps

    def contest(self, ways: Sequence[Way], clusters: Sequence[Way] = (), **details: Any) -> Contest:
        """Return the contest of ways of one program for a row or a part of it, the rule's first, and of clusters.

        These are the rule for long rows that keep all processors busy. ``details`` also make a difference for time.
        One way alone, of a program for a row, serves any size.
        """
        if self.site.any_size:
            ways, clusters = ways[:1], ()
        lead = self.rows.columns > _CLUSTERS_LEAD and 2 * self.rows.count >= self.site.limits[1]
        return Contest(self.site, self._call(details), [*clusters, *ways] if lead else [*ways, *clusters])

    def _call(self, details: dict[str, Any]) -> Call:
        """Return what a measurement is kept by. Numbers that aren't whole make no difference for time, but for 0."""
        rows = self.alike
        values = {each.name: getattr(self.features, each.name) for each in fields(self.features)}
        named = [
            name if value is True else value
            for name, value in values.items()
            if value is True or isinstance(value, str)
        ]
        values = {name: bool(value) if isinstance(value, float) else value for name, value in values.items()}
        strides = [" ".join(map(_stride, each)) for each in rows.strides]
        apart = [] if rows.strides[0][-1] == 1 else [f"strides {strides[0]}"]
        text = f"{self.name}, {'·'.join(map(str, rows.sizes))} rows of {rows.columns}"
        dtypes = [None if each is None else each.dtype for each in self.operands]
        return Call(
            ", ".join([text, *named, *apart]),
            {"dtype": dtypes[0], "arrays": dtypes, "features": values, "strides": strides, **details},
            self.in_place,
        )


def _stride(stride: int) -> str:
    """Return a stride as far as it matters which addresses are multiples of how much."""
    return str(stride) if stride < 2 else f"{gcd(stride, 16)}n"


def size_of(operand: Operand | None) -> int:
    """Return the bytes of an element."""
    return 0 if operand is None else ITEM_SIZES[operand.dtype]


def strides_of(operand: Operand | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array, or of none, when it is broadcast to a shape."""
    own = () if operand is None else tuple(zip(operand.shape, operand.strides, strict=True))
    to = shape[len(shape) - len(own) :]
    return (0,) * (len(shape) - len(own)) + tuple(
        [stride if size == full else 0 for (size, stride), full in zip(own, to, strict=True)]
    )
