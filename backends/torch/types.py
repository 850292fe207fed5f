"""Ask torch which types tensors have, how they lie, who follows a call, and whether values may be read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch

from einops_fast.attention.torch_state import mesh_of_block

_functional = torch.nn.functional

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that nobody has overridden anything of."""

HALVES = (torch.float16, torch.bfloat16)
"""Floating-point types of 16 bits."""

is_batched: Callable[[Any], bool] = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)
"""Whether a gradient is a batch of some, as ``is_grads_batched`` makes it without any transform."""

# What torch.compile compares the arguments of a compiled function by, in C++.
_guards: Callable[..., Any] | None = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)

_mode: Callable[..., Any] = getattr(torch._C, "_get_dispatch_mode", lambda key: None)

_keys = getattr(torch._C, "_TorchDispatchModeKey", None)

recorder: Callable[[], Any] = partial(_mode, getattr(_keys, "PROXY", None))
"""The mode in which ``make_fx`` writes down each call that torch gets; ``None`` if it doesn't."""


_WITHOUT_VALUES = [getattr(_keys, name) for name in ("FAKE", "FUNCTIONAL") if hasattr(_keys, name)]

_ops: Any = torch._ops

_before_autograd = _ops.mode_stack_state_for_pre_dispatch()
"""The modes of ``make_fx(pre_dispatch=True)``."""


def is_followed() -> bool:
    """Whether torch has to get each call: to transform it, to take its derivative forward, or to write it down."""
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return True
    # torch.compile, which can't follow the question, has the operators.
    if torch.compiler.is_compiling() or (recorder() is None and not _before_autograd.count()):
        return False
    # Before 2.13, torch doesn't say so while it compiles what it has traced.
    return torch._guards.TracingContext.try_get() is None


saving_hooks: Callable[[bool], object] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignores_tracing: True
)


def is_recomputed() -> bool:
    """Return whether hooks get what is saved for gradients: a checkpoint compares that with its second forward pass."""
    return bool(saving_hooks(False))


# A torch that can't say whether it is in a backward pass counts as if it were.
_backward_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)

is_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms


def is_strict() -> bool:
    """Return whether calls aren't what they usually are: deterministic, or perhaps parts of those of several ranks."""
    if is_deterministic():
        return True
    return type(_functional.scaled_dot_product_attention) is FunctionType and mesh_of_block() is not None


def is_backward() -> bool:
    """Return whether this thread computes gradients."""
    return _backward_task() != -1


def has_one_way() -> bool:
    """Return whether calls may not be computed now in one way and then in another.

    A checkpoint compares what is saved for gradients with what its second forward pass saves; gradcheck compares the
    bits of two backward passes; what make_fx writes down is for good.
    """
    return is_deterministic() or is_recomputed() or is_backward() or recorder() is not None


is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
"""Whether ``torch.jit.trace`` records each call that torch gets."""


_record_in: Callable[[Any], None] = getattr(torch._C, "_set_tracing_state", lambda state: None)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Keep ``torch.jit.trace`` from recording a block, in which sizes are numbers and not traced tensors."""
    state = torch._C._get_tracing_state()
    if state is None:  # where torch's dispatcher has left tracing behind, its state can't even be set to none
        yield
        return
    _record_in(None)
    try:
        yield
    finally:
        _record_in(state)


def is_traced() -> bool:
    """Return whether a call is compiled, recorded, transformed, or made on tensors without values.

    Then nothing may follow from values: what was decided by those of one call would hold for all later ones.
    """
    if torch.compiler.is_compiling() or is_jit_tracing() or is_followed():
        return True
    return any(_mode(key) is not None for key in _WITHOUT_VALUES)


def may_read_values(*tensors: Any) -> bool:
    """Return whether what to do may follow from tensors' values now: all are on the host, and nobody traces the call.

    This is the one place that decides so. On a GPU nobody reads values to decide anything: that would wait for it, and
    a captured graph would keep what was decided. Nothing read may be kept for another call either, since values change
    without torch's knowledge: through NumPy, ``.data``, DLPack and other processes.
    """
    if is_traced():
        return False
    return all(type(each) in PLAIN and each.is_cpu and not is_batched(each) for each in tensors)


def guards_of(operands: Sequence[Any], sizes: Sequence[Sequence[int | None]] = ()) -> Callable[..., bool] | None:
    """Return what compares tensors with these, and which of them are one and the same; ``None`` if nothing does.

    Where there are ``sizes`` of each, it compares these, ``None`` for any, and no strides.
    """
    if _guards is None:
        return None
    firsts = [next(at for at, other in enumerate(operands) if other is each) for each in operands]
    own = sorted({*firsts})
    compared = [sizes[at] for at in own] if sizes else None
    any_strides = [[None] * len(each) for each in compared] if compared else None
    guarded = _guards(
        *[operands[at] for at in own], dynamic_dims_sizes=compared, dynamic_dims_strides=any_strides
    ).check
    if len(own) == len(operands):
        check: Callable[..., bool] = guarded
    else:  # the guards refuse one tensor twice
        again = [(at, first) for at, first in enumerate(firsts) if at != first]

        def check(*others: Any) -> bool:
            for at, first in again:
                if others[at] is not others[first]:
                    return False
            return bool(guarded(*[others[at] for at in own]))

    return check if check(*operands) else None


def called_alike(check: Callable[..., bool], operands: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """Return what compares tensors on a CPU with these by ``check``, and what torch does with gradients and calls."""
    grad_mode, grad_mode_now = torch.is_grad_enabled(), torch.is_grad_enabled
    level, wanted = torch.autograd.forward_ad, any(each.requires_grad for each in operands)
    if len(operands) == 2 and not wanted:  # written out; of others like these, nobody asks for gradients
        return lambda others: (
            others[0].is_nested is not True
            and others[1].is_nested is not True
            and check(*others)
            and level._current_level < 0
            and recorder() is None
        )
    return lambda others: (
        not any_nested(others)
        and check(*others)
        and (not wanted or grad_mode_now() is grad_mode)
        and level._current_level < 0
        and recorder() is None
    )


def shapes_of(operands: Sequence[Any]) -> Hashable:
    """Return the shapes of tensors, and whether gradients are wanted, for which shapes have plans of their own."""
    if len(operands) == 2:  # in less time than any number of them
        one, other = operands
        if one.requires_grad or other.requires_grad:
            return one.shape, other.shape, torch.is_grad_enabled()
        return one.shape, other.shape
    shapes: list[Hashable] = [each.shape for each in operands]
    for operand in operands:
        if operand.requires_grad:
            shapes.append(torch.is_grad_enabled())
            break
    return tuple(shapes)


def can_cast(own: torch.dtype, wanted: torch.dtype) -> bool:
    """Return whether a dtype converts to another by torch's rules; torch.compile can't trace torch's own function."""
    return torch.can_cast(own, wanted)


can_cast._dynamo_marked_constant = True  # type: ignore[attr-defined]


def share_storage(one: Any, other: Any) -> bool:
    """Whether two tensors may have elements in common; while torch.compile traces, it sees to that itself."""
    if torch.compiler.is_compiling() or any(
        type(each) not in PLAIN or each.layout is not torch.strided for each in (one, other)
    ):
        return False
    try:
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    except NotImplementedError:  # what stands for several tensors has no memory of its own
        return True


def is_seen(operands: Sequence[Any]) -> bool:
    """Whether torch has to see each call: it is followed, or an operand stands for several."""
    return is_followed() or is_jit_tracing() or any(map(is_batched, operands))


def any_nested(operands: Sequence[Any]) -> bool:
    """Whether an operand is nested: to compare one whose axes have no sizes in C++ would end the process."""
    for operand in operands:  # noqa: SIM110 - on the way of every call, and any() takes four times as long
        if operand.is_nested is True:  # what stands for a tensor has no answer
            return True
    return False


def signs_of(operands: Sequence[Any]) -> list[tuple[bool, bool]]:
    """Return whether each operand is a view that stands for the negative of what is in memory, and for its conjugate.

    ``z.conj().imag`` and ``z.conj()`` are.
    """
    return [(operand.is_neg(), operand.is_conj()) for operand in operands]
