"""Which way a fused step is run: by prediction where the margin is clear, else by measurement at first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from operator import attrgetter
from typing import Any

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.candidates import kernel_candidate, kernel_candidates
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.ways import Candidate, LibraryCalls, LibraryCandidate
from einops_fast.backends.triton.launching.launch import ALIGNMENT, interpreted
from einops_fast.backends.triton.launching.measuring import circumstances, measure, works
from einops_fast.planning.chains import products
from einops_fast.planning.steps import Epilogue, Fused, Multiply
from einops_fast.runtime.budget import AT_ONCE
from einops_fast.runtime.choosing import Chooser, Record
from einops_fast.runtime.measuring import CONTRACTIONS

__all__ = ["Choice", "chosen_run", "left_to_library"]

_LIBRARY_MARGIN, _KERNEL_MARGIN = 8.0, 5.0
"""How many times the best kernel the library may be predicted to take, and the other way round, to be measured. The
library needs no compiling; how it copes with odd strides isn't foreseen."""

_OF_KIND, _KIND_MARGIN = 2, 3.0
"""The best so many tilings of each kernel are also measured if they may take so many times as long as another one."""

_MOST = {"auto": 6, "always": 24}
"""The most tilings of each kernel that are measured, by mode."""

_MOST_LOOPS = {"auto": 10, "always": 24}
"""The same of the reduction kernel, which is compiled in less time."""

_SMALL_ELEMENTS, _SMALL_PRODUCTS = 1 << 19, 1 << 27
"""Below these, whatever is run, the launch takes most of the time: no kernel is compiled for that, unless it is one
launch in place of several."""

_MOST_SMALL, _SMALL_SECONDS = 2, 10.0
"""Then so many tilings of a kernel are measured, and so many seconds taken at once by those that differ in sizes."""


_seconds: Callable[[Candidate], float] = attrgetter("seconds")


def _small(step: Fused) -> bool:
    operands = range(len(step.reads))
    elements = sum(prod(loop.size for loop in step.loops if loop.strides[at]) for at in operands) + prod(step.shape)
    # What the library writes before it sums it, too.
    elements += sum(each.full for each in step.library if isinstance(each, Multiply) and each.summed)
    return elements < _SMALL_ELEMENTS and products(step.loops) < _SMALL_PRODUCTS


class Choice:
    """A fused step that finds out, when it is first run, how to be run.

    Args:
        step: the step.
        calls: the same by library calls.
        memory: the framework's arrays.
        precision: of float32 products.
        mode: see :func:`einops_fast.autotune`.
        others: further ways to make the library's calls.
    """

    def __init__(
        self,
        step: Fused,
        calls: Callable[..., Any],
        memory: Memory,
        precision: str,
        mode: str,
        others: Sequence[LibraryCalls] = (),
    ) -> None:
        self.step, self.memory = step, memory
        self.libraries = [
            each._replace(run=self._placed(each.run)) for each in (LibraryCalls("library", calls), *others)
        ]
        self.calls = self.libraries[0].run
        self.precision, self.mode = precision, mode
        self.chosen: Candidate | None = None
        # By whether addresses are aligned.
        self._choosers: dict[bool, Chooser[Candidate]] = {}
        self._run: Callable[..., Any] | None = None
        self._run_unaligned: Callable[..., Any] | None = None
        self._device = 0
        self._current_device = memory.current_device

    def _placed(self, calls: Callable[..., Any]) -> Callable[..., Any]:
        """The calls, with the result in rows with gaps between them where the next step relies on that."""
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
            run = self._first(operands)
        if self._current_device() == self._device:
            return run(*operands)
        with self.memory.on_device(self._device):
            return run(*operands)

    def _first(self, operands: Sequence[Any]) -> Callable[..., Any]:
        aligned = self._aligned(operands)
        if not aligned and self._run_unaligned is not None:
            return self._run_unaligned
        self._device = self.memory.device(operands[0])
        chooser = self._choosers.get(aligned)
        if not self.memory.may_measure() or (chooser is not None and chooser.waits()):
            # Nothing is chosen while a graph is being captured; the next call may do so.
            return self.calls
        with self.memory.on_device(self._device):
            chosen = self._choose(operands)
            if chosen is None:
                return self.calls
            self.chosen = chosen
            run = chosen.run(self.memory, self._device)
        # What is the fastest at odd addresses is chosen by calls with such alone, and holds for them alone.
        if aligned:
            self._run = run
        else:
            self._run_unaligned = run
        return run

    def _aligned(self, operands: Sequence[Any]) -> bool:
        """Whether all begin where the hardware can copy boxes from, as new memory does."""
        return not any(self.memory.pointer(operand) % ALIGNMENT for operand in operands)

    def _choose(self, operands: Sequence[Any]) -> Candidate | None:
        """The way for these operands; ``None`` if that can't be known yet."""
        dtype, aligned = self.memory.dtype(operands[0]), self._aligned(operands)
        on = gpu_ceilings(self.memory.device_name(self._device))
        libraries: list[Candidate] = [LibraryCandidate(calls, self.step, dtype, on) for calls in self.libraries]
        if interpreted():
            return kernel_candidates(self.step, dtype, on, self.precision)[0]

        def named(name: str) -> Candidate | None:
            """Return the way of this name, if there is one still and it compiles; only this one is looked for."""
            way = next((way for way in libraries if way.name == name), None)
            way = way or kernel_candidate(name, self.step, dtype, on, self.precision)
            return way if way is not None and works(way) else None

        @cache
        def kernels() -> Sequence[Candidate]:
            return kernel_candidates(self.step, dtype, on, self.precision)

        def near() -> Sequence[Candidate]:
            found = self._near(kernels(), libraries)
            return found if len(found) > 1 else ()

        def predicted() -> Candidate:
            return next(way for way in sorted([*libraries, *kernels()], key=_seconds) if works(way))

        def measured(ways: Sequence[Candidate]) -> Record | None:
            in_order = {way.name for way in ways if way.in_order}
            return measure(ways, in_order, operands, self.memory, self._device, CONTRACTIONS)

        kind = _kind(self.step), dtype, self.precision, self._device
        new = Chooser[Candidate](kind, self.mode, _SMALL_SECONDS if _small(self.step) else AT_ONCE)
        chooser = self._choosers.setdefault(aligned, new)
        choice = chooser.choose(self._key(dtype, aligned), named, near, predicted, libraries[0], measured)
        return choice.way if choice.final else None

    def _near(self, kernels: Sequence[Candidate], libraries: list[Candidate]) -> list[Candidate]:
        """Those of which one may be the fastest, by their predictions; the library where it has a chance."""
        least, other = min(way.seconds for way in kernels), libraries[0].seconds
        if least > _KERNEL_MARGIN * other:
            return libraries
        near: list[Candidate] = []
        for way in kernels:
            # Of each kind some: how one does against another isn't foreseen so well.
            before = [each.kind for each in near].count(way.kind)
            margin = max(CONTRACTIONS.margin[self.mode], _KIND_MARGIN if before < _OF_KIND else 0.0)
            if before < self._most(way) and way.seconds <= margin * least:
                near.append(way)
        # The library first: of what takes seconds, not all is timed.
        return libraries + near if other <= _LIBRARY_MARGIN * least else near

    def _most(self, way: Candidate) -> int:
        """How many of the same kernel are measured."""
        if self.mode == "auto" and _small(self.step):
            return _MOST_SMALL
        return (_MOST_LOOPS if way.kind is ReductionTiling else _MOST)[self.mode]

    def _key(self, dtype: str, aligned: bool) -> dict[str, Any]:
        terms = [
            "".join(f"{loop.label}:{loop.size}:{loop.strides[at]} " for loop in self.step.loops)
            for at in range(len(self.step.reads))
        ]
        gaps = "" if self.step.strides is None else f" of strides {' '.join(map(str, self.step.strides))}"
        then = "" if self.step.epilogue is None else f", {_text(self.step.epilogue)}"
        return {
            "problem": f"{', '.join(term.strip() for term in terms)} -> {self.step.labels}{gaps}{then}",
            "any_order": self.step.any_order,
            "aligned": aligned,
            "dtype": dtype,
            "precision": self.precision if dtype == "float32" else "ieee",
            "library": self.memory.library_settings(dtype),
            **circumstances(self.memory, self._device),
        }


def _kind(step: Fused) -> tuple[Any, ...]:
    """What steps have in common that differ in sizes only."""
    loops = [(loop.label, *[min(abs(stride), 2) for stride in loop.strides]) for loop in step.loops]
    return step.labels, tuple(loops), step.epilogue is None


def _text(epilogue: Epilogue) -> str:
    """An epilogue as part of a problem's text."""
    bias = "" if epilogue.bias is None else f" + bias of strides {' '.join(map(str, epilogue.bias))}"
    return f"{epilogue.activation}(…{bias}){', the sums kept' if epilogue.keeps else ''}"


def chosen_run(choice: Choice) -> Callable[..., Any]:
    """What runs a step: the library's calls at once where it is small, else the choice."""
    return choice.calls if left_to_library(choice.step, choice.mode) else choice


def left_to_library(step: Fused, mode: str) -> bool:
    """Whether the library's calls are what runs a step in any case: there is nothing to choose for the small ones.

    But those of three operands and more take several calls, each of which takes the host as long as one kernel for all.
    """
    return mode != "always" and len(step.reads) < 3 and _small(step)
