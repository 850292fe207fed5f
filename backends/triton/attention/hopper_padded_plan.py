"""Hopper's kernels for arrays that the hardware can't copy: these are first copied to where it can.

That's the one place where a layout of q, k, v or of the result costs a copy. It's of what grows with the length, and
saves work that grows with its square: from some hundred positions on the copies take far less time than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.backward_plan import BackwardPlan, Gradients
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper_plan import HopperForwardPlan, copyable
from einops_fast.backends.triton.attention.hopper_tiles import ITEM
from einops_fast.backends.triton.attention.problem import Layout, Problem
from einops_fast.backends.triton.attention.row_copies import RowCopies
from einops_fast.backends.triton.memory import Memory

__all__ = ["PaddedBackwardPlan", "PaddedForwardPlan", "on_copies"]

_LENGTH = 512
"""Positions from which on copies pay."""


def on_copies(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    names: Sequence[str],
    sort_out: Callable[[Mapping[str, Layout]], Problem],
    suits: Callable[[Problem], bool],
) -> tuple[Problem, RowCopies | None]:
    """The problem; where that makes it one for Hopper's kernels and may pay, with copies of some arrays.

    Args:
        spec: what is computed.
        layouts: of the arrays.
        names: of those that the hardware has to copy, if they are among ``layouts``.
        sort_out: makes a problem of layouts.
        suits: whether one is for Hopper's kernels.
    """
    found = sort_out(layouts)
    if spec.dtype not in ("float16", "bfloat16") or min(spec.q_len, spec.kv_len) < _LENGTH:
        return found, None
    if found.features.wide:  # what copies reckons with 32 bits inside a tile
        return found, None
    odd = {
        name: layouts[name] for name in names if name in layouts and not copyable(getattr(found.strides, name), ITEM)
    }
    if odd:
        copies = RowCopies(odd, spec.dtype)
        moved = {name: (layouts[name][0], strides) for name, strides in copies.strides.items()}
        copied = sort_out({**layouts, **moved})
        if suits(copied):
            return copied, copies
    return found, None


class PaddedForwardPlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        plan: of the same on copies.
        copies: of the arrays at odd places.
    """

    def __init__(self, plan: HopperForwardPlan | ForwardPlan, copies: RowCopies) -> None:
        self._plan, self._copies = plan, copies

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        copies = self._copies
        given = copies.of(memory, device, {"q": q, "k": k, "v": v})
        results = {"out": out}
        written = copies.rooms(memory, results)
        self._plan(memory, device, given["q"], given["k"], given["v"], extras, written["out"], lse)
        copies.back(memory, device, written, results)


class PaddedBackwardPlan:
    """A backward call; see :class:`BackwardPlan` and :class:`PaddedForwardPlan`."""

    def __init__(self, plan: BackwardPlan, copies: RowCopies) -> None:
        self._plan, self._copies = plan, copies
        self.bias_parts, self.bias_starts_at_zero = plan.bias_parts, plan.bias_starts_at_zero

    def __call__(
        self,
        memory: Memory,
        device: int,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        gradients_in: tuple[Any, Any],
        extras: Extras,
        into: Gradients,
    ) -> Any:
        """Write the gradients, and return ``delta``."""
        copies = self._copies
        q, k, v = operands
        d_out, d_lse = gradients_in
        given = copies.of(memory, device, {"q": q, "k": k, "v": v, "d_out": d_out})
        gradients = {"dq": into.q, "dk": into.k, "dv": into.v}
        written = copies.rooms(memory, gradients)
        delta = self._plan(
            memory,
            device,
            (given["q"], given["k"], given["v"]),
            results,
            (given["d_out"], d_lse),
            extras,
            Gradients(written["dq"], written["dk"], written["dv"], into.bias),
        )
        copies.back(memory, device, written, gradients)
        return delta
