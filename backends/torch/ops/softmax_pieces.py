"""softmax and log_softmax on a CPU, by torch's functions of pieces that stay in the cache.

What hides is added as ``-inf``: numbers are added several times as fast as they are chosen by a boolean. Where that
gives NaN, of a row without anything left to sum over or of NaN and infinity that are hidden, the row is made again, as
:func:`masked_softmax` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite, isnan
from typing import Any

import torch

from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.ops.pieces import dense_like, outermost_first, pieces, room_for
from einops_fast.backends.torch.types import HALVES, may_read_values

__all__ = ["gains_by_pieces", "gradient_by_torch", "masked_softmax", "softmax_in_pieces"]

_HIDDEN = float("-inf")

_LARGE = 1 << 15
"""Elements from which on memory takes longer than a function of ours takes to be recorded."""

_but_hidden = torch.ops.aten.threshold_backward.grad_input
"""A gradient, but 0 where a number isn't above another one: here those that are hidden."""

_AS_INTEGERS = {
    torch.float16: (torch.int16, -0x400),
    torch.bfloat16: (torch.int16, -0x80),
    torch.float32: (torch.int32, -0x800000),
    torch.float64: (torch.int64, -0x10000000000000),
}
"""Integers of the same size, and which of them has the bits of ``-inf``."""


def gains_by_pieces(x: Any, mask: Any, queries: int | None, wanted: torch.dtype) -> bool:
    """Whether pieces are possible, and take less time than whole tensors do.

    They don't where nothing is hidden; if a gradient is needed, nor beside a mask of the same dtype that hides nothing:
    torch records its own functions in less time.
    """
    if x.numel() < _LARGE or x.dtype not in _AS_INTEGERS:
        return False
    if mask is None:
        return queries is not None and may_read_values(x)
    if not may_read_values(x, mask):
        return False
    alike = queries is None and mask.dtype == x.dtype == wanted
    return not (alike and _is_recorded(x, mask) and _is_finite(mask.detach()))


def _is_recorded(x: Any, mask: Any) -> bool:
    return torch.is_grad_enabled() and (x.requires_grad or (mask is not None and mask.requires_grad))


def softmax_in_pieces(
    x: Any, dim: int, log: bool, mask: Any, queries: int | None, shift: int, scale: float, wanted: torch.dtype
) -> Any:
    """The softmax of a tensor on a CPU, recorded where a gradient is needed.

    The arguments are those of :func:`einops_fast.backends.torch.ops.softmax.softmax`.
    """
    numbers = dim, log, queries, shift, scale, wanted
    if _is_recorded(x, mask):
        return _record(x, mask, numbers)[0]
    return _compute(x, mask, *numbers)[0]


def masked_softmax(
    x: Any, dim: int, log: bool, mask: Any, queries: int | None, shift: int, scale: float, wanted: torch.dtype
) -> Any:
    """The same of whole tensors, by functions that can be differentiated as often as torch's."""
    native = torch.log_softmax if log else torch.softmax
    score = _score(x, dim, mask, queries, shift, scale)
    kind = torch.promote_types(score.dtype, wanted)
    if (mask is None and queries is None) or not x.shape[dim]:
        return native(score, dim, dtype=kind).to(wanted)
    found = native(score, dim, dtype=kind) if may_read_values(x) else None
    if found is None or not found.numel() or isnan(found.detach().select(dim, 0).sum().item()):
        # Without anything to sum over, a row is NaN, all along, and so would be its gradients.
        empty = score.detach().amax(dim, keepdim=True) == _HIDDEN
        found = native(score.masked_fill(empty, 0.0), dim, dtype=kind).masked_fill(empty, _HIDDEN if log else 0.0)
    elif not (found.requires_grad and log) or _is_finite(found.detach()):
        return found.to(wanted)
    if log:  # what is hidden is a constant, but in a row with NaN, which is all NaN
        found = torch.where((score.detach() == _HIDDEN) & ~found.detach().isnan(), _HIDDEN, found)
    return found.to(wanted)


def _is_finite(numbers: Any) -> bool:
    """Whether all of them are; ``False`` also where their sum overflows."""
    # To sum up bfloat16 as float32 takes several times as long, and its range is the same.
    return isfinite(numbers.sum(dtype=torch.float32 if numbers.dtype == torch.float16 else None).item())


def _score(x: Any, dim: int, mask: Any, queries: int | None, shift: int, scale: float) -> Any:
    """What the softmax is of; each step rounds."""
    added = None if mask is None or mask.dtype == torch.bool else mask
    seen = mask if added is None else None
    score = x if scale == 1.0 else x * scale
    if added is not None:
        fits = score is not x and may_read_values(x) and torch.promote_types(score.dtype, added.dtype) == score.dtype
        score = score.add_(added) if fits else score + added
    if queries is not None:
        before = _seen_before(x, dim, queries, shift)
        seen = before if seen is None else before & seen
    if seen is None:
        return score
    # Of jagged tensors, `where` takes no mask that is broadcast.
    return score.masked_fill(~seen, _HIDDEN) if score.is_nested else torch.where(seen, score, _HIDDEN)


def _seen_before(x: Any, dim: int, queries: int, shift: int) -> Any:
    """What causality lets take part, broadcastable to ``x``."""
    square = torch.ones(x.shape[queries], x.shape[dim], dtype=torch.bool, device=x.device).tril_(shift)
    return _by_position(square, x, dim, queries)


def _by_position(square: Any, x: Any, dim: int, queries: int) -> Any:
    """A matrix of positions by elements, broadcastable to ``x``."""
    shape = [1] * x.dim()
    shape[queries], shape[dim] = x.shape[queries], x.shape[dim]
    return (square if queries < dim else square.T).reshape(shape)


def _compute(
    x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, scale: float, wanted: torch.dtype,
    *, keeps: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """The result and, if the gradient ``keeps`` it and something given has more digits, what was rounded to that."""
    added = mask is not None and mask.dtype != torch.bool
    given = torch.promote_types(x.dtype, mask.dtype) if added else x.dtype
    kind = torch.promote_types(given, wanted)
    found = [dense_like(x, wanted)]
    if keeps and kind != wanted:
        found.append(dense_like(x, kind))
    out = found[-1]
    hides = []
    if mask is not None:
        often = mask.dtype != kind and 2 * mask.numel() <= x.numel()
        hides.append(_numbers(mask, kind, mask.new_empty(mask.shape, dtype=kind)) if often else mask)
    if queries is not None:
        square = torch.full((x.shape[queries], x.shape[dim]), _HIDDEN, dtype=kind, device=x.device).triu_(shift + 1)
        hides.append(_by_position(square, x, dim, queries))
    # Where everything is written to the result, there is nothing to be kept in the cache.
    at_once = x.dtype == wanted == kind and all(each.dtype == kind for each in hides)
    tensors, at = outermost_first((x, *found, *hides), out, dim)
    native = torch._log_softmax if log else torch._softmax
    room = of_mask = None
    for score, *others in (tensors,) if at_once else pieces(tensors, at):
        results, masks = others[: len(found)], others[len(found) :]
        here = results[-1]
        if here.dtype != kind or not here.is_contiguous():
            here = room = room_for(score, kind, 0, room)
        if score.dtype != kind:
            score = here.copy_(score)
        if scale != 1.0:
            score = torch.mul(score, scale, out=here)
        for each in masks:
            if each.dtype != kind:
                of_mask = room_for(each, kind, 1, of_mask)
                each = _numbers(each, kind, of_mask)
            score = torch.add(score, each, out=here)
        native(score, at, False, out=here)  # over its own input, which is in the cache
        for each in results:
            if each is not here:
                each.copy_(here)
    if hides and isnan(out.select(dim, 0).sum().item()):
        _mend(found, x, mask, dim, log, queries, shift, scale)
    return tuple(found)


def _numbers(mask: Any, kind: torch.dtype, out: Any) -> Any:
    """A mask as what is added, in ``out``. Booleans become 0 and ``-inf`` by their bits: as integers they are fast."""
    if mask.dtype != torch.bool:
        return out.copy_(mask)
    integers, hidden = _AS_INTEGERS[kind]
    out.view(integers).copy_(mask).sub_(1).bitwise_and_(hidden)
    return out


def _mend(
    found: Sequence[Any], x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, scale: float
) -> None:
    """Make the rows of NaN again."""
    rows = found[0].select(dim, 0).isnan().nonzero(as_tuple=True)

    def of(tensor: Any) -> Any:
        return tensor.expand(x.shape).movedim(dim, -1)[rows]

    own, own_mask = of(x), None if mask is None else of(mask)
    if queries is not None:
        seen = of(_seen_before(x, dim, queries, shift))
        if own_mask is None:
            own_mask = seen
        elif own_mask.dtype == torch.bool:
            own_mask &= seen
        else:
            own, own_mask = own.masked_fill(~seen, _HIDDEN), own_mask.masked_fill(~seen, 0)
    value: Any = _HIDDEN if log else 0.0
    if _score(own, 1, own_mask, None, 0, scale).max().item() != _HIDDEN:
        value = masked_softmax(own, 1, log, own_mask, None, 0, scale, found[-1].dtype)
    for each in found:
        each.movedim(dim, -1)[rows] = value if isinstance(value, float) else value.to(each.dtype)


def _gradient(
    out: Any, d_out: Any, dim: int, log: bool, masked: bool, scale: float, dtype: torch.dtype, hides: tuple[Any, ...]
) -> Any:
    """Of what is scaled and masked, from the result; ``hides`` is the boolean mask and what causality is."""
    native = torch._log_softmax_backward_data if log else torch._softmax_backward_data
    name = "out" if log else "grad_input"
    kind = out.dtype
    if dtype != kind:
        kind = torch.promote_types(kind, torch.float32)
    dx = dense_like(out, dtype)
    tensors, at = outermost_first((out, d_out, dx), out, dim)
    # What is hidden is a constant, of which a logarithm's gradient isn't 0 by itself. Numbers often hide nothing.
    constants = log and masked
    unsure = hides[0] is None and hides[1] is None
    at_once = dtype == kind and scale == 1.0 and not constants
    of_back = of_own = None
    for own, back, into in (tensors,) if at_once else pieces(tensors, at):
        if dtype == kind and into.is_contiguous():
            room = into
        else:
            room = of_back = room_for(own, kind, 0, of_back)
        if own.dtype != kind:
            of_own = room_for(own, kind, 1, of_own)
            own = of_own.copy_(own)
        if back.dtype != kind:
            back = room.copy_(back)
        if constants and not (unsure and isfinite(own.sum().item())):
            unsure = False
            back = _but_hidden(back, own, _HIDDEN, grad_input=room)
        native(back, own, at, kind, **{name: room})
        if scale != 1.0:
            room.mul_(scale)
        if room is not into:
            into.copy_(room)
    if masked and not isfinite(dx.select(dim, 0).sum().item()):
        return _none_where_hidden(out, d_out, dim, log, scale, dtype, *hides)
    return dx


def _none_where_hidden(
    out: Any, d_out: Any, dim: int, log: bool, scale: float, dtype: torch.dtype, mask: Any, queries: Any, shift: int
) -> Any:
    """The gradient where it isn't finite: what is hidden has none, whatever comes back there."""
    hidden = out == (_HIDDEN if log else 0.0)
    dx = gradient_by_torch(out, d_out, dim, log, True, scale, dtype).masked_fill_(hidden, 0.0)
    seen = [] if mask is None else [mask]
    if queries is not None:
        seen.append(_seen_before(out, dim, queries, shift))
    for each in seen:
        dx = torch.where(each, dx, 0.0)
    return dx


def gradient_by_torch(out: Any, d_out: Any, dim: int, log: bool, masked: bool, scale: float, dtype: torch.dtype) -> Any:
    """By functions that can be differentiated again."""
    out = out.float() if out.dtype in HALVES else out
    d_out = d_out.to(out.dtype)
    if log:
        seen = d_out.masked_fill(out == _HIDDEN, 0.0) if masked else d_out
        found = seen - out.exp() * seen.sum(dim, keepdim=True)
    else:
        found = out * (d_out - (out * d_out).sum(dim, keepdim=True))
    return (found * scale).to(dtype)


class SoftmaxInPieces(torch.autograd.Function):
    """What autograd sees: it keeps the result, and a boolean mask."""

    @staticmethod
    def forward(ctx: Any, x: Any, mask: Any, numbers: tuple[Any, ...]) -> Any:
        found = _compute(x, mask, *numbers, keeps=True)
        hides = mask is not None and mask.dtype == torch.bool
        ctx.save_for_backward(found[-1], mask if hides else None)
        ctx.given = x.dtype, None if mask is None else (mask.shape, mask.dtype), numbers
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_kept: Any = None) -> Any:
        out, mask = ctx.saved_tensors
        if d_kept is not None:  # what is kept has a gradient where gradients are differentiated
            d_out = d_kept if d_out is None else d_out.to(d_kept.dtype) + d_kept
        if d_out is None:
            return None, None, None
        of_x, of_mask, _ = ctx.needs_input_grad
        dtype, kind_of_mask, (dim, log, queries, shift, scale, _) = ctx.given
        masked = kind_of_mask is not None or queries is not None
        if torch.is_grad_enabled() or not may_read_values(d_out):
            gradient = gradient_by_torch
        else:
            gradient = partial(_gradient, hides=(mask, queries, shift))
        dx = gradient(out, d_out, dim, log, masked, scale, dtype) if of_x else None
        if not of_mask:
            return dx, None, None
        shape, own = kind_of_mask
        wide = torch.promote_types(out.dtype, torch.float32)
        alike = dx is not None and scale == 1.0 and dtype == wide
        d_mask: Any = dx if alike else gradient(out, d_out, dim, log, masked, 1.0, wide)
        return dx, d_mask.sum_to_size(shape).to(own), None


_record = recorded(SoftmaxInPieces)
