"""How torch shards the einsum operator on DTensors: a rule that follows from the equation."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy, register_op_strategy

from einops_fast.planning.notation import parse


def shardings(equation: str, shapes: list[tuple[int, ...]]) -> list[list[Any]]:
    """Return the placements of the result and of each operand along a dimension of the mesh, in all ways that fit.

    Either everything is replicated; or one label is sharded, in the result too, where it has it, and else the result is
    a pending sum; or one operand is a pending sum, and so is the result.
    """
    subscripts = parse(equation, tuple(map(len, shapes)), words=False)
    terms, every = subscripts.inputs, [Replicate()] * len(shapes)
    found: list[list[Any]] = [[Replicate(), *every]]
    for label in dict.fromkeys([label for term in terms for label in term]):
        of_result = Shard(subscripts.output.index(label)) if label in subscripts.output else Partial()
        pairs = zip(terms, shapes, strict=True)
        axes = [next((at for at, (own, size) in enumerate(zip(*pair, strict=True)) if own == label and size > 1), None)
                for pair in pairs]  # fmt: skip
        if any(axis is not None for axis in axes):
            found.append([of_result, *[Replicate() if axis is None else Shard(axis) for axis in axes]])
    for at in range(len(shapes)):
        found.append([Partial(), *[Partial() if other == at else Replicate() for other in range(len(shapes))]])
    return found


def register(operator: Any) -> None:
    """Have torch know it. Its own ``register_sharding`` keeps answers that differ in the equation under one key."""

    @register_op_strategy(operator, schema_info=RuntimeSchemaInfo(1, needs_pytree=True))
    def strategy(schema: Any) -> Any:
        operands, equation = schema.args_schema[:2]
        shapes = [tuple(each.shape) for each in operands.children]
        return expand_to_full_mesh_op_strategy(schema.get_mesh_from_args(), schema, shardings(equation, shapes))
