"""Scores of several blocks of keys that are joined before the softmax: attention to the keys of all blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Node

from einops_fast.compiler.layout import labels_of
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims, Label, expanded, fresh
from einops_fast.compiler.nodes import argument, dtype_of, shape_of, source_of

if TYPE_CHECKING:
    from einops_fast.compiler.attention import Reader


def blocks_of(reader: Reader, node: Node, dims: Dims, factor: float) -> tuple[Read, Read, float]:
    """Return queries, the joined keys and the scale of scores that a node joins along the keys."""
    (axis,) = [at for at, dim in enumerate(dims) if expanded(dim) == reader.keys]
    joined, along = source_of(node), argument(node, 1, "dim", 0)
    if not isinstance(along, int) or along % len(dims) != axis:
        raise Miss("different offset", node)
    (keys,), found = reader.keys, []
    for scores in joined:
        (own,) = fresh([(shape_of(scores) or ())[axis]])
        branch = reader.branch()
        branch.inner, branch.keys = [node], own
        for label in own:
            label.whole = True
        changes = branch.changes()
        try:
            q, k, scale = branch.scores(scores, (*dims[:axis], own, *dims[axis + 1 :]), factor)
        except Miss as miss:
            raise Miss(miss.reason or "unsupported option", miss.node) from miss  # as a sink that isn't left out
        if len(own) != 1 or len(branch.features) != 1 or branch.features[0].parts or branch.changes() != changes:
            raise Miss("unsupported option", scores)  # which the other blocks don't have
        reader.inner += branch.inner
        found.append((q, k, scale, {own[0]: keys, branch.features[0]: branch.features[0]}, branch.features))
    q, _, scale, _, features = found[0]
    reader.features = features
    parts = []
    for other, k, own_scale, names, of_block in found:
        names[of_block[0]] = features[0]
        alike = other.node is q.node and _renamed(other.dims, names) == _renamed(q.dims, {})
        if not alike or own_scale != scale or dtype_of(k.node) != dtype_of(found[0][1].node):
            raise Miss("unsupported option", node)
        parts.append(k._replace(dims=_renamed(k.dims, names)))
    every = dict.fromkeys([label for part in parts for label in labels_of(part.dims) if label.at is None])
    copies = tuple([each for block in found for read in block[:2] for each in read.copies])
    whole = tuple([(label,) for label in every])
    return q, Read(parts[0].node, whole, 1.0, copies, tuple(parts), keys), scale


def _renamed(dims: Dims, names: dict[Label, Label]) -> Dims:
    return tuple([tuple([names.get(label, label) for label in expanded(dim)]) for dim in dims])
