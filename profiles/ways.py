"""Ways to compute a case, and the operands that they get, in whatever order these lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from einops_fast.profiles.cases import Case, Shape
from einops_fast.profiles.frameworks import Framework

Around = Callable[[], AbstractContextManager[Any]]
Call = Callable[[], Any]

SLICED = "_"  # Stands for an axis of two in a layout: the operand is the second of both, so it starts inside its array


@dataclass(frozen=True)
class Inputs:
    """What a case is computed of."""

    operands: tuple[Any, ...]  # arrays that may have gradients
    cotangents: tuple[Any, ...] = ()  # of the results, where gradients are wanted; none for a loss
    constants: tuple[Any, ...] = ()  # arguments without gradients, which follow the operands
    backward: bool = False  # whether gradients are wanted


@dataclass(frozen=True)
class Way:
    """One way to compute a case."""

    name: str  # what tables call it
    call: Callable[..., Any]  # takes the operands and returns the result
    framework: Framework  # whose arrays the operands are
    around: Around = nullcontext  # a context that it needs, entered outside the time measured
    # makes `call` and the operands a call without arguments, outside the time measured: the place to compile, or to
    # wrap the operands as other arrays.
    prepare: Callable[..., Call] = partial
    # brings the result to an array of `framework`, outside the time measured.
    finish: Callable[[Any], Any] = lambda result: result
    overwrites: bool = False  # it writes over its operands, which are torch's: it gets copies

    def bind(self, given: Inputs) -> tuple[Call, tuple[Any, ...]]:
        """Return the call on these inputs, and the arrays whose gradients are wanted."""
        operands = given.operands
        if self.overwrites:
            operands = tuple(each.detach().clone().requires_grad_() for each in operands)
        return self.prepare(self.call, *operands, *given.constants), operands


def compiled_once(torch: Any) -> Callable[..., Call]:
    """Return what :attr:`Way.prepare` is of a way that torch.compile compiles, as a whole, at its first operands."""
    kept: list[Call] = []

    def prepare(call: Callable[..., Any], *operands: Any) -> Call:
        if not kept:
            # Equations are variants of one function to Dynamo, which after a few of them gives up.
            torch.compiler.reset()
            kept.append(torch.compile(call, fullgraph=True, dynamic=False))
            kept[0](*operands)
        return partial(kept[0], *operands)

    return prepare


# Calls


def bind(way: Way, given: Inputs) -> Call:
    """Return a way as a call without arguments: of the result or, where gradients are wanted, of these."""
    forward, leaves = way.bind(given)
    if not given.backward:
        return forward
    return lambda: way.framework.gradient(forward, leaves, given.cotangents)[1]


def answer(way: Way, given: Inputs, shapes: Sequence[Shape], dtype: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return results and, where they are wanted, gradients of one call.

    ``shapes`` of ``dtype`` are those of what is returned: what is right mustn't be left over from who came before.
    """
    forward, leaves = way.bind(given)
    way.framework.spoil(shapes, dtype)
    if given.backward:
        results, gradients = way.framework.gradient(forward, leaves, given.cotangents)
    else:
        results, gradients = way.finish(forward()), ()
    return as_tuple(results), gradients


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Return the results of a call that may have one."""
    return results if isinstance(results, tuple) else (results,)


def in_float64(given: Inputs) -> Inputs:
    """Return the same inputs, which are torch's, in float64."""
    operands = tuple(each.detach().double().requires_grad_(given.backward) for each in given.operands)
    return replace(given, operands=operands, cotangents=tuple(each.double() for each in given.cotangents))


# Operands of an einsum


def inputs(case: Case, framework: Framework, dtype: str, seed: int, backward: bool = False) -> Inputs:
    """Return random operands of a case, and a cotangent for backward."""
    shapes = [*stored_shapes(case), *([case.result_shape] if backward else [])]
    stored = framework.normal(shapes, dtype, seed)
    cotangents = (stored.pop(),) if backward else ()
    operands = [
        array if order == term else _view(framework, array, term, shape, order)
        for array, term, shape, order in zip(stored, case.inputs, case.shapes, case.orders, strict=True)
    ]
    if backward:
        for operand in operands:
            framework.track(operand)
    return Inputs(tuple(operands), cotangents, backward=backward)


def stored_shapes(case: Case) -> list[Shape]:
    """Return for each operand the shape of the array in memory: its axes from the outermost to the innermost."""
    return [
        tuple(extent for _, extent in _stored(term, shape, order))
        for term, shape, order in zip(case.inputs, case.shapes, case.orders, strict=True)
    ]


def _stored(term: str, shape: Shape, order: str) -> list[tuple[str, int]]:
    """List the axes of the array in memory by letter; one to be expanded has one element, and comes last."""
    extents = {**dict(zip(term, shape, strict=True)), SLICED: 2}
    return [(letter, extents[letter]) for letter in order] + [(letter, 1) for letter in term if letter not in order]


def _view(framework: Framework, array: Any, term: str, shape: Shape, order: str) -> Any:
    letters = [letter for letter, _ in _stored(term, shape, order)]
    picked = array[tuple(1 if letter == SLICED else slice(None) for letter in letters)]
    left = [letter for letter in letters if letter != SLICED]
    return framework.view(picked, tuple(map(left.index, term)), shape)
