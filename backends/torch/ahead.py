"""Kernels of a call that torch.compile traces are compiled while the rest of the program is.

What a program's operators will launch is known from what the compiler asks about their results. Kernels are compiled in
other processes meanwhile, and the first call finds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from einops_fast.backends.absent_gpu import AbsentGpu, aiming
from einops_fast.backends.torch.beginning import meta_like
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.runtime import background
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.planner import planner
from einops_fast.runtime.tuning import autotune

_MEMORY = TorchMemory()

_begun: dict[Any, bool] = emptied_with_plans({})
"""Calls whose kernels were asked for: functions, layouts and numbers."""

pending: list[Future[Any]] = []
"""Compilations that no call has waited for yet."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pending.clear)  # a fork has no thread that would end them


def compile_ahead(compute: Callable[..., object], arrays: Sequence[Any], numbers: Sequence[Any]) -> None:
    """Have the kernels compiled that a call of tensors without values will launch, on a GPU and of known sizes."""
    first = next(each for each in arrays if each is not None)
    if not (first.is_cuda and isinstance(first, FakeTensor) and background.available()):
        return
    layouts = [(None,) if each is None else (each.dtype, *each.shape, *each.stride()) for each in arrays]
    lists = [each if isinstance(each, (list, tuple)) else (each,) for each in numbers]
    key = (compute, *[number for part in (*layouts, *lists) for number in part])
    if any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in key):
        return
    if key in _begun or not torch.cuda.is_available():
        return
    keep(_begun, key, True)
    device = first.device.index or 0
    with unset_fake_temporarily():
        like = [None if each is None else meta_like(each) for each in arrays]
    done: Future[Any] = Future()
    pending.append(done)
    planner().put(lambda: _begin(device, lambda: compute(*like, *numbers), done))


def wait() -> None:
    """Wait for all that is being compiled. What can't be is compiled by its call."""
    while pending:
        with suppress(Exception):
            pending.pop().result()


def _begin(device: int, call: Callable[[], object], done: Future[Any]) -> None:
    try:
        from einops_fast.backends.triton.launching.rehearsing import compile_elsewhere, rehearsing

        here = aiming(AbsentGpu(_MEMORY.device_name(device), *_MEMORY.processors(device)))
        with _MEMORY.on_device(device), here, autotune("auto"), rehearsing() as launches, torch.no_grad():
            call()
            compiled = compile_elsewhere(launches)
    except Exception as error:
        done.set_exception(error)
    else:
        compiled.add_done_callback(lambda _: done.set_result(None))
