"""Attention whose lengths change from call to call: operands of new lengths go at once to what did the last ones.

A plan takes the host longer than short sequences take to compute. So the first two kinds of operands are planned when
they come. Where what computes them depends on the order of their axes alone, others of the same call have it, too; they
are planned when they come for the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from einops_fast.runtime.plan_cache import LIMIT, emptied_with_plans, keep

__all__ = ["by_words", "run_for", "watch"]


class _Lengths:
    """What computes q, k and v of any lengths, where these alone are given, on a CPU and without gradients.

    Args:
        run: takes q, k and v.
        length: their axis of positions; the others have the same sizes in all three.
        q: as the first operand was.
    """

    def __init__(self, run: Callable[..., Any], length: int, q: Any) -> None:
        self._run, self._length, self._kind = run, length, (type(q), q.dtype)
        self._seen: set[Hashable] = set()

    def run_for(self, operands: Sequence[Any]) -> Callable[..., Any] | None:
        """Return what computes these, if they haven't come before."""
        if len(operands) != 3:
            return None
        q, k, v = operands
        shapes = q.shape, k.shape, v.shape
        if shapes in self._seen or not self._suits(q, k, v):
            return None
        if len(self._seen) >= LIMIT:
            self._seen.clear()
        self._seen.add(shapes)
        return self._run

    def _suits(self, q: Any, k: Any, v: Any) -> bool:
        if k.shape != v.shape or q.ndim != k.ndim or not q.numel() or not k.numel():
            return False
        for each in (q, k, v):
            if (type(each), each.dtype) != self._kind or each.requires_grad or not each.is_cpu:
                return False
        at = self._length
        return bool(q.shape[:at] == k.shape[:at] and q.shape[at + 1 :] == k.shape[at + 1 :])


by_words: dict[Hashable, _Lengths | None] = emptied_with_plans({})
"""By all of a call but its operands; ``None`` where one kind of operands was planned so far."""


def run_for(words: Hashable, operands: Sequence[Any]) -> Callable[..., Any] | None:
    """Return what computes operands of new lengths, where that is known; it takes them one by one."""
    try:
        lengths = by_words.get(words)
        return None if lengths is None else lengths.run_for(operands)
    except (AttributeError, TypeError):  # other arrays, or an option that can't be hashed
        return None


def watch(words: Hashable, run: Callable[..., Any], length: int, operands: Sequence[Any]) -> None:
    """Take notice of operands that are planned.

    Args:
        words: all of the call but its operands.
        run: what computes them.
        length: their axis of positions.
        operands: q, k and v.
    """
    if words not in by_words:
        keep(by_words, words, None)
    elif by_words[words] is None:
        keep(by_words, words, _Lengths(run, length, operands[0]))
