"""Operators along rows: what is given says where results lie and which kernels write them, found once and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from einops_fast.backends.torch.operator import MEMORY, Layout, Operator, dtype_name, is_aligned, new_tensors
from einops_fast.planning.layout import dense_strides
from einops_fast.planning.target import Operand
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.tuning import current_mode, unchecked_mode


class RowOperator(Operator):
    """An operator whose kernels are in a folder of :mod:`einops_fast.backends.triton.rows`.

    The ``contest`` is that folder, and its ``plan``'s function that makes one: ``'norm.norm_gradients'``. So many
    results as ``unrecorded`` says are made for callers that want no gradients; ``aligned`` are the positions of tensors
    whose addresses matter.
    """

    def __init__(
        self,
        schema: str,
        contest: str,
        layouts: Callable[..., Sequence[Layout | None]],
        setup: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
        backward: Callable[..., Any] | None = None,
        seen: int | None = None,
        unrecorded: int | None = None,
        aligned: Sequence[int] = (),
    ) -> None:
        self._contest, self._layouts, self._aligned = contest.split("."), layouts, aligned
        self._single = schema.endswith("-> Tensor")
        self._plans: dict[Any, tuple[Sequence[Layout | None], Callable[..., None]]] = emptied_with_plans({})
        fewer = None if unrecorded is None else partial(self._run, count=unrecorded)
        super().__init__(schema, self._run, self._shapes, setup, backward, seen, fewer)

    def _shapes(self, *arguments: Any) -> Any:
        found = new_tensors(arguments[0], self._layouts(*arguments))
        return found[0] if self._single else found

    def _run(self, *arguments: Any, count: int | None = None) -> Any:
        """Return the results, or so many of them and ``None`` for the others."""
        layouts, run = self.plan(*arguments)
        if count is not None:
            layouts = (*layouts[:count], *[None] * (len(layouts) - count))
        found = new_tensors(arguments[0], layouts)
        run(*arguments[: self._tensors], *found)
        return found[0] if self._single else found

    def plan(self, *arguments: Any) -> tuple[Sequence[Layout | None], Callable[..., None]]:
        """Return the layouts of the results, and what takes tensors and results and writes these."""
        tensors = arguments[: self._tensors]
        device, mode = MEMORY.device(tensors[0]), unchecked_mode()
        aligned = not self._aligned or is_aligned(*[tensors[at] for at in self._aligned])
        key = [device, mode, aligned, *arguments[self._tensors :]]
        for each in tensors:  # in a loop: every call comes through here
            key += (None,) if each is None else (each.shape, each.stride(), each.dtype)
        kept = tuple(key)
        found = self._plans.get(kept)
        if found is None:
            found = self._planned(arguments, device, aligned)
            keep(self._plans, kept, found)
        return found

    def _planned(
        self, arguments: Sequence[Any], device: int, aligned: bool
    ) -> tuple[Sequence[Layout | None], Callable[..., None]]:
        from einops_fast.backends.triton.rows.contest import Site

        folder, name = self._contest
        contest = getattr(import_module(f"einops_fast.backends.triton.rows.{folder}.plan"), name)
        tensors, layouts = arguments[: self._tensors], self._layouts(*arguments)
        given = [None if each is None else _operand(each.shape, each.stride(), each.dtype) for each in tensors]
        made = [None if each is None else _operand(*each) for each in layouts]
        site = Site(MEMORY, device, MEMORY.limits(device), current_mode(), aligned)
        return layouts, contest(site, given, made, arguments[self._tensors :])


def _operand(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Operand:
    return Operand(tuple(shape), tuple(strides), dtype_name(dtype))


def dense_layout(like: Any, dtype: Any = None) -> Layout:
    """Return the layout of a tensor without gaps, in the order of ``like``, and in its dtype if ``None``."""
    return tuple(like.shape), dense_strides(like.shape, like.stride()), dtype or like.dtype
