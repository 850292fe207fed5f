"""A recorded call, made again of torch's tensors with other numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from einops_fast.attention.attend import attend
from einops_fast.attention.options import Options, Request
from einops_fast.backends import get_backend
from einops_fast.backends.torch.beginning import sample_like
from einops_fast.backends.torch.ops.fused import FUNCTIONS
from einops_fast.einsum import plan_call
from einops_fast.errors import EinsumError
from einops_fast.observing.calls import Called, Layout
from einops_fast.planning.notation import Subscripts, parse
from einops_fast.planning.plan import compile_plan
from einops_fast.runtime.precision import allow_precision


def numbers_like(layout: Layout, device: int | str) -> Any:
    """Return a tensor of this layout on a GPU by its number, or without memory on ``meta``."""
    meta = torch.empty_strided(
        layout.shape, layout.strides, dtype=getattr(torch, layout.dtype), device="meta", requires_grad=layout.gradient
    )
    return meta if device == "meta" else sample_like(meta, device)


def run_of(call: Called, arrays: Sequence[Any]) -> Callable[..., Any]:
    """Return what makes a call of arrays like these."""
    if call.kind == "einsum":
        given, backend = call.given, get_backend("torch")
        dtype = None if given["dtype"] is None else getattr(torch, given["dtype"])
        plan = plan_call(
            subscripts_of(call), backend, arrays, dtype, "safe", optimizer_of(call), given["order"], given["memory"]
        )
        return compile_plan(plan, backend)
    if call.kind == "attention":
        request, names = request_of(call), call.given["names"]
        return lambda *arrays: attend(request, dict(zip(names, arrays, strict=True)))
    if call.what not in FUNCTIONS:
        raise EinsumError(f"there is no operator {call.what!r} of torch's tensors")
    run: Callable[..., Any] = FUNCTIONS[call.what](*arrays, *call.given["arguments"])
    return run


def precision_of(call: Called) -> AbstractContextManager[Any]:
    """Return a block in which products of float32 have the precision that a call had."""
    precision = call.given.get("precision", "ieee")
    return nullcontext() if precision == "ieee" else allow_precision(precision)


def subscripts_of(call: Called) -> Subscripts:
    """Return the equation of a contraction."""
    return parse(call.what, tuple([0 if each is None else len(each.shape) for each in call.arrays]))


def optimizer_of(call: Called) -> Any:
    """Return the order in which pairs were contracted."""
    path = call.given["path"]
    return path if path == "auto" else [tuple(pair) for pair in path]


def request_of(call: Called) -> Request:
    """Return what was asked for of an attention."""
    given = call.given
    options: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in given["options"].items()
    }
    sequence, longest = (None if given[name] is None else tuple(given[name]) for name in ("sequence", "longest"))
    patterns = tuple([(name, pattern) for name, pattern in given["patterns"]])
    return Request(call.what, sequence, Options(**options), patterns, longest)
