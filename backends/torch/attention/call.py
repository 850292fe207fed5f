"""Attention by our Triton kernels on torch's tensors, with gradients of q, k, v, the bias and the sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from einops_fast.attention.prepare import Plan
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch.attention.layouts import LENGTHS, NAMES, Arrays
from einops_fast.backends.torch.attention.runs import AttentionCall
from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.types import PLAIN, is_batched, is_jit_tracing
from einops_fast.backends.triton.attention.arguments import NO_EXTRAS, Extras

DIFFERENTIABLE = (0, 1, 2, 3, 6)
"""Where q, k, v, the bias and the sinks are among the arrays."""


def triton_attention(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    """Compute ``softmax(scale * q @ k.T + …) @ v`` of tensors in canonical order, of any strides, without copies.

    That is torch's operator: differentiable in q, k, v, the bias and the sinks, through the result and the logarithms.
    """
    # Imported here because it registers operators that are made of these functions.
    from einops_fast.backends.torch.attention.ops import attention_forward, constants

    out, lse = attention_forward(*inputs.all(), *constants(spec))
    return out, lse if spec.lse else None


class GivenAttention:
    """A whole call of one kind, of arrays as the caller has them; ``otherwise`` does what isn't in memory."""

    def __init__(self, plan: Plan, otherwise: Callable[..., Any]) -> None:
        self._plan, self._otherwise = plan, otherwise
        self._bare = len(plan.views) == 3 and not plan.spec.dropout_p
        # Where each further array is among the extras, its name and the dtype that it's converted to.
        self._further = [(NAMES.index(name) - 3, name, dtype) for name, _, dtype in plan.views[3:]]
        self._call: AttentionCall | None = None

    def __call__(self, q: Any, k: Any, v: Any, *further: Any) -> Any:
        """Return the result, and the logarithms if they are asked for."""
        plan = self._plan
        if is_jit_tracing():
            return self._otherwise(q, k, v, *further)
        extras = NO_EXTRAS if self._bare else self._extras(q, further)
        call = self._call
        # Of tensors on a GPU, everything is known of those that are like these.
        if call is None or not q.is_cuda:
            given = (q, k, v, *extras)
            if not _in_memory(given):
                return self._otherwise(q, k, v, *further)
            if call is None:
                call = self._call = AttentionCall(plan, given)
        if plan.spec.gradients:
            others = () if extras.bias is None and extras.sinks is None else (extras.bias, extras.sinks)
            found = _recorded((call, extras), q, k, v, *others)
            out, lse = found if plan.spec.lse else (found, None)
        else:
            out, lse = call.forward(q, k, v, extras)
        return (out, plan.log(lse, plan.on.permute)) if plan.spec.lse else out

    def _extras(self, q: Any, further: Sequence[Any]) -> Extras:
        plan = self._plan
        found = [*NO_EXTRAS]
        for (at, name, dtype), array in zip(self._further, further, strict=True):
            own = array if dtype is None else plan.on.cast(array, dtype)
            found[at] = own.contiguous() if name in LENGTHS else own
        if plan.spec.dropout_p:
            found[-1] = seed_for(q)
        return Extras._make(found)


def _in_memory(arrays: Arrays) -> bool:
    """Return whether all are what is in memory: no tensors of other kinds, no views that stand for the negative."""
    return all(each is None or (type(each) in PLAIN and not each.is_neg()) for each in arrays)


class _Attention(torch.autograd.Function):
    """What autograd sees, without ``setup_context``, which takes longer.

    What has no gradients is one argument for it, and of results there are only those that somebody gets, as each takes
    time.
    """

    @staticmethod
    def forward(ctx: Any, fixed: tuple[AttentionCall, Extras], q: Any, k: Any, v: Any, *others: Any) -> Any:
        call, extras = fixed
        if others:
            bias, sinks = others
            extras = extras._replace(bias=bias, sinks=sinks)
        out, lse = call.forward(q, k, v, extras)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse, *extras)
        ctx.set_materialize_grads(False)
        return (out, lse) if call.spec.lse else out

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any = None) -> Any:
        wanted = ctx.needs_input_grad[1:]
        if d_out is None and d_lse is None:
            return (None,) * (1 + len(wanted))
        q, k, v, out, lse, *others = ctx.saved_tensors
        call = ctx.call
        extras = Extras._make(others)
        if torch.is_grad_enabled() or any(each is not None and is_batched(each) for each in (d_out, d_lse)):
            found = _canonical_gradients(call, wanted, d_out, d_lse, out, lse, (q, k, v, *extras))
        else:
            found = call.backward(q, k, v, extras, out, lse, d_out, d_lse, wanted)
        return None, *found[: len(wanted)]


def _canonical_gradients(
    call: AttentionCall, wanted: Sequence[bool], d_out: Any, d_lse: Any, out: Any, lse: Any, arrays: Arrays
) -> tuple[Any, ...]:
    """Return the gradients of arrays in canonical order: to be differentiated again, or of several at a time."""
    # Of several, torch calls the operator for each.
    from einops_fast.backends.torch.attention.ops import constants, gradients

    wanted = (*wanted, *(False,) * (len(DIFFERENTIABLE) - len(wanted)))
    d_out, out = (None if each is None else call.canonical_result(each) for each in (d_out, out))
    found = gradients(call.canonical(arrays), constants(call.spec), wanted, (out, lse), (d_out, d_lse))
    return tuple(
        [
            call.views[at].back(each, arrays[at].shape, torch.permute) if is_wanted else None
            for at, each, is_wanted in zip(DIFFERENTIABLE, found, wanted, strict=True)
        ]
    )


_recorded = recorded(_Attention)
