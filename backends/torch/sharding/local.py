"""From DTensors to what a rank has of them, and back, with gradients; and reshapes that move nothing if none has to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from einops_fast.backends.torch.sharding.placing import Placing

_PLAIN = (Partial, Replicate, Shard)


class _Local(torch.autograd.Function):
    """Redistribute an array and return the rank's local part.

    The gradient of a leaf takes the leaf's placements. That of what was computed may be a sum that stays pending:
    others may be added to it first.
    """

    @staticmethod
    def forward(ctx: Any, array: Any, targets: Any, gradients: Any, leaf: bool) -> Any:
        ctx.mesh, ctx.shape, ctx.gradients = array.device_mesh, array.shape, gradients
        # Autograd copies what lies otherwise than a leaf does, and torch before 2.13 makes replicas of that.
        ctx.axes = sorted(range(array.ndim), key=lambda axis: (array.stride(axis), -axis)) if leaf else None
        ctx.placements = []
        for own, gradient in zip(array.placements, gradients, strict=True):
            pending = gradient.is_partial() and own.is_replicate() and not leaf
            ctx.placements.append(gradient if pending else Replicate() if own.is_partial() else own)
        local = _moved(array, targets)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, d_local: Any) -> tuple[Any, ...]:
        found = _placed(d_local, ctx.mesh, ctx.gradients, ctx.shape, ctx.axes)
        if list(ctx.gradients) != ctx.placements:
            found = found.redistribute(placements=ctx.placements)
        return found, None, None, None


def _moved(array: Any, targets: Any) -> Any:
    """Return the rank's part of an array with these placements, without gradients."""
    plain = [own if type(own) in _PLAIN else Replicate() for own in array.placements]
    if list(map(type, plain)) != list(map(type, array.placements)):  # those of FSDP beside others, say
        array = array.redistribute(placements=plain)
    if array.placements != targets:
        array = array.redistribute(placements=targets)
    local = array.to_local()
    return local.wait() if hasattr(local, "wait") else local  # of a collective that is still under way


class _Tied(torch.autograd.Function):
    """A result that others have gradients of, zeros: a rank that doesn't use them takes part in adding these up."""

    @staticmethod
    def forward(ctx: Any, result: Any, *others: Any) -> Any:
        ctx.others = len(others)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, d_result: Any) -> tuple[Any, ...]:
        return d_result, *[None] * ctx.others


def tied(result: Any, others: Sequence[Any]) -> Any:
    """Return the result with gradients of others, which are what they would be without it."""
    apply: Callable[..., Any] = _Tied.apply
    return apply(result, *others) if others and torch.is_grad_enabled() and result.is_floating_point() else result


def _placed(
    local: Any, mesh: Any, placements: Sequence[Any], shape: Sequence[int], axes: Sequence[int] | None = None
) -> Any:
    """Return the DTensor that the ranks' parts make up, dense in the order of their axes, or in that of ``axes``.

    Those are the fastest first.
    """
    strides, step = [0] * len(shape), 1
    if axes is None:
        axes = sorted(range(len(shape)), key=lambda axis: (local.stride(axis), -axis) if local.numel() else -axis)
    else:
        slowest = axes[::-1]
        local = local.permute(slowest).contiguous().permute([slowest.index(axis) for axis in range(len(shape))])
    for axis in axes:
        strides[axis], step = step, step * max(shape[axis], 1)
    return DTensor.from_local(local, mesh, placements, shape=torch.Size(shape), stride=tuple(strides))


def locally(
    function: Callable[..., Any], arrays: Sequence[Any], placing: Placing, results: Sequence[tuple[str, Sequence[int]]]
) -> Any:
    """Return what ranks make of their parts: one DTensor, or a tuple of them where there are several results.

    Args:
        function: takes the parts, and returns that of the result, or of each in a tuple.
        arrays: DTensors.
        placing: how they are placed for it.
        results: labels and shape of each.
    """
    parts = _parts(arrays, placing.targets, placing.gradients)
    if placing.mesh.get_coordinate() is None:  # this process is none of its ranks
        several = tuple([parts[0].detach() for _ in results])
    else:
        made = function(*parts)
        several = made if isinstance(made, tuple) else (made,)
    if torch.is_grad_enabled() and any(each.requires_grad for each in parts) and not all(map(torch.numel, parts)):
        several = tuple([tied(each, parts) for each in several])
    found = [
        _placed(part, placing.mesh, placing.results(labels), shape)
        for part, (labels, shape) in zip(several, results, strict=True)
    ]
    return tuple(found) if len(found) > 1 else found[0]


def _parts(arrays: Sequence[Any], targets: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    apply: Callable[..., Any] = _Local.apply
    recorded = torch.is_grad_enabled()
    return [
        apply(array, target, gradient, array.is_leaf) if recorded and array.requires_grad else _moved(array, target)
        for array, target, gradient in zip(arrays, targets, gradients, strict=True)
    ]


def share(mesh: Any, dims: Sequence[int], size: int) -> tuple[int, int]:
    """Return where this rank's share of an axis begins and how long it is, if these dimensions of the mesh shard it."""
    start, at = 0, mesh.get_coordinate() or [0] * mesh.ndim
    for dim in dims:
        part = -(-size // mesh.size(dim))
        first = min(part * at[dim], size)
        start, size = start + first, min(part, size - first)
    return start, size


def reshaped(array: Any, shape: Sequence[int]) -> Any:
    """Return the DTensor of another shape: an axis stays sharded if ranks have whole parts of the new one."""
    mesh, old, new = array.device_mesh, list(array.shape), list(shape)
    moves = _leading_axes(old, new) if array.numel() else {}
    shards = [each.dim if type(each) is Shard else None for each in array.placements]
    ranks = {axis: prod([mesh.size(dim) for dim, each in enumerate(shards) if each == axis]) for axis in moves}
    kept = {
        axis: to for axis, to in moves.items()
        if old[axis] == new[to] or not (old[axis] % ranks[axis] or new[to] % ranks[axis])
    }  # fmt: skip
    targets = tuple([
        own if axis in kept or own.is_partial() else Replicate()
        for own, axis in zip(array.placements, shards, strict=True)
    ])  # fmt: skip
    gradients = tuple([Replicate() if each.is_partial() else each for each in targets])
    (local,) = _parts([array], [targets], [gradients])
    sizes = list(new)
    for axis, to in kept.items():
        dims = [dim for dim, each in enumerate(shards) if each == axis]
        sizes[to] = share(mesh, dims, new[to])[1]
    placements = [
        each if axis is None or each.is_replicate() else Shard(kept[axis])
        for each, axis in zip(targets, shards, strict=True)
    ]
    return _placed(local.reshape(sizes) if mesh.get_coordinate() else local, mesh, placements, new)


def _leading_axes(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """Return the axes that vary slowest in what a reshape makes of several, and where they are in the new shape."""
    found, at, to = {}, 0, 0
    while at < len(old) and to < len(new):
        first, other, size, wanted = at, to, old[at], new[to]
        at, to = at + 1, to + 1
        while size != wanted:
            if size < wanted:
                size, at = size * old[at], at + 1
            else:
                wanted, to = wanted * new[to], to + 1
        first = next((axis for axis in range(first, at) if old[axis] > 1), first)
        found[first] = next((axis for axis in range(other, to) if new[axis] > 1), other)
    return found
