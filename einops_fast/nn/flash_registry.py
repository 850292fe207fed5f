"""`register_flash_attention`: our attention by its name among torch's flash implementations."""

from __future__ import annotations

import torch.nn.attention

from einops_fast import patched
from einops_fast.errors import EinsumError


def register_flash_attention() -> None:
    """Make our attention known to torch (2.13 or newer) by name: ``activate_flash_attention_impl("einops_fast")``.

    Activated, it is ``patch("torch.sdpa")``, until ``torch.nn.attention.restore_flash_attention_impl()`` or until
    another one is activated: torch's ``scaled_dot_product_attention`` runs ours on CUDA tensors, also where torch's own
    choice wouldn't be a flash implementation (masks, float32).

    Raises:
        EinsumError: this torch has no such registry.

    Example:
        >>> import torch
        >>> from einops_fast import nn
        >>> nn.register_flash_attention()
        >>> torch.nn.attention.activate_flash_attention_impl("einops_fast")
        >>> torch.nn.attention.current_flash_attention_impl()
        'einops_fast'
        >>> torch.nn.attention.restore_flash_attention_impl()
    """
    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is None:
        raise EinsumError(f'torch {torch.__version__} has no registry of flash implementations: patch("torch.sdpa")')
    register("einops_fast", register_fn=_Activated)


class _Activated:
    def __init__(self) -> None:
        self._block = patched("torch.sdpa")
        self._block.__enter__()

    def remove(self) -> None:
        """Undo what activating did."""
        self._block.__exit__(None, None, None)
