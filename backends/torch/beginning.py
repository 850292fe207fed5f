"""Begin whole calls by torch's own functions, until kernels are there and calls have shown to be faster by them.

Kernels of a call and of its gradients are found by rehearsing it on tensors without memory, see
:mod:`einops_fast.backends.triton.launching.rehearsing`. They are compiled in other processes and loaded in a thread.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch

from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.types import is_recomputed, is_traced
from einops_fast.backends.triton_support import circumstances
from einops_fast.planning.layout import reach
from einops_fast.runtime.measuring import Policy, Stopwatch
from einops_fast.runtime.plan_cache import emptied_with_plans, kept
from einops_fast.runtime.planner import planner
from einops_fast.runtime.tiers import Problem, Run, Tiers
from einops_fast.runtime.tuning import autotune

_MEMORY = TorchMemory()

_exhausted = TorchMemory.exhausted

_MOST_NODES = 32
"""Of autograd's, between a result and the operands, that are gone through to time gradients."""


def meta_like(tensor: Any) -> Any:
    """Return a tensor of the same layout and dtype without memory, which has a gradient if ``tensor`` has one."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
    )


def sample_like(meta: Any, device: int | str) -> Any:
    """Return a tensor like one without memory, on a GPU by its number: random floats, or zeros of other dtypes."""
    flat = torch.zeros(reach(meta.shape, meta.stride()), dtype=meta.dtype, device=device)
    if meta.dtype.is_floating_point:
        flat.normal_()
    return flat.as_strided(meta.shape, meta.stride()).requires_grad_(meta.requires_grad)


def differentiate(results: Any, arrays: Sequence[Any]) -> None:
    """Compute the gradients of a call, if it has any: from those of the first of its results alone, and of all."""
    every = [each for each in (results if isinstance(results, tuple) else (results,)) if each is not None]
    every = [each for each in every if each.requires_grad]
    leaves = [each for each in arrays if each is not None and each.requires_grad]
    for some in (every[:1], every) if len(every) > 1 else (every,):
        if some and leaves:
            cotangents = [torch.ones_like(each) for each in some]
            torch.autograd.grad(some, leaves, cotangents, retain_graph=True, allow_unused=True)


class Way(Protocol):
    """What computes calls: the library's functions, or kernels, which are compiled first."""

    @property
    def name(self) -> str: ...

    @property
    def compiles(self) -> bool: ...


W = TypeVar("W", bound=Way)


class CallProblem(Problem[W]):
    """Calls that are alike, computed in one of several ways, with their gradients.

    Args:
        device: of the arrays.
        kind: see :class:`~einops_fast.runtime.tiers.Problem`.
        ways: by which calls may be computed, the one that works at once first.
        policy: how ways are compared.
        details: what makes the calls alike, as part of the key of a choice.
        arrays: of a call; tensors, or ``None``.
    """

    any_size: W | None = None  # the way whose kernels serve calls of other sizes, too, if there is one

    def __init__(
        self,
        device: int,
        kind: Hashable,
        ways: Sequence[W],
        policy: Policy,
        details: Mapping[str, Any],
        arrays: Sequence[Any],
    ) -> None:
        self.device, self.kind, self.library, self.policy = device, kind, ways[0], policy
        self.details = details
        self._ways = {way.name: way for way in ways}
        self._recorded = torch.is_grad_enabled()
        self._like = [None if each is None else meta_like(each) for each in arrays]

    @abstractmethod
    def run_of(self, way: W, arrays: Sequence[Any]) -> Run:
        """Return what takes the arrays of calls that differ from this one in values only."""

    def alone(self) -> CallProblem[W]:
        """Return the problem of calls of these shapes only: their class may have been chosen for by others."""
        found = copy(self)
        shapes = [None if each is None else [*each.shape, *each.stride()] for each in self._like]
        found.details = {**self.details, "shapes": shapes}
        return found

    def key(self) -> Mapping[str, Any]:
        return {**self.details, **circumstances(_MEMORY, self.device)}

    def near(self) -> Sequence[str]:
        return [*self._ways]

    def named(self, name: str) -> W:
        return self._ways[name]

    def for_any(self) -> tuple[str, W, Hashable] | None:
        way = self.any_size
        launches = () if way is None else self.rehearsed(way)
        if way is None or not launches:
            return None
        with self.on_device():
            return way.name, way, frozenset([each.source for each in launches])

    def run(self, way: W) -> Run:
        return lambda run_of, arrays: run_of(way, arrays)(*arrays)

    def compiled(self, name: str) -> Future[Any] | None:
        """Have the kernels of a way, if it has any, compiled elsewhere and loaded here."""
        from einops_fast.backends.triton.launching.rehearsing import compile_elsewhere

        launches = self.rehearsed(self._ways[name])
        if not launches:
            return None
        with self.on_device():
            compiled = compile_elsewhere(launches)
        loaded: Future[Any] = Future()

        def load() -> None:
            try:
                with self.on_device():
                    for each in launches:
                        each.compile()
            except Exception as error:
                loaded.set_exception(error)
            else:
                loaded.set_result(None)

        compiled.add_done_callback(lambda _: planner().put(load))
        return loaded

    def is_loaded(self, way: W) -> bool:
        """Return whether all kernels of a way are loaded."""
        launches = self.rehearsed(way)
        with self.on_device():
            return all(each.is_loaded() for each in launches)

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device of the arrays the current one."""
        return _MEMORY.on_device(self.device)

    def rehearsed(self, way: W) -> Sequence[Any]:
        """Return the launches of kernels of such calls, made in a way on tensors without memory."""
        from einops_fast.backends.triton.launching.rehearsing import rehearsing

        with self.on_device(), autotune("auto"), rehearsing() as launches:
            if way.compiles:
                self.call(way, self._like)
        return launches

    def call(self, way: W, arrays: Sequence[Any]) -> None:
        """Make such a call, and compute its gradients."""
        with torch.set_grad_enabled(self._recorded):
            differentiate(self.run_of(way, arrays)(*arrays), arrays)

    def samples(self) -> list[Any]:
        """Return arrays of such a call, with anything in them."""
        return [None if each is None else sample_like(each, self.device) for each in self._like]

    def preferred(self, ways: Iterable[W]) -> Collection[str]:
        return ()

    def stopwatch(self) -> Stopwatch:
        return _MEMORY.stopwatch()

    def gradients(self, result: Any, operands: Sequence[Any]) -> Stopwatch | None:
        return _gradient_watch(result, operands[-1])

    def may_measure(self) -> bool:
        # Who wants the same bits in all calls has one way.
        here = _MEMORY.current_device() == self.device  # whose events would tell of others otherwise
        return here and _MEMORY.may_measure() and not _MEMORY.deterministic() and not is_traced()


_tiers: dict[Hashable, Tiers[Any]] = emptied_with_plans({})
"""By class of calls."""


class FirstCalls(Generic[W]):
    """Calls of one kind, from the first one on: by the library, until it's known which way is the fastest.

    Args:
        key: of the class whose calls share a choice.
        problem: of these calls.
        gradients: whether there may be any: a checkpoint compares what a call saves for them with what its second run
            saves, so both are computed in one way, for good.
        known: the way that was chosen by another process.
        pinned: computes calls in checkpoints, if that is decided.
    """

    def __init__(
        self,
        key: Hashable,
        problem: CallProblem[W],
        gradients: bool,
        known: W | None = None,
        pinned: Run | None = None,
    ) -> None:
        self._problem, self._gradients, self._pinned = problem, gradients, pinned
        self._runs: dict[str, Run] = {}
        self._run: Run | None = None
        tiers: Tiers[W] = kept(_tiers, key, partial(Tiers, problem))
        # What this process has measured and loaded, in another mode, needn't be tried.
        if tiers.decided is None and known is not None and "triton" in sys.modules and problem.is_loaded(known):
            tiers.decide(known)
        self._tiers = tiers

    def __call__(self, *arrays: Any) -> Any:
        """Return what a call does."""
        run = self._run
        if self._pinned is not None and is_recomputed():
            run = self._pinned
        if run is not None:
            return run(*arrays)
        tiers = self._tiers
        if tiers.decided is not None:
            run = self._decided(tiers.decided, arrays)
            if run is not None:
                return run(*arrays)
            tiers = self._tiers
        if self._gradients and is_recomputed():
            self._pinned = self._run_of(tiers.problem.library, arrays)
            return self._pinned(*arrays)
        try:
            # In one frame, as a caller waits for it: most calls while nothing is decided.
            tiers.calls += 1
            if tiers.calls % tiers.every:
                return (self._runs.get(tiers.way.name) or self._run_at_once(tiers.way, arrays))(*arrays)
            return tiers.step()(self._run_at_once, arrays)
        except _exhausted:
            # A library may need room for the scores. Kernels don't, and are waited for.
            problem = tiers.problem
            ours = next((name for name in problem.near() if problem.named(name).compiles), None)
            if ours is None or not problem.may_measure():
                raise
            return self._run_of(problem.named(ours), arrays)(*arrays)

    def _decided(self, way: W, arrays: Sequence[Any]) -> Run | None:
        """Return what makes all later calls; ``None`` where kernels of their shapes aren't there."""
        if way.compiles:
            own = self._problem.alone()
            if not own.is_loaded(way):
                self._tiers = Tiers(own)
                return None
        self._run = self._run_of(way, arrays)
        return self._run

    def _run_at_once(self, way: W, arrays: Sequence[Any]) -> Run:
        """Return what makes a call in a way. Where kernels of its shapes aren't there, such calls begin anew."""
        problem = self._problem
        begun = way.name in self._runs or problem is self._tiers.problem
        if way.compiles and not begun and not problem.is_loaded(way):
            self._tiers = Tiers(problem.alone())
            way = problem.library
        return self._run_of(way, arrays)

    def _run_of(self, way: W, arrays: Sequence[Any]) -> Run:
        run = self._runs.get(way.name)
        if run is None:
            run = self._runs[way.name] = self._problem.run_of(way, arrays)
        return run


def _gradient_watch(result: Any, operands: Sequence[Any]) -> Stopwatch | None:
    """Return what times autograd between the gradients of a result, or the first of several, and those of operands.

    ``None`` if there are none.
    """
    first = result[0] if isinstance(result, tuple) else result
    nodes = _nodes(first, operands)
    if not nodes:
        return None
    watch = _MEMORY.stopwatch()
    handles = [first.grad_fn.register_prehook(lambda *gradients: watch.start())]

    def stop(*gradients: Any) -> None:
        watch.stop()
        for handle in handles:
            handle.remove()

    handles.append(nodes[-1].register_hook(stop))
    return watch


def _nodes(result: Any, operands: Sequence[Any]) -> list[Any]:
    """Return autograd's nodes between a result and operands, from the result on; none if there are many."""
    if result.grad_fn is None:
        return []
    ends = [each.grad_fn for each in operands if each is not None and each.grad_fn is not None]
    nodes = [result.grad_fn]
    for node in nodes:
        for further, _ in node.next_functions:
            if further is None or further in ends or further in nodes or further.name().endswith("AccumulateGrad"):
                continue
            nodes.append(further)
        if len(nodes) > _MOST_NODES:
            return []
    return nodes
