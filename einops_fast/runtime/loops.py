"""Run the steps of a plan in loops over axes that are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from einops_fast.backends import Backend
from einops_fast.einsum import fast_einsum
from einops_fast.planning.loops import Item, Loop
from einops_fast.planning.slicing import Slicing
from einops_fast.planning.steps import Cast, Fused, Gemm, Multiply, Sum

Tell = Callable[[], None]

_Values = list[Any]
"""What each slot holds; then a number by which an array is multiplied that the result is written to, if there is one,
that array or the result, where pieces are put side by side, where the next piece goes, and a `Tell`."""

_Call = Callable[[_Values], None]


def in_loops(
    slicing: Slicing,
    backend: Backend,
    shown: Callable[[Slicing, int], AbstractContextManager[Tell]],
    program: Sequence[tuple[Any, tuple[int, ...]]],
    count: int,
) -> Callable[..., Any]:
    """Return one callable of ``count`` operands that makes the calls of a piece's steps in loops.

    ``shown`` shows how far a call is, of so many pieces, and gives what is called after each. Behind the operands, the
    callable takes an array that it writes the result to, and 0 or a number that this is multiplied by before it adds.
    """
    steps, output = slicing.piece.steps, slicing.subscripts.output
    last, terms = count + len(steps) - 1, list(slicing.rest.subscripts.inputs)
    single: list[tuple[int, Any]] = []
    for slot, (term, axes) in enumerate(zip(terms, slicing.axes, strict=True)):
        # An axis of one element that stands for a longer one isn't cut, but pieces lack it.
        lacking = slicing.dropped - axes
        if lacking & set(term):
            single.append((slot, _index(term, dict.fromkeys(lacking, 0))))
            terms[slot] = "".join([label for label in term if label not in lacking])
    side_by_side = not slicing.extents.keys().isdisjoint(output)
    loops = _Loops(slicing, backend, program, count, -1 if side_by_side else last)
    calls = loops.compiled(slicing.items, terms, odd=False)
    answer = program[-1][0] if len(program) > len(steps) else None

    def run(*given: Any) -> Any:
        operands, (out, beta) = given[:count], given[count:] or (None, None)
        with shown(slicing, loops.pieces) as tell:
            values = [*operands, *[None] * len(steps), beta, out, [slice(None)] * len(output), tell]
            for slot, index in single:
                values[slot] = values[slot][index]
            for call in calls:
                call(values)
        result = values[-3 if side_by_side else last]
        return result if answer is None or out is not None else answer(result)

    return run


def _index(term: str, at: dict[str, Any]) -> tuple[Any, ...]:
    """Return what takes a piece of an array; of one without axes, too, NumPy makes an array for the ellipsis."""
    return (*[at.get(label, slice(None)) for label in term], ...)


class _Loops:
    """Makes calls of steps and loops."""

    def __init__(self, slicing: Slicing, backend: Backend, program: Sequence[Any], count: int, summed: int) -> None:
        self.summed = summed  # the slot of a result that isn't cut; -1 where it is
        self.slicing, self.backend, self.program, self.count = slicing, backend, program, count
        self.steps = slicing.piece.steps
        self.labels = [*slicing.piece.subscripts.inputs, *[step.labels for step in self.steps]]
        self.pieces = 0

    def compiled(self, items: Sequence[Item], terms: list[str], odd: bool, times: int = 1) -> list[_Call]:
        """Return calls for steps and loops in turn, which run so many times.

        ``terms`` are the labels of the operands here, where those of outer loops may be gone; ``odd``: some axes are
        shorter than those of the plan.
        """
        calls, made = list[_Call](), set[int]()
        for item in items:
            slot, reads = (
                (item.slot, item.reads) if isinstance(item, Loop) else (self.count + item, self.steps[item].reads)
            )
            done = [read for read in reads if read in made]
            calls.append(
                self.loop(item, terms, odd, done, times) if isinstance(item, Loop) else self.step(item, odd, done)
            )
            made.add(slot)
        return calls

    def step(self, at: int, odd: bool, done: Sequence[int]) -> _Call:
        (run, reads), step, slot = self.program[at], self.steps[at], self.count + at
        if odd and isinstance(step, (Gemm, Multiply, Fused)):
            run = partial(fast_einsum, f"{','.join([self.labels[read] for read in reads])}->{step.labels}")

        def call(values: _Values) -> None:
            values[slot] = run(*[values[read] for read in reads])
            for read in done:
                values[read] = None

        return call

    def loop(self, loop: Loop, terms: list[str], odd: bool, done: Sequence[int], times: int) -> _Call:
        slicing, label = self.slicing, loop.label
        size, extent, place = slicing.sizes[label], slicing.extents[label], slicing.subscripts.output.find(label)
        begins, drops = range(0, size, extent), label in slicing.dropped
        pieces: list[Any] = [*begins] if drops else [slice(begin, begin + extent) for begin in begins]
        cut = [slot for slot in loop.reads if slot < self.count and label in slicing.axes[slot]]
        indices = [[(slot, _index(terms[slot], {label: piece})) for slot in cut] for piece in pieces]
        inner = [term.replace(label, "") if drops and slot in cut else term for slot, term in enumerate(terms)]
        times *= len(pieces)
        innermost = not any(isinstance(item, Loop) for item in loop.body)
        self.pieces += times * innermost
        body = self.compiled(loop.body, inner, odd, times)
        bodies = [body] * len(pieces)
        if size % extent:
            bodies[-1] = self.compiled(loop.body, inner, True, 0)
        turns = list(zip(pieces, indices, bodies, strict=True))
        finish = self.sum(loop) if loop.slot >= 0 else self.put(loop)
        narrow = self.cast(loop.slot, slicing.piece.numerics.compute)

        def call(values: _Values) -> None:
            sources = [values[slot] for slot in cut]
            total = None
            for piece, index, calls in turns:
                if place >= 0:
                    values[-2][place] = piece
                for source, (slot, at) in zip(sources, index, strict=True):
                    values[slot] = source[at]
                for each in calls:
                    each(values)
                total = finish(values, total)
                if innermost:
                    values[-1]()
            for source, slot in zip(sources, cut, strict=True):
                values[slot] = source
            if loop.slot >= 0:
                values[loop.slot] = total if narrow is None else narrow(total)
            for read in done:
                values[read] = None

        return call

    def cast(self, slot: int, dtype: str) -> Callable[[Any], Any] | None:
        """Return what converts the pieces of halves, or their sum, in a slot; ``None`` for other dtypes."""
        if slot < 0 or self.slicing.piece.numerics.compute not in ("float16", "bfloat16"):
            return None
        step = self.steps[slot - self.count]
        return self.backend.cast(Cast((0,), step.labels, step.shape, dtype))

    def sum(self, loop: Loop) -> Callable[[_Values, Any], Any]:
        """Return what adds a piece in a slot to the sum of those before; halves are added up in float32."""
        slot, all_of_result = loop.slot, loop.slot == self.summed and loop in self.slicing.items
        step, widened, backend = self.steps[slot - self.count], self.cast(slot, "float32"), self.backend
        # Other steps may give a view of an operand.
        is_new = len(step.reads) > 1 or isinstance(step, (Sum, Cast))

        def add(values: _Values, total: Any) -> Any:
            part, values[slot] = values[slot], None
            if total is None:
                if all_of_result and values[-4] is not None:
                    return _add_to(values[-3], ..., values[-4], part)
                if widened is not None or is_new:
                    return part if widened is None else widened(part)
                total = backend.sums_of(part, part.shape)
            total += part
            return total

        return add

    def put(self, loop: Loop) -> Callable[[_Values, Any], Any]:
        """Return what puts a piece to its place in the result."""
        output, sizes, backend = self.slicing.subscripts.output, self.slicing.sizes, self.backend
        shape, slot = tuple([sizes[label] for label in output]), self.count + len(self.steps) - 1
        around = any(isinstance(item, Loop) and item.slot < 0 for item in loop.body)

        def put(values: _Values, total: Any) -> None:
            if not around:
                part, values[slot] = values[slot], None
                if values[-3] is None:
                    values[-3] = backend.sums_of(part, shape)
                _add_to(values[-3], tuple(values[-2]), values[-4], part)

        return put


def _add_to(result: Any, place: Any, beta: Any, part: Any) -> Any:
    """Put a piece to its place, or add it to so many times what is there."""
    if beta:
        result[place] *= beta
        result[place] += part
    else:
        result[place] = part
    return result
