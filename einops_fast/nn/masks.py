"""Which masks of transformers may hide all keys of a query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from einops_fast.attention.torch_state import hides_values
from einops_fast.backends.torch.types import PLAIN, may_read_values

__all__ = ["may_hide_all_keys"]

# By a mask on a GPU: its version, the layers that got the answer, and the answer.
_answers: Any = WeakIdKeyDictionary()


def may_hide_all_keys(mask: Tensor, layer: int | None) -> bool:
    """Return whether a mask of numbers may give some query the lowest number for every key.

    Rounding makes the scores of such a query one number, and decides its gradients. In a traced graph, where values
    can't be read, every mask of numbers may do so. On a GPU, to read waits for it: all layers of a model that get the
    same mask wait once, in each forward.
    """
    if may_read_values(mask):
        return _hides_all_keys(mask)
    if type(mask) not in PLAIN or not mask.is_cuda or hides_values(mask):
        return True
    if layer is None or mask.is_inference():
        return _hides_all_keys(mask)
    version, layers, answer = _answers.get(mask, (None, set(), True))
    if version != mask._version or layer in layers:  # another forward, before which the mask may have changed
        layers, answer = set(), _hides_all_keys(mask)
    layers.add(layer)
    _answers[mask] = mask._version, layers, answer
    return bool(answer)


def _hides_all_keys(mask: Tensor) -> bool:
    return bool((mask.detach() <= torch.finfo(mask.dtype).min).all(-1).any())
