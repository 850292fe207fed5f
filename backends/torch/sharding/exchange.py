"""Exchanges of parts between ranks, with gradients: begun before a kernel is launched, and ended after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist


class _Trip:
    """Parts on their way from each rank of a group to each other one."""

    def __init__(self, going: Sequence[tuple[int, ...]], coming: Sequence[tuple[int, ...]], group: Any) -> None:
        self.going, self.coming, self.group = going, coming, group
        self.back: _Trip | None = None  # the way of the gradients
        self._work: Any = None

    def begin(self, parts: Sequence[Any]) -> None:
        """Send a part to each rank."""
        sent = [each.reshape(-1) for each in parts if each.numel()] or [parts[0].reshape(-1)]
        given = torch.cat(sent) if len(sent) > 1 else sent[0]
        self._found = given.new_empty(sum(map(prod, self.coming)))
        # As bytes: gloo has no exchange of truth values.
        self._raw = self._found.view(torch.uint8), given.view(torch.uint8)
        splits = [[given.element_size() * prod(shape) for shape in shapes] for shapes in (self.coming, self.going)]
        exchange: Callable[..., Any] = dist.all_to_all_single
        self._work = exchange(*self._raw, *splits, self.group, async_op=True)

    def end(self) -> tuple[Any, ...]:
        """Wait, on a GPU in its stream, and return what came from each rank."""
        self._work.wait()
        parts = torch.split(self._found, list(map(prod, self.coming)))
        del self._work, self._found, self._raw
        return tuple([part.view(shape) for part, shape in zip(parts, self.coming, strict=True)])


class _Begin(torch.autograd.Function):
    """Begin a trip, and return what stands for it in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, trip: _Trip, *parts: Any) -> Any:
        ctx.trip = trip
        trip.begin(parts)
        return parts[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, ticket: Any) -> tuple[Any, ...]:
        return None, *_ended(ctx.trip.back, ticket)


class _End(torch.autograd.Function):
    """End a trip: gradients begin theirs here."""

    @staticmethod
    def forward(ctx: Any, trip: _Trip, ticket: Any) -> tuple[Any, ...]:
        ctx.trip = trip
        return trip.end()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, Any]:
        trip = ctx.trip
        trip.back = _Trip(trip.coming, trip.going, trip.group)
        return None, _begun(trip.back, *gradients)


_begun: Callable[..., Any] = _Begin.apply
_ended: Callable[..., tuple[Any, ...]] = _End.apply


def begin(parts: Sequence[Any], shapes: list[tuple[int, ...]], group: Any) -> Callable[[], tuple[Any, ...]]:
    """Send a part to each rank of a group, and return what waits for the parts of these shapes that come from each.

    Gradients go the other way: they are sent where the backward pass comes to the waiting, and waited for where it
    comes to the sending, so that what was computed in between is differentiated in between.
    """
    trip = _Trip([each.shape for each in parts], shapes, group)
    ticket = _begun(trip, *parts)
    return lambda: _ended(trip, ticket)


def exchanged(
    part: Any, cut: int | None, cuts: Sequence[tuple[int, int]], join: int, joins: Sequence[int], group: Any
) -> Any:
    """Return the parts along one axis that come from all ranks, side by side along another one.

    Args:
        part: what this rank has.
        cut, cuts: the axis, and what each rank gets of it: where that begins, and its length. Without an axis, each
            gets all.
        join, joins: the axis along which ranks have parts, and how long these are.
        group: the ranks.
    """
    sent = [part if cut is None else part.narrow(cut, *each) for each in cuts]
    shape = list(sent[dist.get_rank(group)].shape)
    shapes = [(*shape[:join], size, *shape[join + 1 :]) for size in joins]
    return torch.cat(begin(sent, shapes, group)(), join)


def rearranged(part: Any, axis: int, now: Sequence[Sequence[int]], then: Sequence[Sequence[int]], group: Any) -> Any:
    """Return this rank's runs along an axis, all of one length, where ranks have those of ``then``, not of ``now``.

    Args:
        part: what this rank has, its runs side by side.
        axis: of the runs.
        now, then: the numbers of each rank's runs.
        group: the ranks.
    """
    rank = dist.get_rank(group)
    size = part.shape[axis] // len(now[rank])
    runs = dict(zip(now[rank], part.split(size, axis) if size else [part] * len(now[rank]), strict=True))
    nothing = part.narrow(axis, 0, 0)
    sent = [torch.cat([nothing, *[runs[run] for run in own if run in runs]], axis) for own in then]
    come = [[run for run in then[rank] if run in own] for own in now]
    shapes = [(*part.shape[:axis], size * len(own), *part.shape[axis + 1 :]) for own in come]
    found: dict[int, Any] = {}
    for own, piece in zip(come, begin(sent, shapes, group)(), strict=True):
        found |= zip(own, piece.split(size, axis) if size else [piece] * len(own), strict=bool(own))
    return torch.cat([found[run] for run in then[rank]], axis)
