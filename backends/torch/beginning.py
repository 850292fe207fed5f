"""How whole calls begin: by torch's own functions, until kernels are there and calls have shown to be faster by them.

Kernels of a call and of its gradients are found by rehearsing it on tensors without memory, see
:mod:`einops_fast.backends.triton.launching.rehearsing`. They are compiled in other processes and loaded in a thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import torch

from einops_fast.backends.clock import EventStopwatch
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton_support import circumstances
from einops_fast.planning.layout import reach
from einops_fast.runtime.measuring import Policy
from einops_fast.runtime.tiers import Problem, Run, Tiers, planner
from einops_fast.runtime.tuning import autotune

__all__ = ["Beginning", "CallProblem", "meta_like", "sample_like"]

W = TypeVar("W")

_MEMORY = TorchMemory()

_MOST_NODES = 32
"""Of autograd's, between a result and the operands, that are gone through to time gradients."""


def meta_like(tensor: Any) -> Any:
    """Return a tensor of the same layout and dtype without memory, which has a gradient if ``tensor`` has one."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
    )


def sample_like(meta: Any, device: int) -> Any:
    """Return a tensor on a device like one without memory, of random numbers, or of zeros if they aren't floats."""
    flat = torch.zeros(reach(meta.shape, meta.stride()), dtype=meta.dtype, device=torch.device("cuda", device))
    if meta.dtype.is_floating_point:
        flat.normal_()
    return flat.as_strided(meta.shape, meta.stride()).requires_grad_(meta.requires_grad)


class CallProblem(Problem[W]):
    """Calls that are alike, computed in one of several ways, with their gradients.

    Args:
        device: of the operands.
        kind: see :class:`~einops_fast.runtime.tiers.Problem`.
        library: the way that works at once.
        policy: how ways are compared.
        details: what makes the calls alike, as part of the key of a choice.
    """

    def __init__(self, device: int, kind: Hashable, library: W, policy: Policy, details: Mapping[str, Any]) -> None:
        self.device, self.kind, self.library, self.policy = device, kind, library, policy
        self.details = details

    @abstractmethod
    def rehearse(self, name: str) -> None:
        """Make such calls in a way on tensors without memory."""

    def key(self) -> Mapping[str, Any]:
        return {**self.details, **circumstances(_MEMORY, self.device)}

    def compiled(self, name: str) -> Future[Any] | None:
        """Have the kernels of a way, if it has any, compiled elsewhere and loaded here."""
        from einops_fast.backends.triton.launching.rehearsing import compile_elsewhere

        launches = self.rehearsed(name)
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

    def is_loaded(self, name: str) -> bool:
        """Return whether all kernels of a way are loaded."""
        launches = self.rehearsed(name)
        with self.on_device():
            return all(each.is_loaded() for each in launches)

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device of the operands the current one."""
        return _MEMORY.on_device(self.device)

    def rehearsed(self, name: str) -> Sequence[Any]:
        """Return the launches of kernels by :meth:`rehearse`."""
        from einops_fast.backends.triton.launching.rehearsing import rehearsing

        with self.on_device(), autotune("auto"), rehearsing() as launches:
            self.rehearse(name)
        return launches

    def preferred(self, ways: Iterable[W]) -> Collection[str]:
        return ()

    def stopwatch(self) -> EventStopwatch:
        return _MEMORY.stopwatch()

    def gradients(self, result: Any, operands: Sequence[Any]) -> _GradientWatch | None:
        return _GradientWatch.of(result, operands[-1])

    def may_measure(self) -> bool:
        # Who wants the same bits in all calls has one way.
        here = _MEMORY.current_device() == self.device  # whose events would tell of others otherwise
        return here and _MEMORY.may_measure() and not _MEMORY.deterministic()


class Beginning(Generic[W]):
    """What calls of one class go through until a way is chosen for them.

    Args:
        problem: the calls.

    Attributes:
        decided: the way that was chosen for good.
    """

    def __init__(self, problem: CallProblem[W]) -> None:
        self.problem = problem
        self.decided: W | None = None
        self._tiers = Tiers(problem, self.decide)

    def decide(self, way: W, run: Run | None = None) -> None:
        """Choose a way for good."""
        self.decided = way

    def __call__(self, *operands: Any) -> Any:
        """Make a call; the last of the operands is a list of its tensors."""
        return self._tiers.run()(*operands)


class _GradientWatch:
    """Times what autograd runs between the gradients of a result and those of operands."""

    def __init__(self) -> None:
        self._watch, self._stopped = _MEMORY.stopwatch(), False

    @classmethod
    def of(cls, result: Any, operands: Sequence[Any]) -> _GradientWatch | None:
        """Return one for a result, or for the first of several; ``None`` if it has no gradient."""
        first = result[0] if isinstance(result, tuple) else result
        nodes = _nodes(first, operands)
        if not nodes:
            return None
        watch = cls()
        handles = [first.grad_fn.register_prehook(lambda *gradients: watch.start())]

        def stop(*gradients: Any) -> None:
            watch.stop()
            for handle in handles:
                handle.remove()

        handles.append(nodes[-1].register_hook(stop))
        return watch

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        self._stopped = True

    def seconds(self) -> float | None:
        return self._watch.seconds() if self._stopped else None


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
