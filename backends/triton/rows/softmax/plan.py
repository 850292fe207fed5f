"""The ways to launch the kernels of softmax and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from einops_fast.backends.triton.rows.cluster_tilings import EXPONENTIALS, GRADIENTS_OF_EXPONENTIALS
from einops_fast.backends.triton.rows.contest import Contest, Site
from einops_fast.backends.triton.rows.plan import Operands, RowCall, size_of, strides_of
from einops_fast.backends.triton.rows.rows import rows_of
from einops_fast.backends.triton.rows.softmax.cluster import softmax_cluster_kernel, softmax_gradient_cluster_kernel
from einops_fast.backends.triton.rows.softmax.gradient import softmax_gradient_kernel
from einops_fast.backends.triton.rows.softmax.kernel import SoftmaxFeatures, SoftmaxStrides, softmax_kernel
from einops_fast.backends.triton.rows.tilings import cut_tilings, row_tilings


class _Kernels(NamedTuple):
    """The kernels of the result, or of the gradient: with one program for a row or a part of it, and with clusters.

    Parts leave something for each other in ``sums`` arrays; ``live`` values per element are kept, and ``tiles`` are the
    arrays that tiles are of where rows are cut or shared by clusters.
    """

    rows: Any
    sums: int
    clusters: Any
    live: int
    tiles: tuple[int, ...]


_RESULT = _Kernels(softmax_kernel, 2, softmax_cluster_kernel, 1, (0, 1))

_GRADIENT = _Kernels(softmax_gradient_kernel, 1, softmax_gradient_cluster_kernel, 2, (0, 1, 2))


def softmax(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of a softmax, which takes input, mask and result."""
    (x, mask), (out,) = given, made
    dim, log, queries, _, scale, _ = numbers
    shape = x.shape
    position = tuple([int(at == queries) for at in range(len(shape))])
    rows = rows_of(shape, dim, (x.strides, out.strides, strides_of(mask, shape), position))
    double, hiding = "float64" in (x.dtype, out.dtype), mask is not None and mask.dtype == "bool"
    features = SoftmaxFeatures(
        **rows.features([0, 1, 2], double=double), group=rows.neighbours(size_of(x)), log=log,
        added=mask is not None and not hiding, hiding=hiding, causal=queries is not None,
        scale=scale if double else 1.0,
    )  # fmt: skip

    def places(rows: Any) -> SoftmaxStrides:
        x, out, mask, position = rows.strides
        return SoftmaxStrides(x, out, mask, position, x)

    call = RowCall(site, "softmax", rows, features, places, (*given, out))
    return _contest(call, _RESULT, not (features.masked or double), numbers[3:5], EXPONENTIALS)


def softmax_gradient(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of the gradient of a softmax, which takes result, its gradient, and the input's."""
    (out, d_out), (dx,) = given, made
    dim, log, masked, scale, dtype = numbers
    rows = rows_of(out.shape, dim, (out.strides, d_out.strides, dx.strides))
    double = "float64" in (out.dtype, dtype)
    features = SoftmaxFeatures(
        **rows.features([0, 1, 2], double=double), log=log, hiding=masked, scale=scale if double else 1.0
    )

    def places(rows: Any) -> SoftmaxStrides:
        out, d_out, dx = rows.strides
        return SoftmaxStrides(dx, out, out, out, d_out)

    call = RowCall(site, "softmax gradient", rows, features, places, (out, d_out, dx))
    return _contest(call, _GRADIENT, not double, (scale,), GRADIENTS_OF_EXPONENTIALS)


def _contest(call: RowCall, kernels: _Kernels, plain: bool, numbers: Sequence[Any], shares: Sequence[Any]) -> Contest:
    """Return the contest, with ways that cut rows where these begin at odd places, and with clusters, if ``plain``."""
    rows, features, size = call.rows, call.features, call.size
    tilings = row_tilings(call.alike, size, kernels.live, 2, call.site.limits[0])
    vector, cut = rows.cut(kernels.tiles, size) if plain else 0, features
    if vector:
        tilings = list(dict.fromkeys((*tilings, *cut_tilings(rows))))
        cut = replace(features, vector=vector, unit=1)
    ways = [
        call.way(kernels.rows, kernels.sums, each, numbers, features if each.whole or each.rows > 1 else cut)
        for each in tilings
    ]
    clusters = call.clusters(
        kernels.clusters, shares, kernels.tiles, (size,) * kernels.live if plain else (), numbers[-1:],
        lambda parts: replace(features, axes=len(parts.sizes)),
    )  # fmt: skip
    return call.contest(ways, clusters)
