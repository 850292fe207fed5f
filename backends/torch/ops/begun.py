"""Operators whose calls begin with the library, see :mod:`einops_fast.backends.torch.beginning`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from einops_fast.backends.clock import DeviceClock
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.beginning import CallProblem, FirstCalls
from einops_fast.backends.torch.operator import MEMORY, dtype_name
from einops_fast.backends.torch.types import PLAIN, is_jit_tracing, is_recomputed
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.layout import VECTOR, dense_strides, reach
from einops_fast.runtime.choosing import agree
from einops_fast.runtime.measuring import OPERATORS, record_of, time_runs
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.tiers import Run
from einops_fast.runtime.tuning import autotune, by_any_size, current_mode

_INTERPRETED = interpreted()

_WITH_GRADIENTS = 3.0
"""Times that of a call, with what computes its gradients."""

_SAVED = 0.3
"""Of the time of a kernel, what the library is predicted to take more for each pass over memory that it needs less."""


class _Way(NamedTuple):
    name: str
    compiles: bool


_LIBRARY, _KERNELS = _Way("library", False), _Way("kernels", True)

_ANY_SIZE = _Way("kernels for any size", True)


class Calls(NamedTuple):
    """Calls of an operator that differ in values only."""

    name: str  # of the operator
    # each takes the arrays and computes a call, by the framework's functions or by kernels
    library: Run
    kernels: Run
    arrays: tuple[Any, ...]  # of a call; the first one has the rows
    axis: int  # of the first one, which rows are along
    numbers: Hashable  # what else both ways depend on


_calls: dict[Hashable, FirstCalls[_Way]] = emptied_with_plans({})


def begins_with_library() -> bool:
    """Return whether calls begin with the library: no call waits, and no kernel is tested or compiled into a graph."""
    return not (_INTERPRETED or torch.compiler.is_compiling()) and current_mode() == "auto"


def begun(calls: Calls) -> Run:
    """Return what computes calls: kernels or, as long as these aren't there or aren't faster, the library."""
    first = calls.arrays[0]
    if (
        torch.compiler.is_compiling() or _INTERPRETED or is_jit_tracing() or type(first) not in PLAIN or first.is_meta
    ):  # fmt: skip
        return calls.kernels
    recorded = torch.is_grad_enabled()
    # A checkpoint's second run of a call, in a thread with a mode of its own, has to save what the first one has.
    pinned = recorded and is_recomputed()
    # Not all of torch's functions give the same bits in every run; kernels do, from the first call on.
    waits = current_mode() != "auto" or MEMORY.deterministic()
    if waits and not pinned:
        return calls.kernels
    flags = [None if each is None else recorded and each.requires_grad for each in calls.arrays]
    layouts = [None if each is None else (each.shape, each.stride(), each.dtype) for each in calls.arrays]
    key = calls.name, first.get_device(), first.data_ptr() % VECTOR, *flags, *layouts, calls.numbers
    found = _calls.get(key)
    if found is None:
        problem = _OperatorProblem(calls, flags)
        found = FirstCalls(problem.class_key, problem, recorded, pinned=calls.kernels if waits else None)
        keep(_calls, key, found)
    return found


class _OperatorProblem(CallProblem[_Way]):
    """Calls of an operator that are alike: of one class are those that differ little in the number of rows."""

    any_size = _ANY_SIZE

    def __init__(self, calls: Calls, flags: Sequence[bool | None]) -> None:
        first = calls.arrays[0]
        columns = first.shape[calls.axis] if first.dim() else 1
        rows = (max(first.numel() // columns, 1) - 1).bit_length()
        order = sorted(range(first.dim()), key=first.stride().__getitem__)
        alike = first.data_ptr() % VECTOR if not first.is_meta else 0, *order, *flags, calls.axis, calls.numbers
        device = MEMORY.device(first)
        kind = calls.name, device, first.dtype, alike
        self.class_key = kind, columns, rows
        details = {
            "problem": f"{calls.name} or the library, rows of {columns}",
            "dtype": dtype_name(first.dtype),
            "rows": rows,
            "alike": repr(alike),
        }
        super().__init__(device, kind, (_LIBRARY, _KERNELS, _ANY_SIZE), OPERATORS, details, calls.arrays)
        self._runs = {
            _LIBRARY: calls.library if first.is_contiguous() else _in_order(calls.library),
            _KERNELS: calls.kernels,
            _ANY_SIZE: by_any_size(calls.kernels),
        }

    def near(self) -> Sequence[str]:
        return [_LIBRARY.name, _KERNELS.name]

    def run_of(self, way: _Way, arrays: Sequence[Any]) -> Run:
        return self._runs[way]

    def saves(self) -> float:
        """Return the seconds that kernels are predicted to save of a call, with its gradients."""
        given = [each for each in self._like if each is not None]
        moved = sum(reach(each.shape, each.stride()) * each.element_size() for each in given)
        seconds: float = 2 * moved / gpu_ceilings(MEMORY.device_name(self.device)).bandwidth
        return _SAVED * len(given) * seconds * (_WITH_GRADIENTS if any(each.requires_grad for each in given) else 1.0)

    def settle(self) -> _Way:
        samples, ways = self.samples(), (_LIBRARY, _KERNELS)
        makers = {way.name: partial(partial, self.call, way, samples) for way in ways}
        with self.on_device():
            with autotune("wait"):
                self.call(_KERNELS, samples)
            with autotune("auto"):
                times = time_runs(makers, DeviceClock(MEMORY, self.device), self.policy)
        record = record_of(times, [*makers], self.preferred(ways), self.policy)
        if record is None:  # no room for two calls in a row, say
            return _KERNELS
        return self.named(agree(self.key(), "auto", record, makers.__contains__)["choice"])


def _in_order(library: Run) -> Run:
    """Return what computes in the memory order of the first array, as kernels do: no result changes its order."""

    def in_order(x: Any, *others: Any) -> Any:
        results = library(x, *others)
        strides = dense_strides(x.shape, x.stride())

        def placed(result: Any) -> Any:
            if result is None or result.shape != x.shape or result.stride() == strides:
                return result
            return result.new_empty_strided(x.shape, strides).copy_(result)

        return tuple([placed(each) for each in results]) if isinstance(results, tuple) else placed(results)

    return in_order
