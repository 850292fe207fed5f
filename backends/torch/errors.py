"""What torch can't compute, in words about the operands: its own errors are about functions that nobody has called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch.types import PLAIN, can_cast
from einops_fast.dtypes import dtype_name
from einops_fast.errors import OperandError
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.plan import Plan


def naming_operands(plan: Plan, run: Run) -> Run:
    """A compiled plan whose errors name the operand that torch can't compute with, where there may be one."""
    own, compute = [operand.dtype for operand in plan.operands], plan.numerics.compute
    if not plan.numerics.native and all(name in ITEM_SIZES for name in (*own, compute)):
        return run

    def explained(*operands: Any) -> Any:
        try:
            return run(*operands)
        except RuntimeError as error:
            problem = _problem(operands, own, plan, error)
            if problem is None:
                raise
            raise OperandError(problem) from error

    return explained


def refuse_layouts(operands: Sequence[Any]) -> None:
    """Raise OperandError if an operand has no strides, or not even a shape."""
    for at, operand in enumerate(operands):
        try:
            operand.stride()
        except RuntimeError as error:
            raise OperandError(f"operand {at} is {_layout_of(operand)}: torch has no einsum of it") from error


def check_casting(operands: Sequence[Any], dtype: Any, casting: str) -> None:
    """Raise OperandError unless ``casting`` lets the operands be converted to ``dtype``."""
    if not isinstance(dtype, torch.dtype):
        raise OperandError(f"dtype is a torch.dtype, not {dtype!r}")
    for at, operand in enumerate(operands):
        if casting != "unsafe" and not can_cast(operand.dtype, dtype):
            raise OperandError(
                f"operand {at} has dtype {operand.dtype}, which casting={casting!r} doesn't convert to {dtype}"
            )


def copied_to(out: Any, result: Any) -> Any:
    """``out`` with the result in it, converted to its dtype."""
    try:
        return out.copy_(result)
    except RuntimeError as error:
        layouts = _layout_of(out), _layout_of(result)
        if type(error) is RuntimeError and dtype_name(out.dtype) in ITEM_SIZES and layouts == (None, None):
            if any(size > 1 and not stride for size, stride in zip(out.shape, out.stride(), strict=True)):
                raise OperandError("out is expanded, several of its elements being one: give out.clone()") from error
            if out.requires_grad:
                raise OperandError(
                    "out is a leaf that requires grad, or a view of one, which can't be changed in place: give "
                    "out.detach(), or call it in torch.no_grad()"
                ) from error
            raise
        to, what = [
            layout or f"a tensor of dtype {each.dtype}" for layout, each in zip(layouts, (out, result), strict=True)
        ]
        raise OperandError(f"out is {to}, to which torch can't write the result, {what}") from error


def _problem(operands: Sequence[Any], own: Sequence[str], plan: Plan, error: RuntimeError) -> str | None:
    # Its subclasses, such as that there is too little memory, have a meaning of their own.
    if type(error) not in (RuntimeError, NotImplementedError):
        return None
    for at, operand in enumerate(operands):
        layout = _layout_of(operand)
        if layout is not None:
            return f"operand {at} is {layout}, and torch can't compute {plan.subscripts.equation!r} of it"
    if any(type(operand) not in PLAIN for operand in operands):
        return None
    compute = plan.numerics.compute
    # "expected scalar type …", "… to have the same dtype", "Promotion for … Types"
    if type(error) is RuntimeError and "type" not in str(error).lower() and compute in ITEM_SIZES:
        return None
    if plan.numerics.whole and any(name != own[0] for name in own):
        at = next(at for at, name in enumerate(own) if name != own[0])
        return (
            f"operand {at} has dtype {own[at]}, but operand 0 has {own[0]}, and torch doesn't convert what it sums "
            "products of: convert one of them, or give dtype="
        )
    what = f"operand {own.index(compute)} has dtype {compute}" if compute in own else f"dtype= is {compute}"
    where = plan.target.device.partition(":")[0]
    return f"{what}, in which torch can't compute {plan.subscripts.equation!r} on {where}: give another dtype="


def _layout_of(tensor: Any) -> str | None:
    """What a tensor is that torch's usual calls can't read."""
    if tensor.is_nested:
        return f"a nested tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return f"a quantized tensor of dtype {tensor.dtype}"
    return None if tensor.layout is torch.strided else f"a tensor of layout {tensor.layout}"
