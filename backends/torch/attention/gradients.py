"""Gradients by our attention kernels on torch's tensors: a plan of one kind of call's, and memory for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention.layouts import (
    BIAS,
    Arrays,
    Given,
    example,
    kernel_layouts,
    layout_of,
    problem_of,
)
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.around.heads_apart import pays_apart
from einops_fast.backends.triton.attention.around.parts_sum import parts_sum
from einops_fast.backends.triton.attention.general.plan import is_whole
from einops_fast.backends.triton.attention.plan import backward_plan
from einops_fast.backends.triton.attention.problem import Layout, missing_axes
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides, dense_strides

__all__ = ["GradientsOfCall", "sinks_gradient"]


@dataclass
class Gradients:
    """Arrays for the gradients that are wanted; ``None`` for the others.

    That of a bias is full of zeros where :attr:`Plan.bias_starts_at_zero` says so.
    """

    q: Any = None
    k: Any = None
    v: Any = None
    bias: Any = None


class GradientsOfCall:
    """A plan, and the layouts of the gradients that it writes.

    Where q, k and v are parts of one array, ``together`` says how many elements that has, and after how many each of
    the three begins. Their gradients are parts of one array, too: then nobody has to put them together.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        given: Given,
        arrays: Arrays,
        d_out: Layout,
        wanted: Sequence[bool],
        together: tuple[int, tuple[int, int, int]] | None,
        memory: TorchMemory,
        processors: tuple[tuple[int, int], int],
    ) -> None:
        self.wanted = of_q, of_k, of_v, of_bias, of_sinks = (*wanted, *(False,) * (5 - len(wanted)))
        self._sums = accumulator(spec.dtype)
        self._views = given.views
        canonical = given.canonical(arrays)
        apart = pays_apart(spec, processors[1])
        self._missing = [missing_axes(spec, name, apart) for name in ("q", "k", "v")]
        self.simple = of_q and of_k and of_v and not (of_bias or of_sinks or any(self._missing))
        self._together = together if self.simple else None
        # The kernel for q writes the gradient of a bias with all axes, too.
        needed = of_q or (of_bias and is_whole(spec)), of_k or of_v, of_k or of_v
        self._layouts: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None] = [None, None, None]
        self._memory, self._new = memory, memory.here(arrays[0])
        layouts = kernel_layouts(spec, canonical)
        layouts["d_out"] = d_out
        for at, name in enumerate(("q", "k", "v")):
            if not needed[at]:
                continue
            if self._missing[at]:
                # It has all batch axes that the kernel doesn't sum over itself.
                sizes = enumerate(canonical[at].shape)
                shape = tuple(spec.batch[axis] if axis in self._missing[at] else size for axis, size in sizes)
                layout = layouts["d" + name] = Layout(shape, contiguous_strides(shape), spec.dtype)
            else:
                layout, layouts["d" + name] = self._like(arrays, at)
            self._layouts[at] = layout.shape, layout.strides, arrays[at].dtype
        if of_bias:
            self._bias, layouts["d_bias"] = self._like(arrays, BIAS)
        self._plan = backward_plan(problem_of(spec, layouts, processors, apart))
        if self._plan.exact:
            # What is summed up afterwards may as well have all digits.
            for at, missing in enumerate(self._missing):
                own = self._layouts[at]
                if missing and own is not None:
                    self._layouts[at] = *own[:2], getattr(torch, self._sums)
        self._zeros = spec.varlen
        parts = self._plan.bias_parts if of_bias else 1
        self._parts_sum = parts_sum(parts, prod(self._bias.shape)) if parts > 1 else None

    def _like(self, arrays: Arrays, at: int) -> tuple[Layout, Layout]:
        """Return the layout of an array like one of these, without gaps or a part of one, as given and canonical."""
        own = layout_of(arrays[at])
        layout = own if self._together else own._replace(strides=dense_strides(own.shape, own.strides))
        return layout, layout_of(self._views[at](example(layout), torch.permute))

    def __call__(
        self,
        device: int,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        given: tuple[Any, Any],
        extras: Extras,
    ) -> tuple[Gradients, Any]:
        """Make the gradients; and ``delta``, a flat array, which there is where sinks are to have a gradient."""
        into = self._arrays()
        if self.wanted[3]:
            into.bias = self._bias_array(extras.bias)
        if self._zeros:
            for array in (into.q, into.k, into.v):
                if array is not None:
                    array.zero_()
        arrays = *operands, *results, extras, *given, into.q, into.k, into.v, into.bias
        delta = self._plan.run(self._memory, device, *arrays)
        if self._parts_sum is not None:
            parts, into.bias = into.bias, self._new(self._bias.shape, self._bias.strides, extras.bias.dtype)
            self._parts_sum(self._memory, device, parts, into.bias)
        return into, delta

    def _arrays(self) -> Gradients:
        """Return memory for the gradients of q, k and v that are wanted."""
        new = self._new
        of_q, of_k, of_v = self._layouts
        if self._together is None or not (of_q and of_k and of_v):
            return Gradients(of_q and new(*of_q), of_k and new(*of_k), of_v and new(*of_v))
        elements, (q, k, v) = self._together
        whole = new((elements,), (1,), of_q[2])
        return Gradients(whole.as_strided(*of_q[:2], q), whole.as_strided(*of_k[:2], k), whole.as_strided(*of_v[:2], v))

    def _bias_array(self, bias: Any) -> Any:
        """Return memory for the gradient of the bias, or for the parts that it is the sum of."""
        shape, strides, _ = self._bias
        if self._parts_sum is not None:
            return self._memory.workspace(bias, self._plan.bias_parts * prod(shape), self._sums)
        found = self._new(shape, strides, bias.dtype)
        return found.zero_() if self._plan.bias_starts_at_zero else found

    def summed(self, at: int, gradient: Any, operand: Any) -> Any:
        """Return the gradient of an operand that lacks axes: the sum over them."""
        missing = self._missing[at]
        if not missing:
            return gradient
        found = gradient.sum(missing, keepdim=True).to(operand.dtype)
        return self._views[at].back(found, operand.shape, torch.permute)


def sinks_gradient(spec: AttentionSpec, sinks: Any, q_starts: Any, lse: Any, delta: Any) -> Any:
    """Return the gradient of the sinks, from the logarithms and ``delta``, see the general kernels' backward.

    A sink is a key without a value: the gradient of its score is its weight times ``-delta``.
    """
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
    return (gradient.sum(axes, keepdim=True) if axes else gradient).to(sinks.dtype)
