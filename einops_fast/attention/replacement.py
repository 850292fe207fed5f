"""The function that stands for torch's ``scaled_dot_product_attention`` while that is patched.

It is ours for plain tensors on CUDA devices. Everything else goes to the native function unchanged: a CPU, where it
is what we would call; subclasses and modes that want to see the call; code that torch.compile or torch.jit traces;
blocks of ``sdpa_kernel``; and bad calls, so that errors are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from einops_fast.attention.drop_in import scaled_dot_product_attention
from einops_fast.attention.torch_state import is_ours
from einops_fast.errors import EinsumError

__all__ = ["AttentionReplacement"]


class AttentionReplacement:
    """Stands for ``native``.

    Attributes:
        native: the function that is replaced.
        function: what to replace it with.
        active: while False, ``function`` only calls ``native``, for those who kept a reference to it.
    """

    def __init__(self, native: Callable[..., Any]) -> None:
        self.native = native
        self.active = False
        self.function = self._function()
        # What torch.compile traces in its place.
        self.function._torchdynamo_inline = native  # type: ignore[attr-defined]

    def _function(self) -> Callable[..., Any]:
        native = self.native

        @wraps(native)
        def function(query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
            if self.active and is_ours(query, key, value, *arguments, *options.values()):
                try:
                    return scaled_dot_product_attention(query, key, value, *arguments, **options)
                except (EinsumError, TypeError):
                    pass
            return native(query, key, value, *arguments, **options)

        return function
