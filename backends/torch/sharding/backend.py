"""DTensors as arrays of a backend: each rank makes its part of a result by the calls for plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import Shard

from einops_fast.backends import get_backend
from einops_fast.backends.base import Backend, Likeness, Run
from einops_fast.backends.torch.autocast import any_autocast, autocast_dtype
from einops_fast.backends.torch.backend import TorchBackend
from einops_fast.backends.torch.sharding.local import locally, reshaped, share
from einops_fast.backends.torch.sharding.placing import Placing, place
from einops_fast.errors import OperandError
from einops_fast.explanation import scaled
from einops_fast.planning.notation import Subscripts, bind_sizes


class ShardedBackend(TorchBackend):
    """DTensors: what is decided here is where the parts are; plans are made for those of a rank."""

    name = "DTensor"

    @staticmethod
    def attend(request: Any, arrays: dict[str, Any]) -> Any:
        # Imported here because attention is made of backends.
        from einops_fast.backends.torch.sharding.attention import attend_sharded

        return attend_sharded(request, arrays)

    def of_type(self, array_type: type) -> ShardedBackend:
        return self

    def signature(self, operands: Sequence[Any]) -> Hashable:
        key = tuple([
            (each.shape, each.stride(), each.dtype, each.placements, each.device_mesh, type(each)) for each in operands
        ])  # fmt: skip
        autocast = any_autocast() and autocast_dtype(operands[0].device.type)
        return key, autocast

    def likeness(self, operands: Sequence[Any], kernels: bool = False) -> Likeness | None:
        return None

    def at_once(self, operands: Sequence[Any], full: int = 0) -> Callable[..., Any] | None:
        return None

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return reshaped(array, shape)

    def room(self, operands: Sequence[Any]) -> int | None:
        # A rank that runs out of memory alone must not begin collectives that the others don't take part in.
        return None

    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        if out is not None and out.shape == result.shape:
            if any(each.is_partial() for each in out.placements):
                raise OperandError(f"out is a DTensor of pending sums, {out.placements}: give one that has its values")
            result = result.redistribute(placements=out.placements)
        return super().finish(result, out, order, casting)

    def own_way(self, subscripts: Subscripts, arrays: Sequence[Any], **options: Any) -> Run:
        # Imported here because fast_einsum is made of backends.
        from einops_fast.einsum import fast_einsum

        placing, sizes = _placing(subscripts, arrays)
        results = [(subscripts.output, [sizes[label] for label in subscripts.output])]
        contract = partial(fast_einsum, subscripts.equation, **options)
        return lambda *operands: locally(contract, operands, placing, results)

    def planned_parts(self, subscripts: Subscripts, arrays: Sequence[Any]) -> tuple[Backend, Sequence[Any], list[str]]:
        placing, _ = _placing(subscripts, arrays)
        mesh, parts, words = placing.mesh, [], []
        for dim, label in enumerate(placing.labels):
            name = f" ({mesh.mesh_dim_names[dim]!r})" if mesh.mesh_dim_names else ""
            does = (
                "all do the same" if label is None
                else "one operand's sums stay pending" if not label
                else f"share {subscripts.spelling(label)!r}"
                + ("" if label in subscripts.output else ", whose sum stays pending")
            )  # fmt: skip
            words.append(f"the {mesh.size(dim)} ranks of mesh dimension {dim}{name} {does}")
        for at, (array, target, sent) in enumerate(zip(arrays, placing.targets, placing.sent, strict=True)):
            shape = list(array.shape)
            for axis in range(array.ndim):
                dims = [dim for dim, each in enumerate(target) if each == Shard(axis)]
                shape[axis] = share(mesh, dims, shape[axis])[1]
            parts.append(torch.empty(shape, dtype=array.dtype, device=array.device, requires_grad=array.requires_grad))
            if target != array.placements:
                words.append(f"operand {at}: {array.placements} to {target}, {scaled(sent, 'B')} sent to each rank")
        return get_backend("torch"), parts, words


def _placing(subscripts: Subscripts, arrays: Sequence[Any]) -> tuple[Placing, dict[str, int]]:
    """Return how a contraction is shared, and the size of each label."""
    sizes = bind_sizes(subscripts, [tuple(array.shape) for array in arrays])
    shared = [label for label in sizes if all(term.count(label) < 2 for term in subscripts.inputs)]
    names = [f"operand {at}" for at in range(len(arrays))]
    return place(arrays, subscripts.inputs, subscripts.output, shared, names, linear=True), sizes
