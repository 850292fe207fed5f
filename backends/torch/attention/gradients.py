"""Gradients by our attention kernels on torch's tensors: a plan of one kind of call's, and memory for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from einops_fast.attention.axes import View
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention.layouts import (
    SINKS,
    Arrays,
    example,
    layout_of,
    problem_of,
)
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.around.heads_apart import pays_apart
from einops_fast.backends.triton.attention.general.plan import is_whole
from einops_fast.backends.triton.attention.plan import backward_plan
from einops_fast.backends.triton.attention.problem import Layout, missing_axes
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides, dense_strides

if TYPE_CHECKING:
    from einops_fast.backends.torch.attention.runs import AttentionCall

Differentiated = tuple[Any, Any, Any, Any, Any]
"""Gradients of q, k, v, the bias and the sinks; ``None`` for those that weren't asked for."""


class GradientsOfCall:
    """A plan, and the layouts of the gradients that it writes."""

    def __init__(self, call: AttentionCall, arrays: Arrays, d_out: Layout, wanted: Sequence[bool]) -> None:
        self._spec = spec = call.spec
        self._wanted: tuple[bool, ...] = (*wanted, *(False,) * (5 - len(wanted)))
        of_q, of_k, of_v, of_bias, of_sinks = self._wanted
        self._views = call.views
        canonical = call.canonical(arrays)
        apart = pays_apart(spec, call.processors[1])
        self._missing = [*[missing_axes(spec, name, apart) for name in ("q", "k", "v")], ()]
        self._simple = of_q and of_k and of_v and not (of_bias or of_sinks or any(self._missing))
        # The kernel for q writes the gradient of a bias with all axes, too.
        needed = of_q or (of_bias and is_whole(spec)), of_k or of_v, of_k or of_v, of_bias
        self._layouts: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None] = [None] * 4
        self._memory, self._new = call.memory, call.new
        layouts = {"d_out": d_out}
        for at, name in enumerate(("dq", "dk", "dv", "d_bias")):
            if not needed[at]:
                continue
            if self._missing[at]:
                # It has all batch axes that the kernel doesn't sum over itself.
                sizes = enumerate(canonical[at].shape)
                shape = tuple(spec.batch[axis] if axis in self._missing[at] else size for axis, size in sizes)
                layout = layouts[name] = Layout(shape, contiguous_strides(shape), spec.dtype)
            else:
                layout = layout_of(arrays[at])
                layout = layout._replace(strides=dense_strides(layout.shape, layout.strides))
                layouts[name] = layout_of(self._views[at](example(layout), torch.permute))
            self._layouts[at] = layout.shape, layout.strides, arrays[at].dtype
        self._plan = plan = backward_plan(problem_of(spec, canonical, call.processors, layouts, apart))
        starts_at_zero = spec.varlen, spec.varlen, spec.varlen, plan.bias_starts_at_zero
        self._zeros = [at for at, zeros in enumerate(starts_at_zero) if zeros and needed[at]]
        if plan.exact:
            # What is summed up afterwards may as well have all digits.
            for at, missing in enumerate(self._missing):
                own = self._layouts[at]
                if missing and own is not None:
                    self._layouts[at] = *own[:2], getattr(torch, accumulator(spec.dtype))

    def __call__(
        self,
        device: int,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        given: tuple[Any, Any],
        extras: Extras,
    ) -> Differentiated:
        """Make the gradients, each in the order in which its operand is given."""
        into: list[Any] = [each and self._new(*each) for each in self._layouts]
        for at in self._zeros:
            into[at].zero_()
        delta = self._plan.run(self._memory, device, *operands, *results, extras, *given, *into)
        d_q, d_k, d_v, d_bias = into
        if self._simple:
            return d_q, d_k, d_v, None, None
        of_q, of_k, of_v, _, of_sinks = self._wanted
        lse, d_sinks = results[1], None
        if of_sinks:
            d_sinks = sinks_gradient(self._spec, self._views[SINKS], extras, lse, delta.view(lse.shape))
        q, k, v = operands
        return (
            self._summed(0, d_q, q) if of_q else None,
            self._summed(1, d_k, k) if of_k else None,
            self._summed(2, d_v, v) if of_v else None,
            d_bias,
            d_sinks,
        )

    def _summed(self, at: int, gradient: Any, operand: Any) -> Any:
        """Return the gradient of an operand that lacks axes: the sum over them."""
        missing = self._missing[at]
        if not missing:
            return gradient
        found = gradient.sum(missing, keepdim=True).to(operand.dtype)
        return self._views[at].back(found, operand.shape, torch.permute)


def sinks_gradient(spec: AttentionSpec, view: View, extras: Extras, lse: Any, delta: Any) -> Any:
    """Return the gradient of the sinks, from the logarithms and ``delta``, see the general kernels' backward.

    A sink is a key without a value: the gradient of its score is its weight times ``-delta``.
    """
    sinks, q_starts = view(extras.sinks, torch.permute), extras.q_starts
    by_sequence = spec.varlen and sinks.shape[0] > 1
    rows = sinks[..., None]
    if by_sequence:
        tokens = torch.arange(lse.shape[-1], device=lse.device)
        sequence = torch.bucketize(tokens, q_starts[1:].long(), right=True).clamp_max(sinks.shape[0] - 1)
        rows = sinks[sequence].movedim(0, -1)[None]
    gradient = -delta * torch.where(lse == float("-inf"), 0.0, torch.exp(rows - lse))
    if by_sequence:
        # Sequence by token, for a sum whose order is always the same.
        belongs = torch.zeros((sinks.shape[0], lse.shape[-1]), dtype=gradient.dtype, device=lse.device)
        belongs[sequence, tokens] = (tokens < q_starts[-1]).to(gradient.dtype)
        gradient = torch.einsum("...t,nt->n...", gradient[0], belongs)
    else:
        gradient = gradient.sum(-1)
    axes = [at for at, size in enumerate(sinks.shape) if size == 1 != gradient.shape[at]]
    found = (gradient.sum(axes, keepdim=True) if axes else gradient).to(sinks.dtype)
    return view.back(found, extras.sinks.shape, torch.permute)
