"""How much memory a plan takes: its steps, one at a time or in loops, and gradients through them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einops_fast.planning.cost import ITEM_SIZES, is_complex
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.loops import Item, at_each_step
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.path import Network
from einops_fast.planning.plan import Plan, make_plan
from einops_fast.planning.steps import Diagonal, Gemm, Select, Step, View
from einops_fast.planning.target import Operand


def whole_peak(plan: Plan, trained: bool) -> int:
    """Return the most bytes that a contraction in one piece allocates at a time."""
    return peak_bytes(plan, (), trained) + (gradient_bytes(plan) if trained else 0)


def item_of(plan: Plan) -> int:
    """Return the bytes of an element while it is computed with."""
    return max(ITEM_SIZES.get(plan.numerics.compute, 8), ITEM_SIZES.get(plan.numerics.result, 8))


def gradient_bytes(plan: Plan, summed: bool = False) -> int:
    """Return the bytes of the gradients of all operands; if pieces are ``summed``, halves are so in float32."""
    items = [ITEM_SIZES.get(operand.dtype, 8) for operand in plan.operands]
    items = [3 * item if summed and item == 2 else item for item in items]
    return sum([prod(operand.shape) * item for operand, item in zip(plan.operands, items, strict=True)])


def peak_bytes(plan: Plan, items: Sequence[Item], keeps: bool) -> int:
    """Return the most bytes that the steps of a plan allocate at a time, in these loops if there are any.

    With ``keeps``, no intermediate is let go, and each gets a gradient.
    """
    item, count = item_of(plan), len(plan.operands)
    memory = [0] * count + [0 if is_view(step) else prod(step.shape) for step in plan.steps]
    nodes = [(() if keeps else step.reads,) for step in plan.steps]
    wide = 2 if item == 2 else 1
    owners = owners_of(plan.steps, count)
    found = at_each_step(items or range(len(nodes)), nodes, memory, lambda slot: wide * memory[slot], owners)
    most = max([held + plan.costs[at].workspace for at, held, _ in found])
    return item * (max(most, 2 * sum(memory) + gradient_space(plan)[0]) if keeps else most)


def owners_of(steps: Sequence[Step], count: int) -> list[int]:
    """Return the slot whose memory each slot is in; ``count``: of operands."""
    owners = list(range(count))
    for slot, step in enumerate(steps, count):
        owners.append(owners[step.reads[0]] if is_view(step) else slot)
    return owners


def is_view(step: Step) -> bool:
    """Return whether a step's result is in the memory of what it reads."""
    return isinstance(step, (Select, Diagonal)) or (isinstance(step, View) and not step.how.moves)


def gradient_space(plan: Plan) -> tuple[int, frozenset[str]]:
    """Return how many elements a pair's gradients take at most beside the gradients themselves, and its labels.

    Each is a contraction of its own, of operands whose layout is known when it is made: a GEMM may copy both.
    """
    network, most, labels = Network(plan.subscripts.inputs, plan.subscripts.output, plan.sizes), 0, frozenset[str]()
    dtype, wide = plan.numerics.compute, 2 if item_of(plan) == 2 else 1
    target, numerics = plan.target.replace(gradients=False), plan.numerics
    pairs = [(*group, result) for group, _, result in network.contractions(plan.path) if len(group) == 2]
    ways = [(wide * network.size(a | b), way) for a, b, made in pairs for way in ((made, a, b), (made, b, a))]
    for full, (made, other, term) in sorted(ways, key=lambda each: each[0], reverse=True):
        sides = [network.size(made), network.size(other)]
        if full + wide * sum(sides) + sum(sides) <= most:
            continue
        inputs, output = ("".join(sorted(made)), "".join(sorted(other))), "".join(sorted(term & (made | other)))
        shapes = [tuple([plan.sizes[label] for label in each]) for each in inputs]
        operands = [Operand(shape, contiguous_strides(shape), dtype) for shape in shapes]
        subscripts = Subscripts(inputs, output, (), "")
        backward = make_plan(subscripts, operands, target, numerics, "auto")
        # What is multiplied by a conjugate is copied, and so may be the gradient of the result, once for both.
        space = sides[0] + is_complex(dtype) * sides[1]
        for step, cost in zip(backward.steps, backward.costs, strict=True):
            copies = 0
            if isinstance(step, Gemm):  # with a vector, it may be the sum of a product
                copies = full + wide * sum(sides) if 1 in (step.m, step.n) else sum(sides) + prod(step.shape)
            if space + max(cost.workspace, copies) > most:
                most, labels = space + max(cost.workspace, copies), made | other | term
    return most, labels
