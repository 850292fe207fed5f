"""Parts of an expression that only its constants take part in: contracted once, not at every call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from math import inf, prod
from typing import Any

from einops_fast.backends import Backend
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.parts import Rest, without_parts
from einops_fast.planning.path import Path, explicit_path
from einops_fast.planning.plan import Plan, make_plan
from einops_fast.planning.target import Operand
from einops_fast.record import Record

Groups = list[tuple[int, ...]]


class Folding(Record):
    """An equation with groups of constants that are contracted beforehand."""

    rest: Rest  # the groups as parts, and what is left
    optimize: Any  # as for `einops_fast.fast_einsum`, for what is left

    def compile(
        self, backend: Backend, contract: Callable[..., Any], whole: Callable[..., Any], rest: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a callable of all operands that contracts the groups at its first call and keeps their arrays.

        A constant whose framework tells that it was changed in place has its group contracted again.

        Args:
            backend: that of the operands.
            contract: contracts arrays by an equation.
            whole: contracts all operands, for calls in which nothing may be kept.
            rest: makes a callable that contracts the arrays that it's given, those of the groups first.
        """
        parts, others_at = self.rest.parts, self.rest.others
        held = sorted(chain(*[part.operands for part in parts]))
        kept: tuple[Any, list[Any], Callable[..., Any]] | None = None

        def run(*operands: Any) -> Any:
            nonlocal kept
            constants, others = [operands[at] for at in held], [operands[at] for at in others_at]
            last = kept
            if last is None or last[0] != backend.versions(constants):
                if not backend.may_keep(constants):
                    return whole(*operands)
                versions = backend.versions(constants)
                arrays = [contract(part.equation, *[operands[at] for at in part.operands]) for part in parts]
                computed = backend.mark(arrays[0])
                if computed is None:  # a graph is captured, which would compute them anew
                    return whole(*operands)
                backend.between(computed, computed)  # any stream may read them from now on
                kept = last = versions, arrays, rest([*arrays, *others])
            return last[2](*last[1], *others)

        return run


def cheapest_folding(plan: Plan, constants: Collection[int], optimize: Any, room: int | None) -> Folding | None:
    """Return the folding after which a call is predicted to take least time; ``None`` if none makes it faster.

    Args:
        plan: that of a call in which nothing is kept.
        constants: positions of the operands that are the same in each call.
        optimize: as for :func:`einops_fast.fast_einsum`.
        room: elements that an intermediate may have, if known.
    """
    subscripts, numerics = plan.subscripts, plan.numerics
    dtypes = {operand.dtype for operand in plan.operands} | {numerics.compute, numerics.result}
    if not constants or len(constants) == len(plan.operands) or len(dtypes) > 1 or numerics.whole or numerics.widens:
        return None
    explicit = explicit_path(optimize, len(plan.operands))
    candidates = [_subtrees(explicit or plan.path, len(plan.operands), constants)]
    if optimize in ("auto", True):
        candidates.append(_connected(subscripts.inputs, constants))
    best, seconds = None, plan.seconds
    for groups in candidates:
        folding = _fold(subscripts, groups, explicit, optimize)
        predicted = inf if folding is None else _seconds(folding, plan, room)
        if predicted < seconds:
            best, seconds = folding, predicted
    return best


def _subtrees(path: Path, operands: int, constants: Collection[int]) -> Groups:
    """Return the largest groups of constants that a path contracts among themselves."""
    terms: list[tuple[int, ...] | None] = [(at,) if at in constants else None for at in range(operands)]
    groups: Groups = []
    for positions in path:
        taken = [terms.pop(at) for at in sorted(positions, reverse=True)]
        held = [term for term in taken if term is not None]
        if len(held) == len(taken):
            terms.append(tuple(sorted(chain(*held))))
        else:
            groups += held
            terms.append(None)
    return sorted(groups)


def _connected(inputs: Sequence[str], constants: Collection[int]) -> Groups:
    """Return groups of constants such that each shares a label with another one of its group, and no other group."""
    groups: list[set[int]] = []
    for at in sorted(constants):
        joined = {at}
        apart = []
        for group in groups:
            if any(set(inputs[at]) & set(inputs[other]) for other in group):
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined]
    return sorted(tuple(sorted(group)) for group in groups)


def _fold(subscripts: Subscripts, groups: Groups, path: Path | None, optimize: Any) -> Folding | None:
    """Return the folding of these groups; of those of one operand, if it has an axis that nothing else needs."""
    inputs = subscripts.inputs

    def shrinks(at: int) -> bool:
        needed = set(subscripts.output).union(*inputs[:at], *inputs[at + 1 :])
        return len(needed & set(inputs[at])) < len(inputs[at])

    groups = [group for group in groups if len(group) > 1 or shrinks(group[0])]
    if not groups:
        return None
    rest = without_parts(subscripts, path or (), groups)
    return Folding(rest, optimize if path is None else rest.path)


def _seconds(folding: Folding, plan: Plan, room: int | None) -> float:
    """Return the predicted time of a call after the groups have been contracted."""
    rest = folding.rest
    arrays = [tuple([plan.sizes[label] for label in term]) for term in rest.subscripts.inputs[: len(rest.parts)]]
    if room is not None and max(map(prod, arrays)) > room:
        return inf
    dtype = plan.numerics.compute
    operands = [Operand(shape, contiguous_strides(shape), dtype) for shape in arrays]
    operands += [plan.operands[at] for at in rest.others]
    return make_plan(rest.subscripts, operands, plan.target, plan.numerics, folding.optimize, room).seconds
