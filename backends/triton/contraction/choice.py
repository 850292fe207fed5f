"""Which way a fused step is run: the library's calls at once, and a kernel of our own as soon as that pays.

Nothing here imports Triton before a kernel is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import cached_property
from math import prod
from typing import Any

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.library import Candidate, LibraryCandidate, Run
from einops_fast.backends.triton_support import circumstances, interpreted
from einops_fast.planning.chains import products
from einops_fast.planning.cost import step_costs
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.layout import VECTOR
from einops_fast.planning.steps import Fused, Multiply
from einops_fast.runtime.choosing import Chooser
from einops_fast.runtime.measuring import CONTRACTIONS, Stopwatch
from einops_fast.runtime.tiers import Problem, Tiers

_SMALL_ELEMENTS, _SMALL_PRODUCTS = 1 << 19, 1 << 27
"""Below these, whatever is run, the launch takes most of the time: no kernel is compiled for that, unless it is one
launch in place of several."""

_LEAST_SAVED = 0.1
"""Of the library's time that a kernel may save, whatever is predicted: how that copes with strides isn't foreseen."""

_ANY_MARGIN = 2.0
"""How many times the library's a kernel for any size may be predicted to take, to be tried."""


def _small(step: Fused) -> bool:
    operands = range(len(step.reads))
    elements = sum(prod(loop.size for loop in step.loops if loop.strides[at]) for at in operands) + prod(step.shape)
    # What the library writes before it sums it, too.
    elements += sum(each.full for each in step.library if isinstance(each, Multiply) and each.summed)
    return elements < _SMALL_ELEMENTS and products(step.loops) < _SMALL_PRODUCTS


class Choice:
    """A fused step that finds out, when it is run, how to be run.

    ``calls`` are the same by library calls. What calls begin with is ``at_once``, the framework's own einsum for all of
    the step, where there is one; ``chosen`` is the way for good.
    """

    def __init__(
        self,
        step: Fused,
        calls: Run,
        memory: Memory,
        precision: str,
        mode: str,
    ) -> None:
        self.step, self.memory = step, memory
        self.calls = self.placed(calls)
        self.precision, self.mode = precision, mode
        self.chosen: Candidate | None = None
        self.at_once: Run | None = None
        # By whether addresses are aligned.
        self._problems: dict[bool, StepProblem] = {}
        self._run: Run | None = None
        self._run_unaligned: Run | None = None
        self._device = 0
        self._current_device = memory.current_device

    def placed(self, calls: Run) -> Run:
        """Return the calls, with the result in rows with gaps between them where the next step relies on that."""
        shape, strides, empty = self.step.shape, self.step.strides, self.memory.empty
        if strides is None:
            return calls

        def run(*operands: Any) -> Any:
            result = empty(operands[0], shape, strides)
            result[...] = calls(*operands)
            return result

        return run

    def __call__(self, *operands: Any) -> Any:
        run = self._run
        if run is None:
            return self._begin(operands)
        if self._current_device() == self._device:
            return run(*operands)
        with self.memory.on_device(self._device):
            return run(*operands)

    def _begin(self, operands: Sequence[Any]) -> Any:
        """Run a call as long as nothing is chosen for good."""
        aligned = not any(self.memory.pointer(operand) % VECTOR for operand in operands)
        problem = self._problems.get(aligned)
        if problem is None:
            self._device = self.memory.device(operands[0])
            problem = self._problems[aligned] = StepProblem(self, operands, self._device, aligned)
        here = self._current_device() == self._device
        with nullcontext() if here else self.memory.on_device(self._device):
            run = None if aligned else self._run_unaligned
            run = run or self._first(problem, operands)
            try:
                return run(*operands)
            except self.memory.exhausted:
                # The library may need room for an intermediate. A kernel doesn't, and is waited for.
                if not self.memory.may_measure():
                    raise
                return problem.choose(operands)(*operands)

    def _first(self, problem: StepProblem, operands: Sequence[Any]) -> Run:
        """Return what runs a call on the current device."""
        # Triton's interpreter runs kernels only to test them.
        if self.mode == "auto" and not interpreted():
            return problem.tiers.run()
        # Nothing is chosen while a graph is being captured; the next call may do so.
        return problem.choose(operands) if self.memory.may_measure() else self.calls

    def passes(self) -> bool:
        """Return whether nothing is to be tried with the next call, which is counted then and needn't come here."""
        problem = self._problems.get(True)
        if problem is None or self.chosen is not None or self.mode != "auto":
            return False
        tiers = problem.tiers
        if tiers.way is not problem.library or (tiers.calls + 1) % tiers.every == 0:
            return False
        tiers.calls += 1
        return True

    def each_in(self) -> int:
        """Return of how many calls one comes here, the others having :meth:`passed <passes>`."""
        problem = self._problems.get(True)
        return 1 if problem is None or self.chosen is not None or self.mode != "auto" else problem.tiers.every

    def keep(self, way: Candidate, run: Run, aligned: bool) -> None:
        """Run all later calls in one way; what is the fastest at odd addresses holds for such calls alone."""
        self.chosen = way
        if aligned:
            self._run = run
        else:
            self._run_unaligned = run


class StepProblem(Problem[Candidate]):
    """A step on operands of one dtype, all of which begin where the hardware can copy boxes from if ``aligned``."""

    policy = CONTRACTIONS

    def __init__(self, choice: Choice, operands: Sequence[Any], device: int, aligned: bool) -> None:
        memory = choice.memory
        self.step, self.memory, self.precision, self.device = choice.step, memory, choice.precision, device
        conjugated = memory.conjugated(operands)
        if conjugated:
            self.step = self.step.replace(conjugated=conjugated)
        self.small = _small(self.step)
        self.dtype = memory.dtype(operands[0])
        self.on = gpu_ceilings(memory.device_name(device))
        self.mode = choice.mode
        self._choice, self._aligned = choice, aligned
        self._ways: dict[str, Candidate] = {}
        self._layouts = [memory.layout(operand) for operand in operands]
        self.kind = _kind(self.step), self.dtype, self.precision, device
        self.library = self._by_library("library", choice.calls)
        self.libraries = [self.library]
        if choice.at_once is not None:
            self.library = self._by_library("library einsum", choice.at_once)
            self.libraries.insert(0, self.library)
        # Whoever asks it waits, for as long as it takes.
        self.chooser = Chooser[Candidate]("wait" if self.mode == "auto" else self.mode)

    @cached_property
    def tiers(self) -> Tiers[Candidate]:
        """What runs calls while nothing waits."""
        return Tiers(self, self._keep)

    def _by_library(self, name: str, calls: Run) -> Candidate:
        return LibraryCandidate(name, calls, self.step, self.dtype, self.on)

    def _keep(self, way: Candidate, run: Run) -> None:
        self._ways = {}  # the others are free to go
        self._choice.keep(way, run, self._aligned)

    def choose(self, operands: Sequence[Any]) -> Run:
        """Return what runs a call on the current device, for which it may wait."""
        way = self.decide(operands)
        run = self.run(way)
        self._keep(way, run)
        return run

    def decide(self, operands: Sequence[Any]) -> Candidate:
        """Choose a way for good."""
        from einops_fast.backends.triton.contraction.candidates import decide

        return decide(self, operands)

    def settle(self) -> Candidate:
        with self.memory.on_device(self.device):
            return self.decide([self.memory.sample(self.device, self.dtype, *layout) for layout in self._layouts])

    def saves(self) -> float:
        step = self.step.replace(reads=tuple(range(len(self.step.reads))))
        (kernel,) = step_costs([step], [prod(shape) for shape, _ in self._layouts], self.dtype, self.on)
        return max(self.library.seconds - kernel.seconds, _LEAST_SAVED * self.library.seconds)

    def near(self) -> Sequence[str]:
        from einops_fast.backends.triton.contraction.candidates import near

        with self.memory.on_device(self.device):
            ways = near(self)
        self._ways = {way.name: way for way in ways if self._aligned or not way.in_boxes}
        return list(self._ways)

    def of_name(self, name: str) -> Candidate | None:
        """Return the way of this name, if there is one still; of kernels, only this one is looked for."""
        from einops_fast.backends.triton.contraction.candidates import kernel_candidate

        way = self._ways.get(name) or next((way for way in self.libraries if way.name == name), None)
        return way or kernel_candidate(name, self.step, self.dtype, self.on, self.precision)

    def compiled(self, name: str) -> Future[Any] | None:
        from einops_fast.backends.triton.launching.rehearsing import compile_elsewhere

        with self.memory.on_device(self.device):
            way = self._ways[name] = self._present(name)
            launches = way.launches(self._aligned)
            return compile_elsewhere(launches) if launches else None

    def named(self, name: str) -> Candidate:
        way = self._present(name)
        way.compile(self._aligned)
        return way

    def _present(self, name: str) -> Candidate:
        way = self.of_name(name)
        if way is None:
            raise LookupError(name)
        return way

    def for_any(self) -> tuple[str, Candidate, Hashable] | None:
        from einops_fast.backends.triton.contraction.generic import generic_kernel

        with self.memory.on_device(self.device):
            way = generic_kernel(self.step, self.dtype, self.on, self.precision)
            if way is None or way.seconds > _ANY_MARGIN * self.library.seconds:
                return None
            return way.name, way, (way.compiled_as, self._aligned)

    def run(self, way: Candidate) -> Run:
        with self.memory.on_device(self.device):
            return way.run(self.memory, self.device)

    def preferred(self, ways: Iterable[Candidate]) -> Collection[str]:
        return {way.name for way in ways if way.in_order}

    def stopwatch(self) -> Stopwatch:
        return self.memory.stopwatch()

    def may_measure(self) -> bool:
        # Who wants the same bits in all calls has one way.
        return self.memory.may_measure() and not self.memory.deterministic()

    def key(self) -> dict[str, Any]:
        step, dtype = self.step, self.dtype
        terms = [
            "".join(f"{loop.label}:{loop.size}:{loop.strides[at]} " for loop in step.loops)
            for at in range(len(step.reads))
        ]
        gaps = "" if step.strides is None else f" of strides {' '.join(map(str, step.strides))}"
        then = "" if step.epilogue is None else f", {_text(step.epilogue)}"
        return {
            "problem": f"{', '.join(term.strip() for term in terms)} -> {step.labels}{gaps}{then}",
            "any_order": step.any_order,
            "aligned": self._aligned,
            "dtype": dtype,
            "precision": self.precision if dtype in ("float32", "complex64") else "ieee",
            "library": self.memory.library_settings(dtype),
            **circumstances(self.memory, self.device),
        }


def _kind(step: Fused) -> tuple[Any, ...]:
    """Return what steps have in common that differ in sizes only."""
    loops = [(loop.label, *[min(abs(stride), 2) for stride in loop.strides]) for loop in step.loops]
    return step.labels, tuple(loops), step.epilogue is None


def _text(epilogue: Epilogue) -> str:
    """Write an epilogue as part of a problem's text."""
    bias = "" if epilogue.bias is None else f" + bias of strides {' '.join(map(str, epilogue.bias))}"
    return f"{epilogue.activation}(…{bias}){', the sums kept' if epilogue.keeps else ''}"


def chosen_run(choice: Choice) -> Callable[..., Any]:
    """Return what runs a step: the library's calls at once where it is small, else the choice."""
    return choice.calls if left_to_library(choice.step, choice.mode) else choice


def left_to_library(step: Fused, mode: str) -> bool:
    """Whether the library's calls are what runs a step in any case: there is nothing to choose for the small ones.

    But those of three operands and more take several calls, each of which takes the host as long as one kernel for all.
    """
    return mode != "always" and len(step.reads) < 3 and _small(step)
