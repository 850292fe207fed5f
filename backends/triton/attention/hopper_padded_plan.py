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
) -> tuple[Problem, dict[str, RowCopies]]:
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
        return found, {}
    if found.features.wide:  # what copies reckons with 32 bits inside a tile
        return found, {}
    copies = {
        name: RowCopies(layouts[name], spec.dtype)
        for name in names
        if name in layouts and not copyable(getattr(found.strides, name), ITEM)
    }
    if copies:
        moved = {name: (layouts[name][0], copy.strides) for name, copy in copies.items()}
        copied = sort_out({**layouts, **moved})
        if suits(copied):
            return copied, copies
    return found, {}


class _Copying:
    """What some copies do around a call."""

    def __init__(self, copies: Mapping[str, RowCopies], memory: Memory, device: int) -> None:
        self._copies, self._memory, self._device = copies, memory, device
        self._back: list[Callable[[], None]] = []

    def given(self, name: str, array: Any) -> Any:
        """A copy of what the call reads."""
        copy = self._copies.get(name)
        return array if copy is None else copy.of(self._memory, self._device, array)

    def written(self, name: str, array: Any) -> Any:
        """Memory for what the call writes."""
        copy = self._copies.get(name)
        if copy is None or array is None:
            return array
        room = copy.room(self._memory, array)
        self._back.append(lambda: copy.back(self._memory, self._device, room, array))
        return room

    def done(self) -> None:
        """Bring to the arrays what was written."""
        for back in self._back:
            back()


class PaddedForwardPlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        plan: of the same on copies.
        copies: by the names of arrays.
    """

    def __init__(self, plan: HopperForwardPlan | ForwardPlan, copies: Mapping[str, RowCopies]) -> None:
        self._plan, self._copies = plan, copies

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        copying = _Copying(self._copies, memory, device)
        q, k, v = copying.given("q", q), copying.given("k", k), copying.given("v", v)
        self._plan(memory, device, q, k, v, extras, copying.written("out", out), lse)
        copying.done()


class PaddedBackwardPlan:
    """A backward call; see :class:`BackwardPlan` and :class:`PaddedForwardPlan`."""

    def __init__(self, plan: BackwardPlan, copies: Mapping[str, RowCopies]) -> None:
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
        copying = _Copying(self._copies, memory, device)
        q, k, v = operands
        q, k, v = copying.given("q", q), copying.given("k", k), copying.given("v", v)
        d_out, d_lse = gradients_in
        inner = Gradients(
            copying.written("dq", into.q), copying.written("dk", into.k), copying.written("dv", into.v), into.bias
        )
        given = copying.given("d_out", d_out), d_lse
        delta = self._plan(memory, device, (q, k, v), results, given, extras, inner)
        copying.done()
        return delta
