"""Ways to compute a case, and the operands that they get."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import einops_fast
from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.layouts import laid_out, stored_shapes
from einops_fast.profiles.timing.accuracy import random_values
from einops_fast.runtime.budget import forget_spending

__all__ = ["Around", "Call", "Inputs", "Way", "bind", "inputs", "our_way"]

Around = Callable[[], AbstractContextManager[Any]]
Call = Callable[[], Any]


def _same(array: Any) -> Any:
    return array


@dataclass(frozen=True)
class Way:
    """One way to compute a case.

    Attributes:
        name: what tables call it.
        call: takes the operands and returns the result.
        framework: whose arrays the operands are.
        around: a context that it needs, entered outside the time measured.
        prepare: makes ``call`` and the operands a call without arguments, outside the time measured: the place to
            compile, or to wrap the operands as other arrays.
        finish: brings the result to an array of ``framework``, outside the time measured.
    """

    name: str
    call: Callable[..., Any]
    framework: Framework
    around: Around = nullcontext
    prepare: Callable[..., Call] = partial
    finish: Callable[[Any], Any] = _same


def our_way(name: str, framework: Framework, case: Case) -> Way:
    """``fast_einsum`` as its users call it."""
    return Way(name, partial(einops_fast.fast_einsum, case.called), framework)


@dataclass(frozen=True)
class Inputs:
    """Operands in one framework; with a cotangent of the result where gradients are wanted."""

    operands: tuple[Any, ...]
    cotangent: Any = None


def inputs(
    case: Case, framework: Framework, dtype: str, seed: int, backward: bool = False, *, shared: bool = True
) -> Inputs:
    """Random operands of a case.

    Args:
        case: whose operands.
        framework: whose arrays.
        dtype: of the operands.
        seed: of the random values.
        backward: make a cotangent, and ask for gradients.
        shared: the values have to be the same in every framework.
    """
    shapes = [*stored_shapes(case), *([case.result_shape] if backward else [])]
    if shared:
        stored = [framework.array(values, dtype) for values in random_values(shapes, seed)]
    else:
        stored = framework.normal(shapes, dtype, seed)
    cotangent = stored.pop() if backward else None
    operands = laid_out(case, framework, stored)
    if backward:
        for operand in operands:
            framework.track(operand)
    return Inputs(tuple(operands), cotangent)


def bind(way: Way, given: Inputs) -> Call:
    """A way as a call without arguments: of the result or, given a cotangent, of all gradients.

    Like a program's first problem of its kind: whatever was chosen for the cases before, there is time to choose.
    """
    forget_spending()
    operands, cotangent = given.operands, given.cotangent
    if cotangent is None:
        return way.prepare(way.call, *operands)
    return lambda: way.framework.gradient(way.call, operands, cotangent)
