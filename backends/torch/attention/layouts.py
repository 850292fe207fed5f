"""How the tensors of an attention lie: as the caller has them, in canonical order, as the kernels are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.backend import fp32_precision
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.problem import Layout, Problem, problem
from einops_fast.dtypes import dtype_name
from einops_fast.planning.layout import contiguous_in_order, contiguous_strides

LENGTHS = {"cu_seqlens_q": "q_starts", "cu_seqlens_kv": "kv_starts", "cache_seqlens": "cached"}
"""The arrays that kernels take contiguous, and what :class:`Extras` calls them."""

Arrays = tuple[Any, ...]
"""q, k and v, then the other arrays of :class:`~einops_fast.attention.spec.AttentionInputs`, in its order."""

NAMES = tuple([each.name for each in fields(AttentionInputs)])
"""Of these arrays."""

SINKS = NAMES.index("sinks")
"""Where the sinks are among them."""


def extras_of(arrays: Arrays) -> Extras:
    """Return all arrays but q, k and v."""
    found = Extras._make(arrays[3:])
    lengths = {name: each.contiguous() for name in LENGTHS.values() if (each := getattr(found, name)) is not None}
    return found._replace(**lengths) if lengths else found


def result_layout(spec: AttentionSpec, rows: int) -> Layout:
    """Return the shape and strides of the result, in the order that was asked for."""
    batch = (1, *spec.batch[1:]) if spec.varlen else spec.batch
    shape = (*batch, rows, spec.v_head_dim)
    return Layout(shape, contiguous_in_order(shape, spec.order or range(len(shape))), spec.dtype)


def layout_of(array: Any) -> Layout:
    """Return how a tensor lies."""
    return Layout(tuple(array.shape), tuple(array.stride()), dtype_name(array.dtype))


_IN_KERNELS = ("q", "k", "v", *Extras._fields[:6], "", "", "cached", "table", "")
"""The arrays as :class:`Problem` calls them, but those that nothing is planned by."""


def problem_of(
    spec: AttentionSpec,
    arrays: Arrays,
    device: tuple[tuple[int, int], int],
    gradients: Mapping[str, Layout] = MappingProxyType({}),
    apart: bool = False,
) -> Problem:
    """Return the problem of arrays in canonical order, their result, and gradients by what kernels call them."""
    named = zip(_IN_KERNELS, arrays, strict=True)
    layouts = {name: layout_of(array) for name, array in named if name and array is not None}
    layouts["out"] = result = result_layout(spec, arrays[0].shape[-2])
    layouts["lse"] = Layout(result.shape[:-1], contiguous_strides(result.shape[:-1]))
    precision = fp32_precision() if spec.dtype == "float32" else "ieee"
    return problem(spec, {**layouts, **gradients}, device, precision, apart)


def example(layout: Layout) -> Any:
    """Return a tensor that lies so, without memory."""
    return torch.empty_strided(layout.shape, layout.strides, dtype=getattr(torch, layout.dtype), device="meta")
