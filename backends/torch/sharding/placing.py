"""Choose, for each dimension of a mesh, the axis along which a call is shared out among its ranks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard

from einops_fast.errors import OperandError
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

ANY = " "
"""Stands in a term for an axis that has no label: it is whole on each rank."""

_WHOLE, _PENDING = Replicate(), Partial("sum")


@dataclass(frozen=True)
class Placing:
    """The plan of a call on a mesh; placements are tuples with one for each dimension of the mesh."""

    mesh: Any
    labels: tuple[str | None, ...]  # per dimension of the mesh, the label whose axes are sharded; "" for pending sums
    targets: tuple[tuple[Any, ...], ...]  # placements of each operand where the ranks compute
    gradients: tuple[tuple[Any, ...], ...]  # placements of the gradients that the ranks compute
    sent: tuple[float, ...]  # bytes that a rank receives to bring each operand to its placements

    def sharing(self, label: str) -> list[int]:
        """Return the dimensions of the mesh along which ranks share a label."""
        return [dim for dim, each in enumerate(self.labels) if each == label]

    def results(self, labels: str) -> tuple[Any, ...]:
        """Return the placements of a result with these labels: a label that it lacks was summed over."""
        return tuple(
            [
                _WHOLE if label is None else Shard(labels.index(label)) if label and label in labels else _PENDING
                for label in self.labels
            ]
        )


def place(
    arrays: Sequence[Any], terms: Sequence[str], output: str, shared: Collection[str], names: Sequence[str],
    linear: bool = False, shapes: Sequence[Sequence[int]] | None = None,
) -> Placing:  # fmt: skip
    """Choose what is sharded along each dimension of the mesh so that the fewest bytes are sent.

    A label is worth choosing where an operand is sharded along it already. What is in every operand's place already is
    never moved; otherwise, sums that are left pending count as what it takes to add them up.

    Args:
        arrays: DTensors.
        terms: the labels of the axes of each, :data:`ANY` for an axis that is whole on each rank. An axis of size 1
            whose label is longer in another array is broadcast, and whole as well.
        output: the labels of the result.
        shared: labels along which ranks may share the work; the result of those that the output lacks is a sum.
        names: of the arrays, for errors.
        linear: whether sums that are pending in one operand may stay pending in the result.
        shapes: of the arrays as the labels count them, where that isn't how many elements there are.

    Raises:
        OperandError: two arrays are on different meshes.
    """
    mesh = arrays[0].device_mesh
    for name, array in zip(names, arrays, strict=True):
        if array.device_mesh != mesh:
            raise OperandError(
                f"{names[0]} and {name} are DTensors of two meshes, {mesh} and {array.device_mesh}; "
                "distribute one of them over the other's mesh first"
            )
    shapes = [array.shape for array in arrays] if shapes is None else shapes
    kinds = tuple([(array.shape, array.placements, array.element_size()) for array in arrays])
    key = kinds, mesh, tuple(terms), tuple(map(tuple, shapes)), output, frozenset(shared), linear
    found = _placings.get(key)
    if found is None:
        found = _chosen(arrays, terms, output, shared, linear, shapes)
        keep(_placings, key, found)
    return found


_placings: dict[Hashable, Placing] = emptied_with_plans({})


def _chosen(
    arrays: Sequence[Any], terms: Sequence[str], output: str, shared: Collection[str], linear: bool,
    shapes: Sequence[Sequence[int]],
) -> Placing:  # fmt: skip
    mesh, sizes = arrays[0].device_mesh, sizes_of(terms, shapes)
    axes = [
        {
            label: at
            for at, (label, size) in enumerate(zip(term, shape, strict=True))
            if label in shared and size == sizes[label]
        }
        for term, shape in zip(terms, shapes, strict=True)
    ]
    item = max([array.element_size() for array in arrays])
    result = prod([sizes[label] for label in output]) * item
    chosen: list[str | None] = []
    targets: list[list[Any]] = []
    sent = [0.0] * len(arrays)
    for at in range(mesh.ndim):
        ranks = mesh.size(at)
        ways: list[tuple[str | None, list[Any]]] = [(None, [_WHOLE] * len(arrays))]
        labels = [
            label
            for own, array in zip(axes, arrays, strict=True)
            for label, axis in own.items()
            if type(array.placements[at]) is Shard and array.placements[at].dim == axis
        ]
        for each in sorted(dict.fromkeys(labels), key=lambda label: label not in output):
            ways.append((each, [Shard(own[each]) if each in own else _WHOLE for own in axes]))
        for operand, array in enumerate(arrays):
            if linear and _is_sum(array.placements[at]):
                ways.append(("", [_PENDING if own == operand else _WHOLE for own in range(len(arrays))]))
        costs = []
        for way, wanted in ways:
            moved = [_bytes(array, at, ranks, target) for array, target in zip(arrays, wanted, strict=True)]
            pending = 0.0 if way is None or (way and way in output) else result * (ranks - 1) / ranks
            moves = not all(_is_there(each.placements[at], to) for each, to in zip(arrays, wanted, strict=True))
            costs.append(((moves, moves * (sum(moved) + pending)), moved))
        best = min(range(len(ways)), key=lambda way: costs[way][0])
        chosen.append(ways[best][0])
        targets.append(ways[best][1])
        sent = [old + new for old, new in zip(sent, costs[best][1], strict=True)]
    gradients = [
        [
            _WHOLE if label is None or _is_sum(target) else _PENDING if target == _WHOLE else target
            for label, target in zip(chosen, own, strict=True)
        ]
        for own in zip(*targets, strict=True)
    ]
    return Placing(mesh, tuple(chosen), tuple(zip(*targets, strict=True)), tuple(map(tuple, gradients)), tuple(sent))


def sizes_of(terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the size of each label, where an axis of size 1 may stand for a longer one."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update({label: size for label, size in zip(term, shape, strict=True) if sizes.get(label, 1) == 1})
    return sizes


def _is_sum(placement: Any) -> bool:
    """Return whether a placement is a plain sum that is pending: others, as of masked embeddings, mean more."""
    return type(placement) is Partial and placement.reduce_op == "sum"


def _is_there(placement: Any, target: Any) -> bool:
    """Return whether nothing has to be sent for a placement: a share is a part of what each rank has."""
    return bool(placement.is_replicate() or (type(placement) is type(target) and placement == target))


def _bytes(array: Any, at: int, ranks: int, target: Any) -> float:
    """Return the bytes that a rank receives to bring an array to a placement along one dimension of the mesh."""
    placement = array.placements[at]
    if _is_there(placement, target):
        return 0.0
    others = [array.device_mesh.size(dim) for dim, each in enumerate(array.placements) if dim != at and each.is_shard()]
    whole: float = array.numel() * array.element_size() / prod(others) * (ranks - 1) / ranks
    if placement.is_partial():
        return whole if target.is_shard() else 2 * whole
    return whole / ranks if target.is_shard() and type(placement) is Shard else whole
