"""Kernels of a call that torch.compile traces are compiled while the rest of the program is.

What a program's operators will launch is known from what the compiler asks about their results. Kernels are compiled in
other processes meanwhile, and the first call finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from einops_fast.backends.torch.beginning import meta_like
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.runtime import background
from einops_fast.runtime.planner import planner

__all__ = ["compile_ahead", "pending", "wait"]

_MEMORY = TorchMemory()

_begun: set[Any] = set()
"""What was asked for already, by layouts."""

pending: list[Future[Any]] = []
"""What is being compiled and wasn't waited for yet."""


def compile_ahead(question: Any, arrays: Sequence[Any], call: Callable[[list[Any]], object]) -> None:
    """Have the kernels compiled that a call will launch.

    Args:
        question: what the call depends on beside the layouts of the arrays; can be hashed.
        arrays: tensors without values, of known sizes, on a GPU; else nothing happens. ``None`` where there is none.
        call: makes the call of such tensors.
    """
    given = [each for each in arrays if each is not None]
    if not (given[0].is_cuda and isinstance(given[0], FakeTensor) and background.available()):
        return
    layouts = [None if each is None else (each.dtype, *each.shape, *each.stride()) for each in arrays]
    if any(isinstance(number, torch.SymInt) for layout in layouts if layout for number in layout):
        return
    key = question, *layouts
    if key in _begun or not torch.cuda.is_available():
        return
    _begun.add(key)
    device = given[0].device.index or 0
    with unset_fake_temporarily():
        like = [None if each is None else meta_like(each) for each in arrays]
    done: Future[Any] = Future()
    pending.append(done)
    planner().put(lambda: _begin(device, lambda: call(like), done))


def wait() -> None:
    """Wait for all that is being compiled. What can't be is compiled by its call."""
    while pending:
        with suppress(Exception):
            pending.pop().result()


def _begin(device: int, call: Callable[[], object], done: Future[Any]) -> None:
    try:
        from einops_fast.backends.triton.launching.rehearsing import compile_elsewhere, rehearsing

        with _MEMORY.on_device(device), rehearsing() as launches, torch.no_grad():
            call()
            compiled = compile_elsewhere(launches)
    except Exception as error:
        done.set_exception(error)
    else:
        compiled.add_done_callback(lambda _: done.set_result(None))
