"""A plan: the steps for one kind of call, what they cost, and the callable that carries them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from einops_fast.observing.observers import active
from einops_fast.planning.chains import chain_order, right_operands
from einops_fast.planning.cost import ITEM_SIZES, StepCost, is_complex, step_costs
from einops_fast.planning.lowering import Lowering
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.path import Path, candidate_paths, check_optimize, explicit_path
from einops_fast.planning.steps import Step
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.planning.templates import filled_in
from einops_fast.record import Record

if TYPE_CHECKING:
    from einops_fast.backends.base import Backend


class Plan(Record):
    """What will be done for operands of these shapes, strides and dtypes. Pure data; prints with ``explain``."""

    subscripts: Subscripts
    sizes: dict[str, int]
    operands: tuple[Operand, ...]
    target: Target
    numerics: Numerics
    path: Path
    steps: tuple[Step, ...]

    @cached_property
    def costs(self) -> tuple[StepCost, ...]:
        """Cost of each step."""
        sizes = [prod(operand.shape) for operand in self.operands]
        return step_costs(self.steps, sizes, self.numerics.compute, self.target.ceilings)

    @property
    def seconds(self) -> float:
        """Predicted time of the whole plan."""
        return sum(cost.seconds for cost in self.costs)


def make_plan(
    subscripts: Subscripts,
    operands: Sequence[Operand],
    target: Target,
    numerics: Numerics,
    optimize: Any = "auto",
    room: int | None = None,
) -> Plan:
    """Choose a path and lower it. Of several candidate paths the one predicted to be fastest wins.

    ``room`` is how many elements an intermediate may have, if that is known.
    """
    shapes = [operand.shape for operand in operands]
    sizes = bind_sizes(subscripts, shapes)
    check_optimize(optimize, len(operands))
    if len(operands) == 2:
        known = filled_in(subscripts, sizes, operands, target, numerics)
        if known is not None:
            return Plan(subscripts, sizes, tuple(operands), target, numerics, ((0, 1),), known)

    def plan(path: Path, otherwise: Path = ()) -> Plan:
        steps = Lowering(subscripts, sizes, target, numerics).run(operands, path, otherwise)
        return Plan(subscripts, sizes, tuple(operands), target, numerics, path, steps)

    # NumPy's loops take so many operands and axes.
    loops = bool(target.ceilings.native) and max(len(operands) + 1, len(sizes)) <= 32
    plans = [plan(path) for path in candidate_paths(subscripts, sizes, optimize, room, loops)]
    if len(operands) > 2 and numerics.compute in target.kernels and _may_be_one_step(subscripts, numerics):
        at_once: Path = (tuple(range(len(operands))),)
        if explicit_path(optimize, len(operands)) == at_once:
            return plan(at_once, otherwise=plans[0].path)
        if optimize in ("auto", True):
            plans.append(plan(at_once, otherwise=min(plans, key=attrgetter("seconds")).path))
    return plans[0] if len(plans) == 1 else min(plans, key=attrgetter("seconds"))


def _may_be_one_step(subscripts: Subscripts, numerics: Numerics) -> bool:
    """Whether three or more operands make up something that one kernel does."""
    inputs, output = subscripts.inputs, subscripts.output
    if not numerics.gemm or is_complex(numerics.compute):
        return False
    # Without tensor cores, making a product on the way into a kernel takes longer than writing it.
    on_the_way = ITEM_SIZES[numerics.compute] == 2 and right_operands(inputs, output)
    return bool(on_the_way) or chain_order(inputs, output) is not None


def compile_plan(
    plan: Plan, backend: Backend, arranged: Callable[..., Callable[..., Any]] | None = None
) -> Callable[..., Any]:
    """The plan as one callable of the operands: the framework's calls, in turn or as ``arranged`` instead."""
    count = len(plan.operands)
    program = [(backend.emit(step), step.reads) for step in plan.steps]
    watches = [recorder.watch(plan, backend) for recorder in active()]
    for watch in watches:
        program = watch.program(program)
    answer = backend.answer(len(plan.subscripts.output))
    if answer is not None:
        program.append((answer, (count + len(program) - 1,)))
    run = (arranged or in_turn)(program, count)
    if plan.target.gradients:
        run = backend.differentiable(plan, run)
    run = backend.enclosed(plan, run)
    for watch in watches:
        run = watch.whole(run)
    return run


def in_turn(program: Sequence[tuple[Callable[..., Any], tuple[int, ...]]], count: int) -> Callable[..., Any]:
    """One callable of ``count`` operands that makes these calls, each with the slots that it reads, in turn."""
    if len(program) == 1 and program[0][1] == tuple(range(count)):
        return program[0][0]
    if len(program) == 1 and program[0][1] == (1, 0) and count == 2:
        only = program[0][0]
        return lambda a, b: only(b, a)
    last_use = {slot: at for at, (_, reads) in enumerate(program) for slot in reads}
    # Intermediates are let go as soon as nothing reads them any more.
    timed = [
        (run, reads, tuple(slot for slot in reads if slot >= count and last_use[slot] == at))
        for at, (run, reads) in enumerate(program)
    ]

    def run(*operands: Any) -> Any:
        values = list(operands)
        for step, reads, done in timed:
            values.append(step(*[values[slot] for slot in reads]))
            for slot in done:
                values[slot] = None
        return values[-1]

    return run
