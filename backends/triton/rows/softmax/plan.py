"""The ways to launch the kernels of softmax and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.candidates import cut_tilings, row_call, row_tilings, typical
from einops_fast.backends.triton.rows.cluster_tilings import (
    EXPONENTIALS,
    GRADIENTS_OF_EXPONENTIALS,
    cluster_tilings,
    in_parts,
)
from einops_fast.backends.triton.rows.cluster_way import ClusterWay, with_clusters
from einops_fast.backends.triton.rows.contest import Contest, Launch, Way
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, neighbours, rows_of
from einops_fast.backends.triton.rows.softmax.cluster import softmax_cluster_kernel, softmax_gradient_cluster_kernel
from einops_fast.backends.triton.rows.softmax.gradient import softmax_gradient_kernel
from einops_fast.backends.triton.rows.softmax.kernel import SoftmaxFeatures, SoftmaxStrides, softmax_kernel
from einops_fast.planning.layout import Strides

__all__ = ["softmax_contest", "softmax_gradient_contest"]


class _Rows(Way):
    """Whole rows, blocks one after the other, or parts of rows.

    Args:
        kernel: that of the result or of the gradient; ``sums`` arrays of it hold what parts leave for each other.
        acc: dtype of these.
        tail: strides, then the arguments after the tiles.
    """

    def __init__(
        self, kernel: Any, sums: int, acc: str, features: SoftmaxFeatures, rows: Rows, tiling: RowTiling, *tail: Any
    ) -> None:
        self.name = tiling.name
        grid = -(-rows.count // tiling.rows), tiling.parts
        constants = {
            "f": features, "together": tiling.rows, "block": tiling.block, "whole": tiling.whole,
            "pieces": tiling.pieces, "parts": tiling.parts,
        }  # fmt: skip
        self._partial, self._acc, self._sums = rows.count * tiling.parts, acc, sums
        self._steps = [
            KernelCall(
                kernel, grid, (rows.sizes, tail[0], rows.count, rows.columns, tiling.part(rows.columns), *tail[1:]),
                {**constants, "step": step, "stages": tiling.stages}, tiling.warps, 1,
            )
            for step in ((1, 2) if tiling.parts > 1 else (0,))
        ]  # fmt: skip

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        if len(self._steps) == 1:
            return [(self._steps[0], (*arrays, *(None,) * self._sums))]
        sums = [memory.workspace(arrays[0], self._partial, self._acc) for _ in range(self._sums)]
        return [(step, (*arrays, *sums)) for step in self._steps]


def _cut(
    rows: Rows, tilings: Sequence[RowTiling], arrays: Sequence[int], features: SoftmaxFeatures, size: int
) -> list[tuple[RowTiling, SoftmaxFeatures]]:
    """The tilings, each with its features: where rows begin at odd places, blocks of them are cut, and more are tried.

    Args:
        rows: as they are.
        tilings: that don't depend on it.
        arrays: which of those of ``rows`` tiles are of.
        features: of rows that aren't cut.
        size: bytes of an element; 0 if rows can't be cut.
    """
    vector = rows.vector(arrays, size) if size else 0
    if not vector or rows.unit(arrays) % vector == 0:
        return [(tiling, features) for tiling in tilings]
    cut = replace(features, vector=vector, unit=1)
    every = dict.fromkeys((*tilings, *cut_tilings(rows)))
    return [(tiling, features if tiling.whole or tiling.rows > 1 else cut) for tiling in every]


def softmax_contest(
    memory: Memory, device: int, limits: tuple[int, int], mode: str, shape: Strides,
    strides: tuple[Strides, Strides, Strides], dim: int, mask: str | None, log: bool, queries: int | None, shift: int,
    scale: float, size: int, double: bool,
) -> Contest:  # fmt: skip
    """The ways to run a softmax, which take its input, its mask and its result.

    Args:
        memory, device: where arrays are.
        limits: bytes of shared memory that a program may have there, and how many multiprocessors there are.
        mode: of :func:`einops_fast.autotune`.
        shape: of the arrays.
        strides: of input, result and mask.
        dim: the axis along a row.
        mask: ``None``, ``'hiding'`` or ``'added'``.
        log: whether the logarithm is wanted.
        queries, shift: the axis of positions for causality, and how many after its own one a query sees.
        scale: of the scores.
        size: bytes of an element of the input.
        double: compute in float64.
    """
    position = tuple([int(at == queries) for at in range(len(shape))])
    rows = rows_of(shape, dim, (*strides, position))
    features = SoftmaxFeatures(
        len(rows.sizes), log, mask == "added", mask == "hiding", queries is not None, rows.wide, double,
        scale if double else 1.0, neighbours(rows, size), rows.unit([0, 1, 2]),
        across=rows.across(range(len(rows.strides))),
    )  # fmt: skip
    of_x, of_out, of_mask, of_position = rows.strides
    places = SoftmaxStrides(of_x, of_out, of_mask, of_position, of_x)
    alike = typical(rows)
    plain = mask is None and queries is None and not double
    tilings = _cut(rows, row_tilings(alike, size, 1, 2, limits[0]), [0, 1], features, size if plain else 0)
    ways: list[Way] = [
        _Rows(softmax_kernel, 2, "float64" if double else "float32", each, rows, tiling, places, shift, scale)
        for tiling, each in tilings
    ]
    clusters: list[Way] = []
    for cluster in cluster_tilings(rows, (0, 1), [size] if plain else [], EXPONENTIALS, limits[0]):
        parts = in_parts(rows, cluster.parts)
        of_x, of_out, of_mask, of_position = parts.strides
        places = SoftmaxStrides(of_x, of_out, of_mask, of_position, of_x)
        of_parts = replace(features, axes=len(parts.sizes))
        clusters.append(ClusterWay(softmax_cluster_kernel, rows, cluster, parts, places, (scale,), of_parts, limits[1]))
    call = row_call("softmax", alike, features, mode)
    return Contest(memory, device, call, with_clusters(ways, clusters, rows, limits[1]))


def softmax_gradient_contest(
    memory: Memory, device: int, limits: tuple[int, int], mode: str, shape: Strides,
    strides: tuple[Strides, Strides, Strides], dim: int, masked: bool, log: bool, scale: float, size: int, double: bool,
) -> Contest:  # fmt: skip
    """The ways to run the gradient of a softmax, which take result, its gradient, and the input's. See above."""
    rows = rows_of(shape, dim, strides)
    features = SoftmaxFeatures(
        len(rows.sizes), log, hiding=masked, wide=rows.wide, double=double, scale=scale if double else 1.0,
        unit=rows.unit([0, 1, 2]), across=rows.across(range(len(rows.strides))),
    )  # fmt: skip
    out, d_out, dx = rows.strides
    places = SoftmaxStrides(dx, out, out, out, d_out)
    alike = typical(rows)
    tilings = _cut(rows, row_tilings(alike, size, 2, 2, limits[0]), [0, 1, 2], features, 0 if double else size)
    ways: list[Way] = [
        _Rows(softmax_gradient_kernel, 1, "float64" if double else "float32", each, rows, tiling, places, scale)
        for tiling, each in tilings
    ]
    clusters: list[Way] = []
    for cluster in cluster_tilings(
        rows, (0, 1, 2), [] if double else [size, size], GRADIENTS_OF_EXPONENTIALS, limits[0]
    ):
        parts = in_parts(rows, cluster.parts)
        out, d_out, dx = parts.strides
        places = SoftmaxStrides(dx, out, out, out, d_out)
        of_parts = replace(features, axes=len(parts.sizes))
        clusters.append(
            ClusterWay(softmax_gradient_cluster_kernel, rows, cluster, parts, places, (scale,), of_parts, limits[1])
        )
    call = row_call("softmax gradient", alike, features, mode)
    return Contest(memory, device, call, with_clusters(ways, clusters, rows, limits[1]))
