"""Gradients of a contraction in torch: a contraction is recorded whole, and its gradients are contractions too.

Where a gradient is wanted, the plan is the one of a call without gradients, with everything that torch could not
differentiate: writing in place, leaving out axes, kernels of our own. What autograd records is one node per pair
of operands, which keeps those operands and nothing else. A gradient goes through :func:`einops_fast.fast_einsum`
again, so it's planned like any other call, and it is itself differentiable. Only where that could gain nothing does
torch record its own calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from einops_fast.backends.base import Backend, Run
from einops_fast.backends.torch.autocast import outside_autocast
from einops_fast.backends.torch.einsum.native import einsum_of, pair_einsum
from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.types import has_one_way
from einops_fast.einsum import fast_einsum
from einops_fast.observing.observers import observed
from einops_fast.planning.cost import is_complex
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.plan import Plan, in_turn
from einops_fast.planning.steps import AS_IS, Cast, Diagonal, Fused, Gemm, Multiply, View
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.precision import allowed
from einops_fast.runtime.tuning import current_mode

if TYPE_CHECKING:
    from einops_fast.backends.triton.contraction.choice import Choice


def differentiable(plan: Plan, run: Run, backend: Backend) -> Run:
    """The plan, compiled as ``run`` without regard to gradients, as a callable that autograd can follow."""
    if len(plan.operands) == 1 or plan.numerics.native or _records_itself(plan):
        return run
    if len(plan.operands) == 2 and not any(isinstance(step, (Cast, Diagonal)) for step in plan.steps):
        return _recorded(plan, run)
    return _pair_by_pair(plan, backend)


class _Pair:
    """A contraction of two operands: how to compute it, and either operand's gradient."""

    def __init__(self, plan: Plan, run: Run, choice: Choice | None) -> None:
        self.run = run  # the result of the operands, unrecorded
        # finds out how the result is computed, if there is a choice
        self.choice = choice
        self._plan, self._gathered, output = plan, _gathered(plan), plan.subscripts.output
        # axis order in which the gradients take that of the result; `None` for the result's own
        self.order = None if self._gathered == output else tuple(map(output.index, self._gathered))
        # whether a gradient that is expanded, as that of a sum, is written out first. On a GPU that takes less time
        # than to write out the operands' gradients, which would be expanded, too.
        self.fills = bool(plan.target.kernels)
        # Backward runs in threads of autograd's own, where a block around the forward call doesn't count.
        self._settings = {"autotune": current_mode(), "precision": allowed()} if self.fills else {}

    @cached_property
    def to_left(self) -> Run:
        """The gradient of the first operand, of the result's gradient and the second operand."""
        return _gradient(self._plan, 0, self._gathered, self._settings)

    @cached_property
    def to_right(self) -> Run:
        """The gradient of the second operand, of the result's gradient and the first operand."""
        return _gradient(self._plan, 1, self._gathered, self._settings)


class FastEinsum(torch.autograd.Function):
    """What autograd sees of a pair. Without ``setup_context``, which would take more time than all the rest."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, left: Any, right: Any) -> Any:
        _, of_left, of_right = ctx.needs_input_grad
        ctx.pair = pair
        ctx.save_for_backward(left if of_right else None, right if of_left else None)
        result = pair.run(left, right)
        # Autograd lets no view that comes from here be written to later.
        return result.data if result._is_view() else result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if autocasts(grad):
            # The product was made without, of operands that had been converted already.
            return outside_autocast(grad.device.type, FastEinsum.backward, ctx, grad)
        left, right = ctx.saved_tensors
        _, of_left, of_right = ctx.needs_input_grad
        pair = ctx.pair
        if pair.fills and 0 in grad.stride():
            grad = grad.contiguous()
        if pair.order is not None:
            grad = grad.permute(pair.order)
            if of_left and of_right and 0 not in grad.stride():
                grad = grad.contiguous()  # once, and not in either product
        undecided = pair.choice is not None and pair.choice.chosen is None
        with _standing_for(pair.choice.each_in()) if undecided else nullcontext():
            return None, pair.to_left(grad, right) if of_left else None, pair.to_right(grad, left) if of_right else None


_apply = recorded(FastEinsum)


@contextmanager
def _standing_for(calls: int) -> Iterator[None]:
    """Count each call in this block as ``calls`` calls."""
    from einops_fast.runtime.tiers import stands_for

    token = stands_for.set(calls)
    try:
        yield
    finally:
        stands_for.reset(token)


def _recorded(plan: Plan, run: Run) -> Run:
    """Return what computes a pair, as one node of autograd's.

    Before kernels are there, three calls of four go to torch's einsum, which torch records: its gradients use the
    copies that were made for the result, where contractions of their own make them again.
    """
    step = plan.steps[0]
    native = einsum_of(plan, step.any_order) if isinstance(step, Fused) and hasattr(run, "at_once") else None
    choice: Any = None if native is None else run
    pair, equation = _Pair(plan, run, choice), plan.subscripts.equation

    def call(left: Any, right: Any) -> Any:
        try:
            return _apply(pair, left, right)
        except RuntimeError:
            if not (left.is_inference() or right.is_inference()) or not equation.isascii():
                raise
        return pair_einsum(equation, (left, right))  # which keeps copies for gradients, where it makes some

    if native is None:
        return call
    choice.at_once = native

    def begun(left: Any, right: Any) -> Any:
        return (native if choice.chosen is None and not has_one_way() and choice.passes() else call)(left, right)

    return begun


def _gathered(plan: Plan) -> str:
    """The order to bring the result's gradient to, once for both products: the GEMM gave the result in another one."""
    output = plan.subscripts.output
    turned = len(plan.steps) > 1 and isinstance(plan.steps[-1], View) and isinstance(plan.steps[-2], Gemm)
    return product_order(plan.subscripts.inputs, output) if turned else output


def product_order(inputs: Sequence[str], output: str) -> str:
    """The axes of the result of two operands in an order that a GEMM can write and read: ``output`` if it is one.

    It is one if the axes of each kind lie side by side, and the last one is no batch axis.
    """
    left, right = inputs
    batch = "".join(label for label in left if label in right and label in output)
    rows, columns = ("".join(label for label in term if label in output and label not in batch) for term in inputs)
    blocks = all(block in output for block in (batch, rows, columns)) and output[-1:] not in batch
    if blocks or not rows + columns:
        return output
    return batch + rows + columns


def _gradient(plan: Plan, of: int, output: str, settings: Mapping[str, Any]) -> Run:
    """The gradient of operand ``of`` of two, as a callable of the result's, with axes ``output``, and the other."""
    subscripts = plan.subscripts._replace(output=output)
    labels, shape = subscripts.inputs[of], plan.operands[of].shape
    equation, kept = gradient_equation(subscripts, plan.sizes, [each.shape for each in plan.operands], of)
    # Whatever made the operand reads its gradient next, and copies one that lies otherwise. Kernels write it like that.
    order = "C" if plan.target.kernels and plan.operands[of].contiguous else "K"
    einsum = product = partial(fast_einsum, equation, order=order, **settings)
    if is_complex(plan.numerics.compute):
        einsum = lambda grad, other: product(grad, other.conj())  # type: ignore[assignment]  # noqa: E731
    if kept == labels:
        return einsum
    return lambda grad, other: spread(einsum(grad, other), labels, kept, shape)


def gradient_equation(
    subscripts: Subscripts, sizes: Mapping[str, int], shapes: Sequence[Sequence[int]], of: int
) -> tuple[str, str]:
    """What gives the gradient of one operand, each of which has every label at most once.

    Args:
        subscripts: of the contraction.
        sizes: extent of every label.
        shapes: of all operands; an axis of size 1 may stand for a longer one.
        of: position of the operand.

    Returns:
        The equation, of the result's gradient and the other operands, and the labels that it leaves. The other
        axes are for :func:`spread`.
    """
    others = [term for at, term in enumerate(subscripts.inputs) if at != of]
    full = set(subscripts.output)
    for at, (term, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        if at != of:
            full.update(label for label, size in zip(term, shape, strict=True) if size == sizes[label])
    axes = zip(subscripts.inputs[of], shapes[of], strict=True)
    kept = "".join(label for label, size in axes if label in full and size == sizes[label])
    return f"{','.join([subscripts.output, *others])}->{kept}", kept


def spread(gradient: Any, labels: str, kept: str, shape: Sequence[int]) -> Any:
    """``gradient`` with axes ``kept``, in the shape of the operand with axes ``labels``.

    Labels that nothing else has were summed over: all elements along them have the same gradient. An axis of
    size 1 that stood for a longer one has got the sum of what the elements of that would get.
    """
    seen = [size if label in kept else 1 for label, size in zip(labels, shape, strict=True)]
    return gradient.reshape(seen).expand(shape)


def _records_itself(plan: Plan) -> bool:
    """Whether torch records the plan's calls: those of one product, whose own gradients are single calls as well.

    On a GPU the gradients may be faster as kernels of ours, unless the host is what takes the time.
    """
    if plan.target.kernels:
        return _is_up_to_the_host(plan)
    if len(plan.steps) != 1 or plan.target.device != "cpu":
        return False
    step = plan.steps[0]
    if isinstance(step, Multiply):
        return step.left == step.right == AS_IS and not step.summed and plan.operands[0].shape == plan.operands[1].shape
    return (
        isinstance(step, Gemm)
        and step.buffer is None
        and len(step.batch) < 2
        and step.shape == (*step.batch, step.m, step.n)
        and not any(how.moves or how.shape for how in (step.left, step.right))
    )


def _is_up_to_the_host(plan: Plan) -> bool:
    """Whether the plan is one small product by the library: what torch records of it takes the host half as long.

    Whoever looks on while plans run gets to see the gradients, which torch would compute by itself.
    """
    step = plan.steps[0]
    if len(plan.steps) != 1 or not isinstance(step, Fused) or observed():
        return False
    # Imported here because there are such steps only where there is Triton.
    from einops_fast.backends.triton.contraction.choice import left_to_library

    if not left_to_library(step, current_mode()):
        return False
    product = step.library[0]
    if isinstance(product, Gemm):
        return product.buffer is None
    # Where an operand is broadcast, torch would round the terms of its gradient before it sums them.
    return isinstance(product, Multiply) and (product.summed > 0 or plan.operands[0].shape == plan.operands[1].shape)


def _pair_by_pair(plan: Plan, backend: Backend) -> Run:
    """The plan's pairs in turn, each a call of its own; casts and diagonals are torch's, which records them."""
    count = len(plan.operands)
    last = max(at for at, step in enumerate(plan.steps) if len(step.reads) == 2)
    # By slot of the plan: the labels of a value and where it is. A sum or a view is left to the pair it belongs to.
    values = list(zip(plan.subscripts.inputs, range(count), strict=True))
    program: list[tuple[Run, tuple[int, ...]]] = []
    for at, step in enumerate(plan.steps):
        terms, reads = zip(*[values[slot] for slot in step.reads], strict=True)
        labels = step.labels
        if len(reads) == 2:
            labels = plan.subscripts.output if at == last else labels
            run: Run = partial(fast_einsum, f"{','.join(terms)}->{labels}")
        elif isinstance(step, (Cast, Diagonal)):
            run = backend.emit(step)
        else:
            values.append(values[step.reads[0]])
            continue
        values.append((labels, count + len(program)))
        program.append((run, reads))
    return in_turn(program, count)
