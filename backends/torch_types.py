"""What is asked of torch in many places: which types tensors have, and who follows a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

__all__ = ["HALVES", "PLAIN", "is_batched", "is_followed", "is_jit_tracing", "recorder", "unrecorded"]

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that nobody has overridden anything of."""

HALVES = (torch.float16, torch.bfloat16)
"""Floating-point types of 16 bits."""

is_batched: Callable[[Any], bool] = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)
"""Whether a gradient is a batch of some, as ``is_grads_batched`` makes it without any transform."""

_mode: Callable[..., Any] = getattr(torch._C, "_get_dispatch_mode", lambda key: None)

recorder: Callable[[], Any] = partial(_mode, getattr(getattr(torch._C, "_TorchDispatchModeKey", None), "PROXY", None))
"""The mode in which ``make_fx`` writes down each call that torch gets; ``None`` if it doesn't."""


def is_followed() -> bool:
    """Whether torch has to get each call: to transform it, to take its derivative forward, or to write it down."""
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return True
    # torch.compile, which can't follow the question, has the operators.
    return not torch.compiler.is_compiling() and recorder() is not None


is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
"""Whether ``torch.jit.trace`` records each call that torch gets."""


_record_in: Callable[[Any], None] = getattr(torch._C, "_set_tracing_state", lambda state: None)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Keep ``torch.jit.trace`` from recording a block, in which sizes are numbers and not traced tensors."""
    state = torch._C._get_tracing_state()
    _record_in(None)
    try:
        yield
    finally:
        _record_in(state)
