"""Wait for the kernels that calls would have in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from einops_fast.einsum import fast_einsum
from einops_fast.planning.layout import reach
from einops_fast.runtime.new_shapes import USUAL, Like, by_question
from einops_fast.runtime.tuning import autotune

_ROUNDS = 3
"""Of calls with made-up operands: gradients of those of one round are planned in the next."""


def wait_for_kernels() -> None:
    """Compile and choose now what calls so far have begun to compile, or would begin to if they went on.

    For whoever times calls, captures a CUDA graph of them, or wants the same bits from now on. It takes seconds for
    each kind and shape of calls that were made in the mode ``'auto'``; measuring is done on operands of its own.

    Example:
        >>> import numpy as np
        >>> import einops_fast
        >>> _ = einops_fast.fast_einsum('ij,jk->ik', np.ones((2, 3)), np.ones((3, 4)))
        >>> einops_fast.wait_for_kernels()
    """
    for _ in range(_ROUNDS):
        waiting = [(question, like) for question, shapes in list(by_question.items()) for like in shapes.unplanned()]
        for question, like in waiting:
            call = _call_of(question)
            if call is not None:
                with suppress(
                    MemoryError, sys.modules["torch"].cuda.OutOfMemoryError
                ):  # the call itself may have had it
                    _rehearse(call, like)
    # Imported by the first call that has anything to choose.
    tiers = sys.modules.get("einops_fast.runtime.tiers")
    if tiers is not None:
        tiers.settle_all()


def _call_of(question: Hashable) -> Callable[..., Any] | None:
    """Return what asks a question of other operands: :func:`fast_einsum`, or torch's patched einsum."""
    if not isinstance(question, tuple) or not isinstance(question[0], str):
        return None
    if question[1:] == USUAL:
        return partial(fast_einsum, question[0])
    if question[0] == "torch" and len(question) == 3:
        return partial(sys.modules["torch"].einsum, question[1])
    return None


def _rehearse(call: Callable[..., Any], like: Sequence[Like]) -> None:
    """Make a call, and its gradients if they are wanted, of tensors that are made up."""
    torch = sys.modules["torch"]
    operands = []
    for each in like:
        flat = torch.empty(reach(each.shape, each.strides), dtype=each.dtype, device=each.device).normal_()
        operands.append(flat.as_strided(each.shape, each.strides).requires_grad_(each.requires_grad))
    wanted = [each for each in operands if each.requires_grad]
    # A plan is of one grad mode, which nobody has kept.
    for records in (True,) if wanted else (True, False):
        with torch.set_grad_enabled(records), autotune("auto"):
            result = call(*operands)
            if wanted:
                torch.autograd.grad(result, wanted, torch.ones_like(result))
