"""Gradients that can be differentiated again: those of torch's own functions, in place of our kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def gradients_by_torch(
    function: Callable[..., Any], tensors: Sequence[Any], wanted: Sequence[bool], back: Any
) -> tuple[Any, ...]:
    """Return the gradients of the tensors that are wanted, ``None`` for the others.

    A function of several results has a gradient of each, or ``None``, in ``back``. Gradients are taken of aliases: one
    tensor may have been computed from another, as an input of a layer is from a weight that two layers share. Through
    the tensors themselves, that way would count here, and again where autograd gets there.
    """
    aliases = [None if each is None else each.view_as(each) for each in tensors]
    of: list[Any] = [each for each, is_wanted in zip(aliases, wanted, strict=True) if is_wanted]
    results, backs = function(*aliases), back
    if not isinstance(results, tuple):
        results, backs = (results,), (back,)
    pairs = [(result, own.to(result.dtype)) for result, own in zip(results, backs, strict=True) if own is not None]
    outputs, seeds = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, of, seeds, create_graph=True, materialize_grads=True))
    return tuple([next(found) if is_wanted else None for is_wanted in wanted])
