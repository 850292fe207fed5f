"""What the operands of a contraction are views of, in memory as they lie."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.constants import times_number
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dims
from einops_fast.compiler.nodes import dtype_of, name_of, shape_of, source_of
from einops_fast.compiler.views import is_cast, seen_through


def operand_of(node: Any, dims: Dims, user: Node | None, *, scaled: bool = False) -> Read:
    """Return the tensor that an operand is a view of.

    Args:
        node: the operand.
        dims: what indexes it.
        user: the node that can't be followed if it is no tensor.
        scaled: whether to follow products with numbers, too.
    """
    factor, copies = 1.0, []
    while isinstance(node, Node):
        seen = seen_through(node, dims)
        if seen is not None:
            copies.append(node)
            node, dims = seen
            continue
        product = times_number(node) if scaled and name_of(node) in ("mul", "div") else None
        if product is None or shape_of(product[0]) != shape_of(node) or dtype_of(product[0]) != dtype_of(node):
            break
        copies.append(node)
        node, factor = product[0], factor * product[1]
    if not isinstance(node, Node):
        assert user is not None
        raise Miss("unknown", user)
    return Read(node, dims, factor, tuple(copies))


def narrowed(q: Read, k: Read, dtype: torch.dtype | None) -> tuple[Read, Read]:
    """Read queries and keys before they were converted to float32, where values are of that dtype.

    Products are summed in float32 anyway.
    """
    found = []
    for read in (q, k):
        narrow = is_cast(read.node) and dtype_of(source_of(read.node)) == dtype
        if not narrow or dtype not in (torch.float16, torch.bfloat16) or dtype_of(read.node) != torch.float32:
            return q, k
        before = operand_of(source_of(read.node), read.dims, read.node, scaled=True)
        copies = (*read.copies, read.node, *before.copies)
        found.append(Read(before.node, before.dims, read.factor * before.factor, copies))
    return found[0], found[1]
