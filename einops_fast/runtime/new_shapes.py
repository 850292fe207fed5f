"""Calls whose shapes haven't come before: what needs no plan of theirs computes them, and no call waits for its plan.

A plan takes longer to make than a small einsum takes to run, and pays where its shapes come back. So small operands go
to the framework when their shapes come for the first time, and are planned when these come for the second time. On a
GPU, where a plan comes to nothing before its kernels are there, pairs are planned some calls later. Large operands of
a CPU are planned at once, as are all operands where somebody observes or traces the call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

from einops_fast.backends import Backend
from einops_fast.observing.observers import observed
from einops_fast.patching.small_calls import know_loops
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.runtime.plan_cache import LIMIT, emptied_with_plans, keep, kept
from einops_fast.runtime.tuning import is_reproducible

AT_SECOND_CALL = True
"""Whether the plan of small operands is made at the second call with their shapes. Tests of plans set it to False."""

ORDER, CASTING, OPTIMIZE = USUAL = "K", "safe", "auto"
"""Order, casting and optimizer of a call that may go to the framework first: interned, as all names in code are."""

_PLANNED = 64
"""The calls after which shapes are planned on a GPU; on a CPU one is enough."""

_FEW = 1 << 16
"""Multiply-adds, without intermediates, up to which more than two operands go to the framework first."""


class Like(NamedTuple):
    """A tensor as far as a plan depends on it; each attribute is the tensor's own."""

    shape: Any
    strides: Any
    dtype: Any
    device: Any
    requires_grad: bool


AtOnce = Callable[[Sequence[Any]], Callable[..., Any] | None]
"""Returns what computes operands without a plan of theirs, or ``None`` where a plan is better."""

ShapesOf = Callable[[Sequence[Any]], Hashable]
"""Returns what tells operands apart that have plans of their own; see :meth:`Backend.shapes`."""


class NewShapes:
    """The shapes that one kind of call came with, by type of its operands."""

    def __init__(self) -> None:
        # What may need no plan, and shapes, where one type came with several shapes: then a call looks here first.
        self.changing: dict[type, tuple[AtOnce, dict[Hashable, int], ShapesOf]] = {}
        self._seen: dict[type, dict[Hashable, int]] = {}
        self._likes: dict[Hashable, Sequence[Like]] = {}

    def at_once(self, operands: Sequence[Any]) -> Callable[..., Any] | None:
        """Return what needs no plan of operands whose type came with several shapes, but not with these."""
        known = self.changing.get(type(operands[0]))
        if known is None:
            return None
        at_once, seen, shapes_of = known
        return at_once(operands) if self._is_new(operands, seen, shapes_of) else None

    def notice(self, operands: Sequence[Any], at_once: AtOnce | None, shapes_of: ShapesOf) -> bool:
        """Return whether operands have new shapes, and ask ``at_once`` about further ones from the second shape on."""
        kind = type(operands[0])
        seen, known = self._seen.setdefault(kind, {}), self.changing.get(kind)
        unknown = known is None or known[0](operands) is None
        holds = unknown and at_once is not None and at_once(operands) is not None
        if holds and known is not None:  # shapes that came with operands of another kind, as without gradients
            seen = self._seen[kind] = {}
        if not self._is_new(operands, seen, shapes_of):
            return False
        if at_once is not None and holds and (known is not None or len(seen) > 1):
            self.changing[kind] = at_once, seen, shapes_of
        return True

    def _is_new(self, operands: Sequence[Any], seen: dict[Hashable, int], shapes_of: ShapesOf) -> bool:
        """Count the calls that came with these shapes, and return whether it's too early to plan them."""
        shapes = shapes_of(operands)
        if len(seen) >= LIMIT:
            seen.clear()
        on_gpu, known = _on_gpu(operands[0]), len(seen)
        calls = seen.setdefault(shapes, 0 if on_gpu else _PLANNED)  # one look: to hash shapes takes a microsecond
        if calls >= _PLANNED:
            return len(seen) > known
        if on_gpu:
            seen[shapes] = calls + 1
        if on_gpu and not calls:
            keep(self._likes, shapes, [Like(each.shape, each.stride(), each.dtype, each.device, each.requires_grad)
                                       for each in operands])  # fmt: skip
        elif calls + 1 == _PLANNED:
            self._likes.pop(shapes, None)
        return True

    def unplanned(self) -> list[Sequence[Like]]:
        """Return what came without being planned; from now on it is planned when it comes."""
        likes = list(self._likes.values())
        self._likes.clear()
        for seen in self._seen.values():
            seen.update(dict.fromkeys(seen, _PLANNED))
        return likes


def _on_gpu(operand: Any) -> bool:
    """Return whether a tensor of torch is on a GPU."""
    return getattr(operand, "is_cuda", False)


by_question: dict[Hashable, NewShapes] = emptied_with_plans({})
"""By all of a call but its operands."""


def came_with(question: Hashable) -> NewShapes:
    """Return the shapes that all of a call but its operands came with, and keep them from the first call on."""
    return kept(by_question, question, NewShapes)


def native_first(
    question: tuple[Hashable, ...],
    subscripts: Subscripts,
    backend: Backend,
    operands: Sequence[Any],
    as_given: bool = False,
    asks_first: bool = False,
) -> Callable[..., Any] | None:
    """Return the framework's einsum, which takes letters, for a call that no plan was made for; ``None``: plan it.

    Args:
        question: all of the call but its operands.
        subscripts: the equation.
        backend: that of the operands.
        operands: arrays of it.
        as_given: whether the framework reads the equation as it was given, as the first part of the question.
        asks_first: whether later calls ask :class:`NewShapes` first, as those do whose equation was ``as_given``.
    """
    if observed():  # an observer sees plans
        return None
    learn_loops(question, subscripts, backend, operands, as_given)
    shapes = came_with(question)
    if not subscripts.equation.isascii():
        return None
    if is_reproducible():  # what came before makes no difference: sizes alone send calls to loops
        return None
    asked_first = _asked_first(subscripts, backend) if AT_SECOND_CALL and (as_given or asks_first) else None
    if not shapes.notice(operands, asked_first, backend.shapes) or not AT_SECOND_CALL:
        return None
    full = prod(bind_sizes(subscripts, [tuple(operand.shape) for operand in operands]).values())
    if len(operands) > 2 and full > _FEW:
        return None
    return backend.at_once(operands, full)


def learn_loops(
    question: tuple[Hashable, ...], subscripts: Subscripts, backend: Backend, operands: Sequence[Any], as_given: bool
) -> None:
    """Keep that a call came, and have later ones that are spelled so ask first whether the framework's loops suffice.

    The arguments are those of :func:`native_first`.
    """
    came_with(question)
    spelled: Any = question[0]
    in_letters = subscripts.equation.isascii() and (as_given or not isinstance(spelled, str))
    if backend.loops is not None and in_letters and not observed():
        product = backend.product(subscripts) if as_given and AT_SECOND_CALL else None
        key = spelled if as_given else 2 * len(operands) + (spelled[1] is not None)
        know_loops(key, type(operands[0]), backend.loops, product)


def _asked_first(subscripts: Subscripts, backend: Backend) -> AtOnce:
    """Return what computes operands of any sizes without a plan, if they are small, and refuses what doesn't fit."""
    if backend.loops is None:  # it goes by the elements of operands
        return backend.at_once
    inputs = subscripts.inputs
    places = {label: (at, axis) for at, term in enumerate(inputs) for axis, label in enumerate(term)}.values()

    def at_once(operands: Sequence[Any]) -> Callable[..., Any] | None:
        if len(operands) != len(inputs):
            return None
        if len(operands) == 2:  # which no labels make more of than this
            run = backend.at_once(operands, operands[0].size * operands[1].size)
            if run is not None:
                return run
        full = prod([operands[at].shape[axis] for at, axis in places])
        return None if len(operands) > 2 and full > _FEW else backend.at_once(operands, full)

    return at_once
