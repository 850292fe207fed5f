"""Canonical arrays as the ``(batch, heads, length, features)`` that libraries take, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, permutations
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from einops_fast.attention.axes import View
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.types import PLAIN
from einops_fast.planning.cost import ITEM_SIZES

if TYPE_CHECKING:
    from einops_fast.attention.prepare import Plan

ALIGNED = 16
"""Bytes that libraries read at a time: addresses and strides of q, k and v are to be multiples."""


class FourAxes(NamedTuple):
    """Which batch axes become the batch, and which the heads."""

    cut: int  # number of axes that become the batch
    batch: int  # size of the batch
    heads: int  # heads of q
    kv_heads: int  # heads of k and v; q's are a multiple
    sizes: tuple[int, ...]  # of the batch axes of q and the result, and of k and v
    kv_sizes: tuple[int, ...]

    @property
    def grouped(self) -> bool:
        """Whether several heads of q share one of k and v."""
        # A comparison of symbolic sizes is no bool.
        return True if self.heads != self.kv_heads else False  # noqa: SIM210

    def q(self, array: Any) -> Any:
        return self._view(array, self.sizes, self.heads)

    def kv(self, array: Any) -> Any:
        return self._view(array, self.kv_sizes, self.kv_heads)

    def _view(self, array: Any, sizes: tuple[int, ...], heads: int) -> Any:
        shape = array.shape
        if shape[:-2] != sizes:
            array = array.expand(*sizes, *shape[-2:])
        return array if len(sizes) == 2 and self.cut == 1 else array.reshape(self.batch, heads, *shape[-2:])

    def scores(self, array: Any) -> Any:
        """Return a bias or mask; axes of size 1 stay so, unless there are others that become one with them."""
        tail, own = array.shape[-2:], list(array.shape[:-2])
        for part in (slice(0, self.cut), slice(self.cut, None)):
            if any(size != 1 for size in own[part]):
                own[part] = self.sizes[part]
        if own != list(array.shape[:-2]):
            array = array.expand(*own, *tail)
        return array.reshape(prod(own[: self.cut]), prod(own[self.cut :]), *tail)

    def back(self, result: Any) -> Any:
        """Return the result, or what has an element per query, in canonical form."""
        if len(self.sizes) == 2 and self.cut == 1:
            return result
        return result.reshape(*self.sizes, *result.shape[2:])


def four_axes(spec: AttentionSpec, expands: bool = False) -> FourAxes | str:
    """Return how the batch axes of a spec merge into two, or why they don't.

    ``expands``: a bias or mask may be copied to have all the axes that become one.
    """
    count = len(spec.batch)
    # Packed sequences lie along the positions: none of their axis is left.
    batch = (1, *spec.batch[1:]) if spec.varlen else spec.batch
    together = list(zip(spec.q_batch, spec.k_batch, spec.v_batch, strict=True))
    shared = count
    while shared and together[shared - 1][1:] == (1, 1) and together[shared - 1][0] != 1:
        shared -= 1
    kv_sizes = (*batch[:shared], *(1,) * (count - shared))
    # One axis for the batch and all others for the heads is what everyone has; else whatever merges.
    for cut in dict.fromkeys((min(1, shared), *range(shared, -1, -1))):
        apart = cut < 2 and count - cut < 2  # no axes have to merge
        merges = apart or all(
            _merge(sizes[part], strides[part])
            for sizes, strides in _expanded(spec, batch, kv_sizes)
            for part in (slice(0, cut), slice(cut, count))
        )
        biases = (
            apart
            or expands
            or all(_merges_scores(shape, batch, cut) for shape in (spec.bias, spec.mask) if shape is not None)
        )
        if merges and biases:
            return FourAxes(cut, prod(batch[:cut]), prod(batch[cut:]), prod(kv_sizes[cut:]), batch, kv_sizes)
    if not expands and four_axes(spec, True) != _NO_MERGE:
        return "a bias or mask has some but not all of the axes that become its heads"
    return _NO_MERGE


_NO_MERGE = "its batch axes can't be seen as one of batch and one of heads without a copy"


def _expanded(
    spec: AttentionSpec, batch: tuple[int, ...], kv_sizes: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the sizes and strides of the batch axes of q, k and v, missing ones expanded."""
    found = []
    own_sizes = (spec.q_batch, spec.k_batch, spec.v_batch)
    for own, wanted, strides in zip(own_sizes, (batch, kv_sizes, kv_sizes), spec.strides, strict=False):
        expanded = tuple(
            stride if size == full else 0 for size, full, stride in zip(own, wanted, strides, strict=False)
        )
        found.append((wanted, expanded))
    return found


def _merge(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether axes merge into one."""
    real = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    if any(size == 0 for size, _ in real):
        return True
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(real))


def _merges_scores(shape: Sequence[int], batch: Sequence[int], cut: int) -> bool:
    """Return whether a bias has all or none of the axes that become one."""
    for part in (slice(0, cut), slice(cut, len(batch))):
        have = [size != 1 for size, full in zip(shape[part], batch[part], strict=True) if full != 1]
        if any(have) and not all(have):
            return False
    return True


def odd_strides(spec: AttentionSpec) -> bool:
    """Return whether a stride of q, k or v, but of the features, is no multiple of :data:`ALIGNED` bytes."""
    item = ITEM_SIZES[spec.dtype]
    return any(stride * item % ALIGNED for strides in spec.strides for stride in strides[:-1])


def odd_addresses(inputs: AttentionInputs) -> bool:
    """Return whether q, k or v doesn't begin at a multiple of :data:`ALIGNED` bytes; tensors without memory do."""
    return any(type(each) in PLAIN and each.data_ptr() % ALIGNED for each in (inputs.q, inputs.k, inputs.v))


def aligned(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays, those that begin elsewhere than at a multiple of :data:`ALIGNED` bytes as copies.

    Who was chosen for calls of a kind gets all later ones, whose arrays may begin anywhere.
    """
    bits = 0
    for each in arrays:  # in one go: every call comes through here
        if type(each) not in PLAIN:
            return arrays
        bits |= each.data_ptr()
    if not bits % ALIGNED:
        return arrays
    return tuple([each.clone() if each.data_ptr() % ALIGNED else each for each in arrays])


def in_four_axes(plan: Plan, axes: FourAxes) -> list[Callable[[Any], Any]]:
    """Return how each array of a plan becomes one with four axes, and the result what was asked for."""

    def through(view: View, then: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda array: then(view(array, plan.on.permute))

    ways = axes.q, axes.kv, axes.kv, axes.scores
    seen = [through(view, way) for (_, view, _), way in zip(plan.views, ways, strict=False)]
    return [*seen, lambda found: plan.result(axes.back(found), plan.on.permute)]


class Way(NamedTuple):
    """How an array becomes a view of it, by axes alone."""

    change: Callable[[Any, int], Any] | None = None  # puts an axis of size 1 in, or takes one out, if need be
    at: int = 0  # its place
    order: tuple[int, ...] = ()  # of the axes after that; empty for the one that they have

    def go(self, array: Any) -> Any:
        change, at, order = self
        if change is not None:
            array = change(array, at)
        return array.permute(order) if order else array


def way_to(array: Any, view: Callable[[Any], Any], flat: bool = False) -> Way | None:
    """Return the way from an array to a view of it; ``None`` if there is none.

    ``flat``: leading axes of size 1 that the view has more needn't be there.
    """
    array = array.detach()
    seen = view(array)
    if seen.untyped_storage()._cdata != array.untyped_storage()._cdata:  # it was copied
        return None
    more = seen.dim() - array.dim()
    if flat and all(size == 1 for size in seen.shape[:more]):
        seen, more = seen[(0,) * more], 0
    wanted, changed = _walk(seen), list(_changed(array, more))
    for order in permutations(range(seen.dim())):
        for change, at, candidate in changed:
            if _walk(candidate.permute(order)) == wanted:
                return Way(change, at, () if order == tuple(range(len(order))) else order)
    return None


def _changed(array: Any, more: int) -> Iterator[tuple[Callable[[Any, int], Any] | None, int, Any]]:
    """Return an array with one axis of size 1 more or less, at each place; or as it is."""
    if more == 0:
        yield None, 0, array
    elif more == 1:
        for at in range(array.dim() + 1):
            yield torch.unsqueeze, at, array.unsqueeze(at)
    elif more == -1:
        for at, size in enumerate(array.shape):
            if size == 1:
                yield torch.squeeze, at, array.squeeze(at)


def _walk(array: Any) -> list[tuple[int, int]]:
    """Return the sizes and strides, where there is something to walk along."""
    return [(size, stride if size > 1 else 0) for size, stride in zip(array.shape, array.stride(), strict=True)]


def on_the_way(run: Callable[..., Any], ways: Sequence[Way]) -> Callable[..., Any]:
    """Return ``run`` on arrays that go a way each, as its result does, whose way is the last one."""
    if all(way == Way() for way in ways):
        return run
    if len(ways) == 4 and all(way.order and not way.change for way in ways):
        permute = torch.permute  # takes less time than the method of the same name
        of_q, of_k, of_v, of_result = (way.order for way in ways)
        return lambda q, k, v: permute(run(permute(q, of_q), permute(k, of_k), permute(v, of_v)), of_result)
    *gone, returned = [None if way == Way() else way.go for way in ways]

    def call(*arrays: Any) -> Any:
        found = run(*[array if go is None else go(array) for array, go in zip(arrays, gone, strict=True)])
        return found if returned is None else returned(found)

    return call


def ways_by_axes(
    plan: Plan, axes: FourAxes, views: Sequence[Callable[[Any], Any]], arrays: Sequence[Any], flat: bool
) -> list[Way] | None:
    """Return the ways of a call's arrays and its result by :func:`in_four_axes`; ``None`` if one has none.

    ``flat``: a bias or mask of two axes needs no more.
    """
    result = torch.empty((axes.batch, axes.heads, plan.spec.q_len, plan.spec.v_head_dim), device="meta")
    *of_operands, of_result = _ways_of_views(plan, axes, arrays)
    told = [*of_operands, *[None] * (len(arrays) - 3), of_result]
    found = [
        way or way_to(array, view, flat and at == 3 < len(arrays) and array.dim() == 2)
        for at, (way, array, view) in enumerate(zip(told, (*arrays, result), views, strict=True))
    ]
    return None if None in found else [way for way in found if way is not None]


def _ways_of_views(plan: Plan, axes: FourAxes, arrays: Sequence[Any]) -> list[Way | None]:
    """Return the ways of q, k, v and the result, where views tell them without sizes; ``None`` where they don't."""
    spec, found = plan.spec, list[list[_Place] | None]()
    # Heads of q that share those of k are split in two axes, and k and v get the second one, of one element.
    grouped = plan.views[0][1].split is not None
    usual = axes.cut == 1 and len(axes.sizes) == 2 + grouped and len(plan.result.shape or ()) == 4 * grouped
    own = (spec.q_batch, axes.sizes), (spec.k_batch, axes.kv_sizes), (spec.v_batch, axes.kv_sizes)
    for array, (_, view, _), (sizes, wanted) in zip(arrays, plan.views, own, strict=False):
        places = _split_places(array.shape, view.split)
        if view.perm is not None:
            places = [places[at] for at in view.perm]
        count, put_in = (5, 0) if grouped and not found else (4, 5 * grouped)
        told = usual and sizes == wanted and len(places) == count and len(view.shape or ()) == put_in
        found.append(_joined(places) if told else None)
    places = [(0, 0), *((1, at) for at in range(len(axes.sizes) - 1)), (2, 0), (3, 0)]
    found.append(_joined([places[at] for at in plan.result.perm or range(len(places))]) if usual else None)
    orders = [None if each is None else tuple([at for at, _ in each]) for each in found]
    return [Way(order=() if order == (0, 1, 2, 3) else order) if order else None for order in orders]


_Place = tuple[int, int]
"""An axis, and which part of it if it is split in two."""


def _split_places(shape: Sequence[int], split: Sequence[int] | None) -> list[_Place]:
    """Return the places of the axes of an array whose view splits one axis in two."""
    places = list[_Place]()
    for axis, size in enumerate(shape):
        places.append((axis, 0))
        if split is not None and split[len(places) - 1] != size:
            places.append((axis, 1))
    return places


def _joined(places: list[_Place]) -> list[_Place] | None:
    """Return the four axes that these are if both parts of one lie side by side behind the first; ``None`` if not."""
    joined = [place for at, place in enumerate(places) if not place[1] or at < 2 or places[at - 1] != (place[0], 0)]
    return joined if sorted(joined) == [(axis, 0) for axis in range(4)] else None


def order_of_axes(
    plan: Plan, axes: FourAxes, arrays: Sequence[Any], views: Sequence[Callable[[Any], Any]], ways: Sequence[Way]
) -> tuple[int, ...] | None:
    """Return the axes of batch, heads, positions and features, if arrays of all other sizes go the same ways."""
    if any(array.dim() != 4 for array in arrays[:3]):
        return None
    if len(arrays) > 3 and not (ways[3] == Way() and arrays[3].dim() in (2, 4) and arrays[3].is_contiguous()):
        return None
    first = ways[0]
    told = _ways_of_views(plan, axes, arrays)
    if None in told[:3]:
        # Of several axes of one element, and of gaps, no order can be told.
        if len({at for array in arrays[:3] for at, size in enumerate(array.shape) if size == 1}) > 1:
            return None
        told = [way_to(torch.empty(each.shape, device="meta"), view) for each, view in zip(arrays, views, strict=False)]
    if first.change is not None or [*told[:3], *ways[:3]] != [first] * 6:
        return None
    return first.order or (0, 1, 2, 3)
