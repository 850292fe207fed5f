"""torch's own einsum, whatever is patched: for all of a plan, and where its result lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch.autocast import torch_path
from einops_fast.planning.cost import is_integer
from einops_fast.planning.notation import bind_sizes, parse
from einops_fast.planning.path import Network
from einops_fast.planning.plan import Plan

pair_einsum: Callable[..., Any] = getattr(torch._VF, "einsum", torch.einsum)
"""torch.einsum without what it does for subclasses and for three operands."""


def any_einsum(equation: str, operands: Sequence[Any]) -> Any:
    """Return torch.einsum of three plain tensors or more, for which it searches an order in twice this time."""
    shapes = [tuple(each.shape) for each in operands]
    subscripts = parse(equation, tuple(map(len, shapes)))
    network = Network(subscripts.inputs, subscripts.output, bind_sizes(subscripts, shapes))
    found = network.of_three() if len(operands) == 3 else [network.search("auto")]
    best = min(found, key=attrgetter("flops"))
    return pair_einsum(subscripts.equation, operands, path=list(chain.from_iterable(best.path)))


_MOST_AXES = 20
"""The most axes of all operands together for which the order is tried: they have two elements each."""


def gives_c_order(equation: str, operands: Sequence[Any]) -> bool:
    """Return whether a native result lies in C order."""
    # Only a tensor that lies so has any view of another shape. Once the order of contraction is known, that doesn't
    # depend on sizes beyond two, so it is tried; on the meta device, a product imports all of torch.fx and sympy.
    if sum([a.dim() for a in operands]) > _MOST_AXES:
        return False
    try:
        pairs = torch_path(equation, tuple([tuple(operand.shape) for operand in operands]))
        path = [number for pair in pairs for number in pair] or None
        return bool(pair_einsum(equation, [_in_small(a) for a in operands], path=path).is_contiguous())
    except Exception:  # whatever can't be tried, the call itself may
        return False


def _in_small(operand: Any) -> Any:
    """Return a tensor of zeros whose axes have two elements at most, in the memory order of an operand."""
    shape, strides = [min(size, 2) for size in operand.shape], [0] * operand.dim()
    step, last, inner = 1, 0, 0
    for axis in sorted(range(operand.dim()), key=lambda axis: (operand.stride(axis), -shape[axis])):
        stride = operand.stride(axis)
        if stride:
            # An axis of one element may have the stride of the axis within.
            strides[axis] = step if stride > last or step == 1 else strides[inner]
            inner, last = axis, stride
            step *= shape[axis]
    return torch.zeros(step).as_strided(shape, strides)


def einsum_of(plan: Plan, any_order: bool) -> Run | None:
    """Return torch.einsum for a plan of two operands, if it has one; its result lies in C order, or in any."""
    if is_integer(plan.numerics.compute):
        return None
    equation = f"{','.join(plan.subscripts.inputs)}->{plan.subscripts.output}"
    if any_order:
        return lambda a, b: pair_einsum(equation, (a, b))
    return lambda a, b: pair_einsum(equation, (a, b)).contiguous()


def einsum_alone(plan: Plan) -> Run | None:
    """Return torch.einsum for a plan of one operand on a CPU, if that takes several calls and it has the same sums."""
    numerics, equation = plan.numerics, plan.subscripts.equation
    if len(plan.operands) > 1 or len(plan.steps) < 2 or plan.target.device != "cpu" or not equation.isascii():
        return None
    if numerics.native or not plan.operands[0].dtype == numerics.compute == numerics.result:
        return None
    return lambda a: pair_einsum(equation, (a,))
