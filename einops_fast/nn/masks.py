"""Masks as transformers hands them to its attention, and what attention is told instead, which costs less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from einops_fast.errors import ShapeError

__all__ = ["Seen", "hides_all_keys", "read_mask"]


@dataclass(frozen=True)
class Seen:
    """Which keys a query sees, as :func:`einops_fast.attention` takes it.

    Attributes:
        causal: whether keys after the query are hidden, the first query facing the first key.
        mask: boolean, True where a key is seen.
        bias: what is added to the scores.
        hides_all: whether some query gets the lowest number for every key, which makes its scores one number, so that
            its result is the mean of all values; the log of the denominator, which the backward kernels start from, is
            that number, too.
    """

    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    hides_all: bool = False


# By the mask itself, for as long as it lives: all layers of a model get the same one. With its version, which counts
# changes in place; `None` where the mask has to be taken as it is.
_read: Any = WeakIdKeyDictionary()


def read_mask(mask: Tensor, length: int, kv_length: int) -> Seen:
    """What a mask of four axes, (batch, heads, queries, keys), means.

    One that adds zeros and the lowest number hides keys, like a boolean one; one that hides what is after the query,
    and keys of some sequences, becomes ``causal`` and a mask of keys. To find that out waits for the GPU, once per
    mask. It isn't done for the one query of a step of generation, nor while a graph is traced or captured.

    Args:
        mask: boolean, True where a key is seen, or numbers to be added.
        length: how many queries there are.
        kv_length: how many keys there are.

    Raises:
        ShapeError: it has another number of axes.
    """
    if mask.dim() != 4:
        raise ShapeError(f"a mask has four axes (batch, heads, queries, keys), not shape {tuple(mask.shape)}")
    found = _remembered(mask) if length > 1 else None
    if found is None or found.hides_all:
        found = Seen(mask=mask) if mask.dtype == torch.bool else Seen(bias=mask)
    if mask.shape[-1] <= kv_length:
        return found
    # Older versions of transformers make masks for the keys of the whole cache.
    return Seen(found.causal, _first(found.mask, kv_length), _first(found.bias, kv_length))


def hides_all_keys(mask: Tensor, length: int) -> bool:
    """Whether a mask of numbers, looked at as by :func:`read_mask`, leaves some query without any key."""
    if mask.dtype == torch.bool or length == 1:
        return False
    found = _remembered(mask)
    return found is not None and found.hides_all


def _first(mask: Tensor | None, kv_length: int) -> Tensor | None:
    return mask if mask is None or mask.shape[-1] == 1 else mask[..., :kv_length]


def _can_look(mask: Tensor) -> bool:
    return not (
        torch.compiler.is_compiling()
        or type(mask) is not torch.Tensor
        or mask.requires_grad
        or mask.is_meta
        or mask.is_inference()  # has no version
        or not mask.numel()
        or torch._C._are_functorch_transforms_active()
        or (mask.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _remembered(mask: Tensor) -> Seen | None:
    """What is known of a mask, after a look at it; ``None`` if it is best taken as it is, or can't be looked at."""
    if not _can_look(mask):
        return None
    known = _read.get(mask)
    if known is None or known[0] != mask._version:
        # What is kept must not be a view of the mask: it would keep the mask.
        known = mask._version, _look(mask)
        _read[mask] = known
    found: Seen | None = known[1]
    return found


def _look(mask: Tensor) -> Seen | None:
    """What the mask means, if it isn't best taken as it is."""
    boolean = mask.dtype == torch.bool
    seen = mask if boolean else mask == 0
    keys = seen.any(2, keepdim=True)
    ends = torch.ones(mask.shape[2:], dtype=torch.bool, device=mask.device).tril()
    facts = [(seen == keys).all(), (seen == (keys & ends)).all(), keys.all()]
    if not boolean:
        lowest = mask <= torch.finfo(mask.dtype).min
        facts += [(seen | lowest).all(), lowest.all(-1).any()]
    of_keys, causal, every_key, *of_numbers = torch.stack(facts).tolist()
    if of_numbers and of_numbers[1]:
        return Seen(hides_all=True)
    if of_numbers and not of_numbers[0]:
        return None
    if of_keys or causal:
        return Seen(not of_keys, None if every_key else keys)
    return None if boolean else Seen(mask=seen)
