"""The ways to launch the kernels of layer norm and RMS norm, also after dropout and a sum, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.candidates import (
    column_tilings,
    gradient_tilings,
    row_call,
    row_tilings,
    sums_tilings,
    typical,
)
from einops_fast.backends.triton.rows.cluster_tilings import (
    CENTRED_NORM,
    GRADIENTS_OF_NORM,
    NORM,
    NORM_OF_SUM,
    ClusterTiling,
    cluster_tilings,
    in_parts,
)
from einops_fast.backends.triton.rows.cluster_way import ClusterWay, cluster_call, fit, with_clusters
from einops_fast.backends.triton.rows.column_sums import column_sums
from einops_fast.backends.triton.rows.contest import Contest, Launch, Way
from einops_fast.backends.triton.rows.norm.cluster import norm_cluster_kernel
from einops_fast.backends.triton.rows.norm.cluster_gradient import norm_gradient_cluster_kernel
from einops_fast.backends.triton.rows.norm.gradient import (
    norm_columns_kernel,
    norm_gradient_kernel,
    norm_row_sums_kernel,
)
from einops_fast.backends.triton.rows.norm.kernel import NormFeatures, NormStrides, norm_kernel
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, dropping, in_fours, rows_of
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import Strides, contiguous_strides

__all__ = ["NormProblem", "norm_contest", "norm_gradient_contest"]


_STATISTICS = 2
"""Which of the arrays has one element for each row."""


@dataclass(frozen=True)
class NormProblem:
    """What the result and its gradients have in common.

    Attributes:
        shape: of what is normalised.
        dim: the axis along a row.
        centred: the mean is taken off.
        eps: added to the variance.
        drop: probability of dropping an element.
        dtype: of what is read.
        given: which tensors there are, for people.
    """

    shape: Strides
    dim: int
    centred: bool
    eps: float
    drop: float
    dtype: str
    given: str

    def rows(self, strides: Sequence[Strides | None]) -> Rows:
        """With those of arrays, if they are there, and then of the places of elements in C order."""
        nowhere = (0,) * len(self.shape)
        all_strides = [nowhere if each is None else each for each in strides]
        return rows_of(self.shape, self.dim, (*all_strides, contiguous_strides(self.shape)))

    def features(self, rows: Rows) -> NormFeatures:
        double, arrays = self.dtype == "float64", range(len(rows.strides))
        return NormFeatures(
            len(rows.sizes), self.eps, self.centred, self.drop > 0, in_fours(rows, rows.strides[-1]), rows.wide, double,
            self.drop if double else 0.0, rows.unit(at for at in arrays if at != _STATISTICS),
            # Elements are numbered only where some are dropped.
            rows.across(arrays if self.drop else arrays[:-1]),
        )  # fmt: skip

    @property
    def acc(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def name(self) -> str:
        return f"{'layer' if self.centred else 'rms'} norm{self.given}"


class _Rows(Way):
    """The result: whole rows, blocks one after the other, or parts of rows."""

    def __init__(
        self, features: NormFeatures, rows: Rows, tiling: RowTiling, places: NormStrides, drop: Any, acc: str
    ) -> None:
        self.name = tiling.name
        self._partial, self._acc = rows.count * tiling.parts, acc
        tail = rows.sizes, places, rows.count, rows.columns, tiling.part(rows.columns), drop
        constants = {
            "f": features, "together": tiling.rows, "block": tiling.block, "whole": tiling.whole,
            "pieces": tiling.pieces, "parts": tiling.parts,
        }  # fmt: skip
        grid = -(-rows.count // tiling.rows), tiling.parts
        self._steps = [
            KernelCall(norm_kernel, grid, tail, {**constants, "step": step, "stages": tiling.stages}, tiling.warps, 1)
            for step in ((1, 2) if tiling.parts > 1 else (0,))
        ]

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        if len(self._steps) == 1:
            return [(self._steps[0], (*arrays, None, None))]
        sums = [memory.workspace(arrays[0], self._partial, self._acc) for _ in range(2)]
        return [(step, (*arrays, *sums)) for step in self._steps]


class _Sums(Way):
    """The end of each way to the gradients: those of weight and bias, from the sums that programs have made.

    Args:
        count: how many sums of each column there are.
        columns: how many columns.
        acc: dtype of the sums.
    """

    def __init__(self, count: int, columns: int, acc: str) -> None:
        self._columns, self._acc = columns, acc
        self._add_up(count)

    def _add_up(self, count: int) -> None:
        """So many sums."""
        self._add, self._count = column_sums(count, self._columns), count * self._columns

    def sums(self, memory: Memory, like: Any, d_weight: Any, d_bias: Any) -> tuple[Any, Any, Sequence[Launch]]:
        """Memory for the sums to weight and bias, and what adds them."""
        to_weight, to_bias = (
            None if each is None else memory.workspace(like, self._count, self._acc) for each in (d_weight, d_bias)
        )
        if d_weight is None and d_bias is None:
            return None, None, []
        given = (to_weight, to_bias, d_weight, d_bias) if to_weight is not None else (to_bias, None, d_bias, None)
        return to_weight, to_bias, [(self._add, given)]


class _WholeRows(_Sums):
    """Programs that have several whole rows each, and add them up meanwhile."""

    def __init__(
        self, features: NormFeatures, rows: Rows, tiling: RowTiling, places: NormStrides, drop: Any, acc: str
    ) -> None:
        self.name = tiling.name
        tiles = -(-rows.count // tiling.rows)
        programs = min(tiles, tiling.programs)
        super().__init__(programs, rows.columns, acc)
        self._call = KernelCall(
            norm_gradient_kernel, (programs, 1), (rows.sizes, places, rows.count, rows.columns, drop, tiles),
            {
                "f": features, "together": tiling.rows, "block": tiling.block, "pieces": tiling.pieces,
                "stages": tiling.stages,
            },
            tiling.warps, 1, registers=tiling.registers or None,
        )  # fmt: skip

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        *given, d_weight, d_bias = arrays
        to_weight, to_bias, add = self.sums(memory, arrays[0], d_weight, d_bias)
        return [(self._call, (*given, to_weight, to_bias)), *add]


class _Clusters(_Sums):
    """Clusters that share several rows each, and add them up meanwhile."""

    def __init__(
        self, features: NormFeatures, rows: Rows, tiling: ClusterTiling, parts: Rows, places: NormStrides, drop: Any,
        processors: int,
    ) -> None:  # fmt: skip
        self.name = tiling.name
        clusters = tiling.clusters(rows.count, processors)
        super().__init__(clusters, rows.columns, "float32")
        self._fitted = False
        counts = rows.count, rows.columns
        self._call = cluster_call(
            norm_gradient_cluster_kernel,
            clusters,
            tiling,
            parts,
            places,
            counts,
            (drop,),
            features,
        )

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        *given, d_weight, d_bias = arrays
        if not self._fitted:
            to_weight, to_bias, _ = self.sums(memory, arrays[0], d_weight, d_bias)
            self._add_up(fit(self._call, *given, to_weight, to_bias))
            self._fitted = True
        to_weight, to_bias, add = self.sums(memory, arrays[0], d_weight, d_bias)
        return [(self._call, (*given, to_weight, to_bias)), *add]


class _Columns(_Sums):
    """First the sums that each row needs, if gradients of the input are wanted, then all in tiles of columns."""

    def __init__(
        self, features: NormFeatures, rows: Rows, tilings: tuple[RowTiling, RowTiling], places: NormStrides, drop: Any,
        acc: str, inputs: bool,
    ) -> None:  # fmt: skip
        tiling, of_columns = tilings
        self.name = f"{tiling.name}; columns {of_columns.name}" if inputs else f"columns {of_columns.name}"
        start = rows.sizes, places, rows.count, rows.columns
        self._partial = rows.count * tiling.parts
        self._first: KernelCall | None = None
        if inputs:
            self._first = KernelCall(
                norm_row_sums_kernel, (-(-rows.count // tiling.rows), tiling.parts),
                (*start, tiling.part(rows.columns)),
                {"f": features, "together": tiling.rows, "block": tiling.block, "stages": tiling.stages},
                tiling.warps, 1,
            )  # fmt: skip
        tiles = -(-rows.count // of_columns.rows)
        parts = min(of_columns.parts, tiles)
        super().__init__(parts, rows.columns, acc)
        self._second = KernelCall(
            norm_columns_kernel, (-(-rows.columns // of_columns.block), parts), (*start, drop, tiles),
            {
                "f": features, "together": of_columns.rows, "block": of_columns.block, "parts": tiling.parts,
                "stages": of_columns.stages,
            },
            of_columns.warps, 1,
        )  # fmt: skip

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        *given, d_weight, d_bias = arrays
        to_weight, to_bias, add = self.sums(memory, arrays[0], d_weight, d_bias)
        if self._first is None:
            return [(self._second, (*given, to_weight, to_bias, None, None)), *add]
        h, means, rstds, weight, _, d_out, *_ = given
        inner, mean = (memory.workspace(h, self._partial, self._acc) for _ in range(2))
        return [
            (self._first, (h, means, rstds, weight, d_out, inner, mean)),
            (self._second, (*given, to_weight, to_bias, inner, mean)),
            *add,
        ]


def norm_contest(
    memory: Memory, device: int, limits: tuple[int, int], mode: str, problem: NormProblem,
    strides: Sequence[Strides | None], along: tuple[int | None, int | None],
) -> Contest:  # fmt: skip
    """The ways to run a norm.

    They take input, residual, weight, bias, seed, result, the sum that is normalised, means and reciprocals of the
    deviations. The last two may be ``None``, and aren't written then.

    Args:
        memory, device: where arrays are.
        limits: bytes of shared memory that a program may have there, and how many multiprocessors there are.
        mode: of :func:`einops_fast.autotune`.
        problem: which norm of what.
        strides: of input, result, statistics, residual and sum.
        along: of weight and bias.
    """
    rows = problem.rows(strides)
    features = problem.features(rows)

    def places(rows: Rows) -> NormStrides:
        of_x, out, row, residual, summed, place = rows.strides
        of_parameters = (along[0] or 0,), (along[1] or 0,)
        return NormStrides(of_x, out, row, residual, summed, place, of_x, of_x, *of_parameters)

    size, alike, drop = ITEM_SIZES[problem.dtype], typical(rows), dropping(problem.drop)
    whole = [at for at in (0, 3, 1, 4) if strides[at] is not None]
    arrays = 1 if strides[3] is None else 2
    ways: list[Way] = [
        _Rows(features, rows, tiling, places(rows), drop, problem.acc)
        for tiling in row_tilings(alike, size, 1, arrays, limits[0])
    ]
    shares = NORM_OF_SUM if arrays > 1 else CENTRED_NORM if problem.centred else NORM
    clusters: list[Way] = []
    for cluster in cluster_tilings(rows, whole, [size] * arrays, shares, limits[0]):
        parts = in_parts(rows, cluster.parts)
        of_parts = problem.features(parts)
        clusters.append(
            ClusterWay(norm_cluster_kernel, rows, cluster, parts, places(parts), (drop,), of_parts, limits[1])
        )
    call = row_call(problem.name, alike, features, mode)
    return Contest(memory, device, call, with_clusters(ways, clusters, rows, limits[1]))


def norm_gradient_contest(
    memory: Memory, device: int, limits: tuple[int, int], items: Sequence[int], mode: str, problem: NormProblem,
    strides: Sequence[Strides | None], along: int | None, inputs: bool, parameters: int,
) -> Contest:  # fmt: skip
    """The ways to run the gradients of a norm.

    They take what was normalised, means and reciprocals of the deviations, weight, seed, the gradients of the result
    and of the sum, then those of input, residual, weight and bias.

    Args:
        memory, device, limits, mode, problem: as above.
        items: bytes of an element of what was normalised and of the gradient of the result, if both begin at multiples
            of 16 bytes.
        strides: of what was normalised, the gradient of the result, statistics, the gradient of the sum, and the
            gradients of input and residual.
        along: of the weight.
        inputs: whether gradients of input or residual are wanted.
        parameters: how many of those of weight and bias are.
    """
    rows = problem.rows(strides)
    features = problem.features(rows)

    def places(rows: Rows) -> NormStrides:
        h, d_out, row, d_summed, dx, d_residual, place = rows.strides
        return NormStrides(h, d_out, row, h, dx, place, d_summed, d_residual, (along or 0,), (0,))

    shared, processors = limits
    size, alike, drop, acc = ITEM_SIZES[problem.dtype], typical(rows), dropping(problem.drop), problem.acc
    # Whole rows are read once, if programs have room for their sums.
    whole = gradient_tilings(alike, size, parameters, 3, shared) if inputs else []
    ways: list[Way] = [_WholeRows(features, rows, tiling, places(rows), drop, acc) for tiling in whole]
    if not ways:
        sums, columns = sums_tilings(alike, size, 3, shared), column_tilings(alike, size, 3, shared)
        pairs = [(sums[0], each) for each in columns]
        pairs = [*pairs[:4], *((each, columns[0]) for each in sums[1:])] if inputs else pairs
        ways += [_Columns(features, rows, pair, places(rows), drop, acc, inputs) for pair in pairs]
    arrays = [at for at in (0, 1, 3, 4, 5) if strides[at] is not None]
    clusters: list[Way] = []
    for cluster in cluster_tilings(rows, arrays, items if inputs else [], GRADIENTS_OF_NORM, shared):
        parts = in_parts(rows, cluster.parts)
        clusters.append(_Clusters(problem.features(parts), rows, cluster, parts, places(parts), drop, processors))
    call = row_call(f"gradients of {problem.name}", alike, features, mode)
    call = replace(call, details={**call.details, "wanted": [inputs, parameters]})
    return Contest(memory, device, call, with_clusters(ways, clusters, rows, processors))
