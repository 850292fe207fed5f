"""torch's own ``scaled_dot_product_attention`` in the graph of a program, where ours is faster.

With a mask, torch.compile has it computed by other kernels than torch does by itself, or by products and a softmax in
float32, and a mask that hides nothing is one, too. Without a mask it is a library's kernel; ours are faster on Hopper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from einops_fast.compiler.attention import Reader
from einops_fast.compiler.attention_call import Attention, Mask
from einops_fast.compiler.constants import constant_of, guarded
from einops_fast.compiler.masks import Band, band_of
from einops_fast.compiler.match import Miss, Read
from einops_fast.compiler.nest import Dim, Dims, Label, fresh
from einops_fast.compiler.nodes import argument, dtype_of, example_of, expression, name_of, shape_of
from einops_fast.compiler.views import broadcast, operand_of

_HALVES = (torch.float16, torch.bfloat16)
_LEAST_SCORES = 1 << 22
"""In all heads, for which our kernels are sooner ready than the host."""


def match_library_attention(node: Node) -> Attention | None:
    """Return the attention that a call of torch's function is; ``None`` if it is none, or as fast as ours."""
    if name_of(node) != "scaled_dot_product_attention":
        return None
    q, k, v = (argument(node, at, name) for at, name in enumerate(("query", "key", "value")))
    mask, causal = argument(node, 3, "attn_mask"), argument(node, 5, "is_causal", False)
    of_q, of_k = shape_of(q) or (), shape_of(k) or ()
    if min(len(of_q), len(of_k)) < 2 or not _is_faster(q, k, mask):
        return None
    scale, grouped = node.kwargs.get("scale"), node.kwargs.get("enable_gqa", False)
    factor, dropout_p = constant_of(guarded(scale)), constant_of(guarded(argument(node, 4, "dropout_p", 0.0)))
    known = dropout_p is not None and (scale is None or factor is not None)
    if not known or not isinstance(causal, bool) or (causal and mask is not None) or of_q[-1] == 1:
        raise Miss("unsupported option", node)
    result = fresh(shape_of(node) or ())
    *batch, rows, columns = result
    keys, features = Label(expression(of_k[-2]), whole=True), Label(expression(of_q[-1]), whole=True)
    shared = _shared(batch, of_k) if grouped else batch
    reader = Reader((keys,), whole=False)
    q_read = operand_of(q, _fitted((*batch, rows, (features,)), q, node))
    k_read = operand_of(k, _fitted((*shared, (keys,), (features,)), k, node))
    v_read = operand_of(v, _fitted((*shared, (keys,), columns), v, node))
    target, result = reader.permuted(node, result, [])
    reader.features, reader.dropout_p = (features,), dropout_p or 0.0
    if mask is not None:
        read = Read(mask, _fitted((*batch, rows, (keys,)), mask, node))
        if dtype_of(mask) == torch.bool:
            reader.masks.append(Mask(read, True, -math.inf))
        else:
            reader.biases.append(read)
    band = Band(None, 0, "top_left") if causal else None
    return Attention(
        target, result, q_read, k_read, v_read, reader, factor, "zeros", reader.inner, band=band, rows=rows
    )


def _fitted(dims: Sequence[Dim], operand: Node, node: Node) -> Dims:
    """Return what indexes an operand, which has one element where the others are many, or lacks the axis."""
    found = broadcast(tuple(dims), operand)
    if found is None:
        raise Miss("broadcast", node)
    return found


def _shared(batch: Sequence[Dim], shape: Sequence[Any]) -> list[Dim]:
    """Return what indexes the batch axes of keys and values whose heads several heads of queries share."""
    *others, heads = batch
    count = expression(shape[-3])
    if heads and count != 1 and heads[0].size != count:
        heads[0].split(count)
        heads = heads[0].parts[:1]
    return [*others, heads]


def _is_faster(q: Node, k: Node, mask: Any) -> bool:
    """Return whether ours is faster than torch's function is when it's compiled."""
    value, keys = example_of(q), example_of(k)
    if mask is not None:
        if value.is_cuda:
            return True
        # A CPU has one function for all masks, but some hide nothing.
        rank, seen = len(shape_of(mask) or ()), True if dtype_of(mask) == torch.bool else None
        return rank > 1 and band_of(mask, (rank - 2, rank - 1), seen) is not None
    if not value.is_cuda or value.dtype not in _HALVES or torch.cuda.get_device_capability(value.device)[0] != 9:
        return False
    sizes = (*value.shape, keys.shape[-2])
    known = all(isinstance(size, int) for size in sizes)
    return known and not sizes[-2] % 32 and math.prod(sizes) // sizes[-2] >= _LEAST_SCORES
