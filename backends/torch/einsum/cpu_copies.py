"""torch's tensors on a CPU copied into C order block by block, through NumPy: see :mod:`.blocked_copies`."""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.backends.blocked_copies import block_extents, copy_in_blocks
from einops_fast.backends.torch.types import may_read_values

__all__ = ["contiguous"]

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What stands for elements of so many bytes: NumPy has no bfloat16, and nothing is computed."""

_SHARED = 1 << 21
"""Elements from which on threads are worth starting; of fewer, all threads copy as torch does."""

_MOST_THREADS = 8
"""More don't copy faster, since all of them take the interpreter's lock between two blocks."""


def contiguous(array: Any) -> Any:
    """``array.contiguous()``, in a part of the time where another axis becomes the fastest.

    What autograd or a transform has to see is left to torch, as are other devices.
    """
    threads = min(torch.get_num_threads(), _MOST_THREADS)
    bits = _BITS.get(array.element_size())
    if (
        (threads > 1 and array.numel() < _SHARED)
        or bits is None
        or not may_read_values(array)
        or array.layout is not torch.strided
        or (array.requires_grad and torch.is_grad_enabled())
        or array.is_complex()
        or array.is_neg()
        or (array.dim() == 2 and array.stride() == (1, array.shape[0]))  # a matrix, which torch copies in blocks, too
    ):
        return array.contiguous()
    extents = block_extents(tuple(array.shape), array.stride(), array.element_size())
    if extents is None:
        return array.contiguous()
    result = array.new_empty(array.shape)
    target, source = (each.detach().view(bits).numpy() for each in (result, array))
    copy_in_blocks(target, source, extents, threads)
    return result
