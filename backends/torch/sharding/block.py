"""Attention inside torch's ``context_parallel`` block, where tensors are a rank's parts of a sequence."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from einops_fast.attention.options import Request
from einops_fast.backends.torch.sharding.attention import attend_sharded, read_axes
from einops_fast.backends.torch.sharding.placing import ANY
from einops_fast.errors import OperandError


def attend_in_block(mesh: Any, request: Request, arrays: dict[str, Any]) -> Any:
    """Return this rank's part of attention to the whole sequence, of the parts that the ranks of a mesh have.

    torch gives each rank an early and a late part if it balances causal masks, and keeps that in its options.
    """
    module = sys.modules[torch.nn.functional.scaled_dot_product_attention.__module__]
    spread = mesh.size() > 1 and bool(module._cp_options.enable_load_balance)
    pattern, terms = read_axes(request, arrays)
    given = {}
    for (name, array), term in zip(arrays.items(), terms, strict=True):
        axes = [term.index(label) for label in (pattern.queries, pattern.keys) if label and label in term]
        axes = [axis for axis in axes if array.shape[axis] > 1 or name in "qkv"]
        if len(axes) > 1 or ANY in term or name == "alibi_slopes":
            raise OperandError(
                f"{name} isn't for a context_parallel block, which says nothing about where a rank's part of it is: "
                "call attention on DTensors outside of the block"
            )
        if spread and axes and array.shape[axes[0]] % 2:
            raise OperandError(
                f"{name} has {array.shape[axes[0]]} positions in axis {axes[0]}, which are no early and late half: in "
                "this context_parallel block, whose parts are balanced, their number is even"
            )
        given[name] = DTensor.from_local(array, mesh, [Shard(axes[0]) if axes else Replicate()])
    result = attend_sharded(request, given, spread)
    return tuple([each.to_local() for each in result]) if isinstance(result, tuple) else result.to_local()
