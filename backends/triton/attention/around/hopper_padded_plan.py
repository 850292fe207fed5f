"""Hopper's kernels for arrays that the hardware can't copy: these are first copied to where it can.

That's the one place where a layout costs a copy. Those of q, k, v and of the result are of what grows with the length,
and save work that grows with its square: from some hundred positions on the copies take far less time than they save.
A bias or a mask grows with the square itself; copies of them are bounded, see :mod:`copyable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.around.copyable import copyable, odd_added
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.general.backward_plan import BackwardPlan, Gradients
from einops_fast.backends.triton.attention.general.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper.plan import HopperForwardPlan
from einops_fast.backends.triton.attention.hopper.tiles import ITEM
from einops_fast.backends.triton.attention.problem import Layout, Problem

__all__ = ["PaddedBackwardPlan", "PaddedForwardPlan", "on_copies"]

_LENGTH = 512
"""Positions from which on copies of what has features pay."""


def on_copies(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    names: Sequence[str],
    bias_dtype: str,
    sort_out: Callable[[Mapping[str, Layout]], Problem],
    suits: Callable[[Problem], bool],
) -> tuple[Problem, RowCopies | None]:
    """The problem; where that makes it one for Hopper's kernels and may pay, with copies of some arrays.

    Args:
        spec: what is computed.
        layouts: of the arrays.
        names: of those with features that the hardware has to copy, if they are among ``layouts``.
        bias_dtype: of the bias, if there is one.
        sort_out: makes a problem of layouts.
        suits: whether one is for Hopper's kernels.
    """
    found = sort_out(layouts)
    if spec.dtype not in ("float16", "bfloat16"):
        return found, None
    odd = {}
    # What copies reckons with 32 bits inside a tile.
    if min(spec.q_len, spec.kv_len) >= _LENGTH and not found.features.wide:
        present = [name for name in names if name in layouts]
        odd = {name: layouts[name] for name in present if not copyable(getattr(found.strides, name), ITEM)}
    typed = {name: (layout, spec.dtype) for name, layout in odd.items()}
    moved = {name: (odd[name][0], strides) for name, strides in RowCopies(typed).strides.items()}
    copied = sort_out({**layouts, **moved}) if moved else found
    for name, dtype in (("bias", bias_dtype), ("mask", "bool")):
        added = odd_added(copied, name, dtype)
        if added is not None:
            typed[name] = added, dtype
    if not typed:
        return found, None
    copies = RowCopies(typed)
    own = {name: copies.strides[name] for name in ("bias", "mask") if name in typed}
    copied = replace(copied, strides=copied.strides._replace(**own))
    return (copied, copies) if suits(copied) else (found, None)


def _copied(
    copies: RowCopies, memory: Memory, device: int, arrays: Mapping[str, Any], extras: Extras
) -> tuple[dict[str, Any], Extras]:
    """What there are copies of, copied, and the others themselves."""
    found = copies.of(memory, device, {**arrays, "bias": extras.bias, "mask": extras.mask})
    return found, extras._replace(bias=found["bias"], mask=found["mask"])


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
        given, extras = _copied(copies, memory, device, {"q": q, "k": k, "v": v}, extras)
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
        given, extras = _copied(copies, memory, device, {"q": q, "k": k, "v": v, "d_out": d_out}, extras)
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
