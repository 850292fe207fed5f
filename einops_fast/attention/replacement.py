"""What torch's ``scaled_dot_product_attention`` does while that is patched.

It is ours for plain tensors on CUDA devices. Everything else goes to the native implementation unchanged: a CPU, where
it is what we would call; subclasses and modes that want to see the call; code that torch.compile or torch.jit traces;
blocks of ``sdpa_kernel``; and bad calls, so that errors are torch's own.

Ours is registered with torch's dispatcher. Torch's function stays as it is, which callers compare by identity.
"""

from __future__ import annotations

import threading
from typing import Any

from einops_fast.attention.drop_in import scaled_dot_product_attention
from einops_fast.attention.torch_state import not_ours
from einops_fast.errors import EinsumError
from einops_fast.observing import observers

_OPERATOR = "scaled_dot_product_attention"
CUDA_KEYS = ("AutogradCUDA", "CUDA")
"""What torch dispatches calls on CUDA tensors by, with and without gradients."""

_CPU_KEYS = ("AutogradCPU", "CPU")
"""The same of a CPU, where calls are only counted, while somebody observes."""


class AttentionReplacement:
    """Puts ours beneath torch's attention."""

    def __init__(self) -> None:
        import torch

        self._library: Any = None
        self._operator: Any = getattr(torch.ops.aten, _OPERATOR).default

    def start(self) -> None:
        """Have calls on CUDA devices run ours."""
        import torch

        library: Any = torch.library.Library
        self._library = library("aten", "IMPL")
        for key in (*CUDA_KEYS, *(_CPU_KEYS if observers.observed() else ())):
            self._library.impl(_OPERATOR, self._run, key)

    def stop(self) -> None:
        """Have them run torch's own again."""
        self._library._destroy()
        self._operator._dispatch_cache.clear()  # else compilers go on asking for what was registered

    def _run(self, *arguments: Any, **options: Any) -> Any:
        if not getattr(_inside, "ours", False):
            reason = not_ours(*arguments, *options.values())
            if reason is None:
                _inside.ours = True
                try:
                    found = scaled_dot_product_attention(*arguments, **options)
                    for recorder in observers.active():
                        recorder.attention()
                    return found
                except (EinsumError, TypeError) as error:
                    reason = str(error)
                finally:
                    _inside.ours = False
            for recorder in observers.active():
                recorder.left_to_native("torch.sdpa", _OPERATOR, reason)
        return self._operator.decompose(*arguments, **options)


_inside = threading.local()
"""Whether this thread is in a call of ours, which may choose torch's own."""
