"""The factor of a left operand that is a product itself: Hopper's contraction kernel multiplies it in registers.

Boxes of the left operand extend along one of its rows' axes and one contracted axis; the factor lacks one of the two.
So each row has one element of it, or each column of the left operand.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.contraction.boxes.tiles import CONTRACTED, part_of, place_of, product_layout, run_of
from einops_fast.backends.triton.device.indexing import field


@gluon.constexpr_function
def left_layout(width):
    """Which threads of a warp group have which elements of a left operand in registers."""
    return gl.DotOperandLayout(0, product_layout(width), 2)


@gluon.constexpr_function
def _by_depth(tiling):
    """Whether each contracted position of a box has an element of the factor, and not each row."""
    return any(dim.role == CONTRACTED and dim.box > 1 for dim in tiling.factor.dims)


@gluon.constexpr_function
def _elements(tiling):
    """How many elements of the factor there are for a box."""
    return tiling.depth if _by_depth(tiling) else 64


@gluon.constexpr_function
def _layout(tiling):
    """Which threads have which of them: those that have what is multiplied with them."""
    return gl.SliceLayout(0 if _by_depth(tiling) else 1, left_layout(tiling.width))


@gluon.jit
def factor_of(factor, batch, row, step, own: gl.constexpr, tiling: gl.constexpr):
    """The factor of each of a warp group's rows, or of each of a step's positions; something, if there is none."""
    if tiling.factored:
        view: gl.constexpr = tiling.factor
        along = gl.arange(0, _elements(tiling), layout=_layout(tiling))
        place = place_of(view, batch, row, 0, step, part_of(tiling, own), 0)
        places = along * 0
        exists = along >= 0
        for at in gl.static_range(field(view, "rank")):
            factor += place[at].to(gl.int64) * view.dims[at].stride
            # One group's rows may lie beyond the last ones along another axis.
            position = place[at]
            if view.dims[at].box > 1:
                places += along * view.dims[at].stride
                position += along
            exists &= position < view.dims[at].size
        found = gl.load(factor + places, mask=exists, other=0)
    else:
        found = 0
    return found


@gluon.constexpr_function
def _run(tiling):
    """Along which axis of the left operand a box extends, of the contracted ones."""
    return run_of(tiling.left, CONTRACTED)


@gluon.constexpr_function
def _is_ragged(tiling):
    """Whether a box may reach beyond it, and the factor doesn't end there."""
    return tiling.left.dims[_run(tiling)].size % tiling.depth != 0 and not _by_depth(tiling)


@gluon.jit
def multiplied(kept, found, batch, row, step, own: gl.constexpr, tiling: gl.constexpr):
    """A left operand in registers times the factor."""
    if _by_depth(tiling):
        product = kept * found[None, :]
    else:
        product = kept * found[:, None]
    if _is_ragged(tiling):
        # Beyond the axis there is 0, and infinity times that is no number.
        view: gl.constexpr = tiling.left
        run: gl.constexpr = _run(tiling)
        along = gl.arange(0, tiling.depth, layout=gl.SliceLayout(0, left_layout(tiling.width)))
        along += place_of(view, batch, row, 0, step, part_of(tiling, own), 0)[run]
        product = gl.where((along < view.dims[run].size)[None, :], product, 0.0).to(kept.dtype)
    return product
