"""What the operands of a contraction are views of, in memory as they lie."""

from __future__ import annotations

import torch
from torch.fx import Node

from einops_fast.compiler.constants import times_number
from einops_fast.compiler.match import Read
from einops_fast.compiler.nest import Dims
from einops_fast.compiler.nodes import dtype_of, name_of, shape_of, source_of
from einops_fast.compiler.views import is_cast, seen_through


def operand_of(node: Node, dims: Dims, *, scaled: bool = False) -> Read:
    """Return the tensor that an operand is a view of, and if ``scaled`` a number that it is multiplied by."""
    factor, copies = 1.0, list[Node]()
    while True:
        seen = seen_through(node, dims)
        if seen is None and scaled and name_of(node) in ("mul", "div"):
            product = times_number(node)
            alike = product is not None and all(of(product[0]) == of(node) for of in (shape_of, dtype_of))
            if product is not None and alike:
                seen, factor = (product[0], dims), factor * product[1]
        if seen is None:
            return Read(node, dims, factor, tuple(copies))
        copies.append(node)
        node, dims = seen


def narrowed(q: Read, k: Read, dtype: torch.dtype | None) -> tuple[Read, Read]:
    """Read queries and keys before they were converted to float32, where values are of that dtype.

    Products are summed in float32 anyway.
    """
    found = []
    for read in (q, k):
        narrow = is_cast(read.node) and dtype_of(source_of(read.node)) == dtype
        if not narrow or dtype not in (torch.float16, torch.bfloat16) or dtype_of(read.node) != torch.float32:
            return q, k
        before = operand_of(source_of(read.node), read.dims, scaled=True)
        copies = (*read.copies, read.node, *before.copies)
        found.append(Read(before.node, before.dims, read.factor * before.factor, copies))
    return found[0], found[1]
