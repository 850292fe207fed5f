"""The ways to launch the kernels of layer norm and RMS norm, also after dropout and a sum, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.cluster_tilings import CENTRED_NORM, GRADIENTS_OF_NORM, NORM, NORM_OF_SUM
from einops_fast.backends.triton.rows.contest import NONE, Contest, Site, Steps, Way
from einops_fast.backends.triton.rows.norm.cluster import norm_cluster_kernel
from einops_fast.backends.triton.rows.norm.cluster_gradient import norm_gradient_cluster_kernel
from einops_fast.backends.triton.rows.norm.gradient import (
    norm_columns_kernel,
    norm_gradient_kernel,
    norm_row_sums_kernel,
)
from einops_fast.backends.triton.rows.norm.kernel import NormFeatures, NormStrides, norm_kernel
from einops_fast.backends.triton.rows.plan import Operands, RowCall, size_of, strides_of
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, dropping, rows_of
from einops_fast.backends.triton.rows.tilings import column_tilings, gradient_tilings, row_tilings, sums_tilings
from einops_fast.planning.layout import Strides, contiguous_strides, dense_strides
from einops_fast.planning.target import Operand

_STATISTICS = 2
"""Which of the arrays has one element for each row."""


def norm(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of a norm.

    It takes input, residual, weight, bias, seed, result, the sum that is normalised, means and reciprocals of the
    deviations. The last two may be ``None``, and aren't written then.
    """
    (x, residual, weight, bias, _), (out, summed, _, rstds) = given, made
    dim, centred, eps, drop, _ = numbers
    of_summed = None if summed is None else summed.strides
    of_residual = None if residual is None else strides_of(residual, x.shape)
    rows = _rows(x.shape, dim, x.strides, out.strides, rstds.strides, of_residual, of_summed)

    def features(rows: Rows) -> NormFeatures:
        return _features(rows, x.dtype, centred, eps, drop)

    def places(rows: Rows) -> NormStrides:
        x, out, row, residual, summed, place = rows.strides
        return NormStrides(x, out, row, residual, summed, place, x, x, _along(weight), _along(bias))

    source = "" if summed is None else " after dropout" if residual is None else " of a sum"
    call = RowCall(site, f"{_name(centred)}{source}", rows, features(rows), places, (*given, *made))
    read, dropped = 1 if residual is None else 2, (dropping(drop),)
    tilings = row_tilings(call.alike, call.size, 1, read, site.limits[0])
    shares = NORM_OF_SUM if read > 1 else CENTRED_NORM if centred else NORM
    tiles = [at for at, there in ((0, True), (3, residual), (1, True), (4, summed)) if there is not None]
    clusters = call.clusters(norm_cluster_kernel, shares, tiles, [call.size] * read, dropped, features)
    return call.contest([call.way(norm_kernel, 2, tiling, dropped) for tiling in tilings], clusters)


def norm_gradients(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of the gradients of a norm.

    It takes what was normalised, means and reciprocals of the deviations, weight, bias, seed, the gradients of the
    result and of the sum, then those of input, residual, weight and bias.
    """
    h, _, rstds, weight, _, _, d_out, d_summed = given
    *_, d_weight, d_bias = made
    dim, centred, eps, drop, of_x, of_residual, *_ = numbers
    inputs, dropped, shared = bool(of_x or of_residual), dropping(drop), site.limits[0]
    dense = dense_strides(h.shape, h.strides)
    of_summed = None if d_summed is None else d_summed.strides
    rows = _rows(h.shape, dim, h.strides, d_out.strides, rstds.strides, of_summed, dense, dense)

    def features(rows: Rows) -> NormFeatures:
        return _features(rows, h.dtype, centred, eps, drop)

    def places(rows: Rows) -> NormStrides:
        h, d_out, row, d_summed, dx, d_residual, place = rows.strides
        return NormStrides(h, d_out, row, h, dx, place, d_summed, d_residual, _along(weight), (0,))

    source = " of a sum" if of_residual else " after dropout" if drop else ""
    call = RowCall(
        site, f"gradients of {_name(centred)}{source}", rows, features(rows), places, (*given, *made)
    )  # fmt: skip
    means = 1 if centred else NONE
    arrays = 0, means, 2, 3, *range(5, 10)
    results = NONE if d_weight is None else 10, NONE if d_bias is None else 11
    parameters = len(results) - results.count(NONE)

    def steps(kernel: KernelCall, programs: int) -> Steps:
        """Add up columns after a kernel whose programs have added up theirs."""
        sums, work, adds = call.added_up(programs, results)
        return [(kernel, (*arrays, *sums)), *adds], work

    def of_whole_rows(tiling: RowTiling) -> Way:
        """Programs have several whole rows each, and add them up meanwhile."""
        tiles = -(-rows.count // tiling.rows)
        programs = min(tiles, tiling.programs)
        kernel = call.kernel(
            norm_gradient_kernel, tiling, (programs, 1), (dropped, tiles), pieces=tiling.pieces, stages=tiling.stages
        )
        return Way(tiling.name, *steps(kernel, programs))

    def of_columns(tiling: RowTiling, columns: RowTiling) -> Way:
        """First the sums that each row needs are made, if gradients of the input are wanted, then all by columns."""
        tiles = -(-rows.count // columns.rows)
        programs = min(columns.parts, tiles)
        kernel = call.kernel(
            norm_columns_kernel, columns, (-(-rows.columns // columns.block), programs), (dropped, tiles),
            parts=tiling.parts, stages=columns.stages,
        )  # fmt: skip
        sums, work, adds = call.added_up(programs, results)
        if not inputs:
            return Way(f"columns {columns.name}", [(kernel, (*arrays, *sums, NONE, NONE)), *adds], work)
        first = call.kernel(
            norm_row_sums_kernel, tiling, (-(-rows.count // tiling.rows), tiling.parts), (tiling.part(rows.columns),),
            stages=tiling.stages,
        )  # fmt: skip
        inner = len(call.operands) + len(work), len(call.operands) + len(work) + 1
        return Way(
            f"{tiling.name}; columns {columns.name}",
            [(first, (0, means, 2, 3, 6, *inner)), (kernel, (*arrays, *sums, *inner)), *adds],
            [*work, *[(rows.count * tiling.parts, call.acc)] * 2],
        )

    # Whole rows are read once, if programs have room for their sums.
    whole = gradient_tilings(call.alike, call.size, parameters, 3, shared) if inputs else []
    ways = [of_whole_rows(tiling) for tiling in whole]
    if not ways:
        sums, columns = (tilings(call.alike, call.size, 3, shared) for tilings in (sums_tilings, column_tilings))
        pairs = [(sums[0], each) for each in columns]
        pairs = [*pairs[:4], *((each, columns[0]) for each in sums[1:])] if inputs else pairs
        ways = [of_columns(*pair) for pair in pairs]
    items = (call.size, size_of(d_out)) if site.aligned and inputs else ()
    tiles = [at for at in (0, 1, 3, 4, 5) if at != 3 or d_summed is not None]
    clusters = call.clusters(norm_gradient_cluster_kernel, GRADIENTS_OF_NORM, tiles, items, (dropped,), features, steps)
    return call.contest(ways, clusters, wanted=[inputs, parameters])


def _rows(shape: Strides, dim: int, *strides: Strides | None) -> Rows:
    """Return rows along an axis of arrays, some perhaps ``None``, and of the places of elements in C order."""
    nowhere = (0,) * len(shape)
    found = [nowhere if each is None else each for each in strides]
    # Statistics are the same for all columns.
    found[_STATISTICS] = tuple([0 if at == dim else stride for at, stride in enumerate(found[_STATISTICS])])
    return rows_of(shape, dim, (*found, contiguous_strides(shape)))


def _features(rows: Rows, dtype: str, centred: bool, eps: float, drop: float) -> NormFeatures:
    tiles = [at for at in range(len(rows.strides)) if at != _STATISTICS]
    return NormFeatures(**rows.features(tiles, drop, dtype == "float64"), eps=eps, centred=centred)


def _along(parameter: Operand | None) -> tuple[int]:
    """Return the strides of weight or bias."""
    return (0,) if parameter is None else (parameter.strides[0],)


def _name(centred: bool) -> str:
    return f"{'layer' if centred else 'rms'} norm"
