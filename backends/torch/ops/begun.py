"""Operators whose calls begin with the library, see :mod:`einops_fast.backends.torch.beginning`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.beginning import Beginning, CallProblem, meta_like, sample_like
from einops_fast.backends.torch.operator import MEMORY, Operator, dtype_name
from einops_fast.backends.torch.types import PLAIN, is_jit_tracing, is_recomputed
from einops_fast.backends.triton_support import interpreting
from einops_fast.planning.layout import VECTOR, dense_strides, reach
from einops_fast.runtime.measuring import ROWS
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.tiers import Run
from einops_fast.runtime.tuning import autotune, current_mode

__all__ = ["BegunOperator", "begins_with_library"]

_INTERPRETED = interpreting()

_LIBRARY, _KERNELS = "library", "kernels"

_WITH_GRADIENTS = 3.0
"""Times that of a call, with what computes its gradients."""

_SAVED = 0.3
"""Of the time of a kernel, what the library is predicted to take more for each pass over memory that it needs less."""


def begins_with_library() -> bool:
    """Return whether calls begin with the library: no call waits, and no kernel is tested or compiled into a graph."""
    return not (_INTERPRETED or torch.compiler.is_compiling()) and current_mode() == "auto"


class BegunOperator(Operator):
    """An operator beside functions of the library that compute the same.

    Args:
        schema, arguments, options: as for :class:`~einops_fast.backends.torch.operator.Operator`.
        along: whether the first number is the axis that rows are along; else that is the last one.
    """

    def __init__(self, schema: str, *arguments: Any, along: bool = True, **options: Any) -> None:
        super().__init__(schema, *arguments, **options)
        self.name, self._along = schema[: schema.index("(")], along
        self._beginnings: dict[Hashable, Beginning[str]] = emptied_with_plans({})
        self._first_ways: dict[Hashable, Callable[..., Any] | None] = emptied_with_plans({})

    def or_library(
        self,
        library: Callable[[], Any],
        *arguments: Any,
        kernels: Callable[..., Any] | None = None,
        further: Hashable = None,
    ) -> Any:
        """Return what the kernels compute or, as long as these aren't there or aren't faster, the library.

        Args:
            library: computes the same with the framework's own functions.
            arguments: of the operator.
            kernels: takes the arguments, and does more than the operator with them.
            further: what that depends on.
        """
        run = self if kernels is None else kernels
        if torch.compiler.is_compiling():
            return run(*arguments)
        way = self._first_way(arguments, run, further)
        if way is None:
            return run(*arguments)
        if not arguments[0].is_contiguous():
            library = partial(_in_order_of, arguments[0], library)
        if way is _by_library:
            return library()
        return way(library, partial(run, *arguments), arguments[: self._tensors])

    def _first_way(
        self, arguments: tuple[Any, ...], run: Callable[..., Any], further: Hashable
    ) -> Callable[..., Any] | None:
        """Return what takes ways by the library and by kernels, and tensors; ``None`` where it is to be the kernels."""
        first = arguments[0]
        recorded = torch.is_grad_enabled() and self.recorded is not None
        # A checkpoint's second run of a call, in a thread with a mode of its own, has to save what the first one has.
        pinned = recorded and is_recomputed()
        # Not all of torch's functions give the same bits in every run; kernels do, from the first call on.
        waits = current_mode() != "auto" or MEMORY.deterministic()
        if (
            _INTERPRETED or (waits and not pinned) or is_jit_tracing() or type(first) not in PLAIN or first.is_meta
        ):  # fmt: skip
            return None
        flags = [None if each is None else recorded and each.requires_grad for each in arguments[: self._tensors]]
        key = (
            pinned, first.shape, first.stride(), first.dtype, first.get_device(), first.data_ptr() % VECTOR, *flags,
            arguments[self._tensors :], further,
        )  # fmt: skip
        way = self._first_ways.get(key, self)
        if way is None or way is _by_library:
            return way
        if waits:
            keep(self._first_ways, key, None)
            return None
        if not isinstance(way, Beginning):
            way = self._beginning(arguments, run, further, flags)
            keep(self._first_ways, key, way)
        if way.decided is None and not pinned:
            return way
        next_way: Callable[..., Any] | None = None
        if way.decided in (_LIBRARY, None):
            next_way = _by_library
        else:
            # It was decided for a class of calls, of which this one may have kernels of its own.
            problem = way.problem
            details = {**problem.details, "layout": repr((*first.shape, *first.stride()))}
            own = _OperatorProblem(self, arguments, run, problem.kind, details)
            if not own.is_loaded(_KERNELS):
                next_way = _by_library if pinned else Beginning(own)
        keep(self._first_ways, key, next_way)
        return next_way

    def _beginning(
        self, arguments: tuple[Any, ...], run: Callable[..., Any], further: Hashable, flags: Sequence[bool | None]
    ) -> Beginning[str]:
        """Return how calls of the same class as this one begin: those that differ little in the number of rows."""
        first, numbers = arguments[0], arguments[self._tensors :]
        axis = numbers[0] if self._along else first.dim() - 1
        columns = first.shape[axis] if first.dim() else 1
        rows = (max(first.numel() // columns, 1) - 1).bit_length()
        order = sorted(range(first.dim()), key=first.stride().__getitem__)
        alike = first.data_ptr() % VECTOR, *order, *flags, numbers, further
        kind = self.name, first.get_device(), first.dtype, alike
        key = kind, columns, rows
        found = self._beginnings.get(key)
        if found is None:
            details = {
                "problem": f"{self.name} or the library, rows of {columns}",
                "dtype": dtype_name(first.dtype),
                "rows": rows,
                "alike": repr(alike),
            }
            found = Beginning(_OperatorProblem(self, arguments, run, kind, details))
            keep(self._beginnings, key, found)
        return found

    def seconds_saved(self, tensors: Sequence[Any], device: int) -> float:
        """Return the seconds that kernels are predicted to save of a call on such tensors, with its gradients."""
        given = [each for each in tensors if each is not None]
        moved = sum(reach(each.shape, each.stride()) * each.element_size() for each in given)
        seconds: float = 2 * moved / gpu_ceilings(MEMORY.device_name(device)).bandwidth
        return _SAVED * len(given) * seconds * (_WITH_GRADIENTS if any(each.requires_grad for each in given) else 1.0)


def _in_order_of(x: Any, library: Callable[[], Any]) -> Any:
    """Return what the library computes in the memory order of the input, as kernels do: no result changes its order."""
    results = library()
    strides = dense_strides(x.shape, x.stride())

    def placed(result: Any) -> Any:
        if result is None or result.shape != x.shape or result.stride() == strides:
            return result
        return result.new_empty_strided(x.shape, strides).copy_(result)

    return tuple([placed(each) for each in results]) if isinstance(results, tuple) else placed(results)


def _by_library(library: Callable[[], Any], kernels: Callable[[], Any], tensors: Sequence[Any]) -> Any:
    return library()


def _by_kernels(library: Callable[[], Any], kernels: Callable[[], Any], tensors: Sequence[Any]) -> Any:
    return kernels()


class _OperatorProblem(CallProblem[str]):
    """Calls of an operator that are alike, by the library or by kernels.

    Args:
        operator: whose they are.
        arguments: of a call.
        run: what takes them.
        kind, details: see :class:`CallProblem`.
    """

    def __init__(
        self, operator: BegunOperator, arguments: tuple[Any, ...], run: Callable[..., Any], kind: Hashable, details: Any
    ) -> None:
        super().__init__(MEMORY.device(arguments[0]), kind, _LIBRARY, ROWS, details)
        self._operator, self._run, self._recorded = operator, run, torch.is_grad_enabled()
        self._arguments = [meta_like(each) if _is_tensor(each) else each for each in arguments]

    def saves(self) -> float:
        return self._operator.seconds_saved([each for each in self._arguments if _is_tensor(each)], self.device)

    def near(self) -> Sequence[str]:
        return _LIBRARY, _KERNELS

    def rehearse(self, name: str) -> None:
        if name == _KERNELS:
            self._call(self._arguments)

    def _call(self, arguments: Sequence[Any]) -> None:
        """Make such a call, and compute its gradients: from those of the first result alone, and of all."""
        with torch.set_grad_enabled(self._recorded):
            results = self._run(*arguments)
        every = [each for each in (results if isinstance(results, tuple) else (results,)) if each is not None]
        every = [each for each in every if each.requires_grad]
        leaves = [each for each in arguments if _is_tensor(each) and each.requires_grad]
        for some in (every[:1], every) if len(every) > 1 else (every,):
            if some and leaves:
                cotangents = [torch.ones_like(each) for each in some]
                torch.autograd.grad(some, leaves, cotangents, retain_graph=True, allow_unused=True)

    def named(self, name: str) -> str:
        return name

    def run(self, way: str) -> Run:
        return _by_library if way == _LIBRARY else _by_kernels

    def settle(self) -> str:
        with self.on_device(), autotune("wait"):
            self._call([sample_like(each, self.device) if _is_tensor(each) else each for each in self._arguments])
        return _KERNELS


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor)
