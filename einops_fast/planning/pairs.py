"""How one pair of terms becomes one step: the kinds of step, their price, and the choice.

Every axis of a pair is *batch* (in both terms and the result), *row* or *column* (in one term and the
result) or *contracted* (in both terms, not in the result). A product without contracted axes is a
multiplication; else a GEMM (see :mod:`einops_fast.planning.matrices`), a multiplication and a sum, or the framework's
own einsum is chosen, whichever is predicted to take least time. A contracted axis of size 1 sums nothing, and is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

from einops_fast.planning import cost
from einops_fast.planning.layout import Term, arranged, as_one, by_stride, contiguous_strides
from einops_fast.planning.matrices import cheapest_gemm
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import Arrange, Multiply, Native, Step
from einops_fast.planning.target import Numerics, Target

__all__ = ["contract_pair", "native_step"]


def contract_pair(
    left: Term, right: Term, keep: set[str], wanted: str, target: Target, numerics: Numerics
) -> tuple[Step, tuple[int, ...]]:
    """The cheapest step that contracts two terms, and the strides of its result.

    Args:
        left, right: the terms. A label that only one of them has is in ``keep``.
        keep: labels that the result, or a later pair, needs.
        wanted: labels of the result in the order that suits whoever reads it.
        target: what can be done where the plan will run.
        numerics: the dtypes of the call.
    """
    roles = Roles.of(left, right, keep, wanted)
    single = [label for label in roles.contracted if roles.size_of[label] == 1]
    if single:
        left, right = (_unnamed(term, single) for term in (left, right))
        roles = Roles.of(left, right, keep, wanted)
    # Sums of products are written in the order of their labels, anything else lies in memory as the operands do.
    written = Roles.of(left, right, keep, target.memory) if target.memory and roles.contracted else roles
    dtype, on = numerics.compute, target.ceilings
    strides = contiguous_strides(roles.sizes(wanted))
    summed = bool(roles.contracted)
    if numerics.native and (summed or dtype == "bool"):
        return _native(roles, numerics.native), strides
    product = roles.product
    elements = (left.size, right.size, product.batch * product.m * product.n)
    multiply = cost.multiply_seconds(product.full, elements, summed, dtype, on)
    native = float("inf")
    is_vector = product.m == 1 or product.n == 1
    is_complex = dtype.startswith("complex")
    # Loops are a match for BLAS only where every element of the larger operand is used once, or all run along a batch.
    if not summed or is_vector or roles.lies_along_batch:
        inner = _innermost(roles) if (summed or is_complex) and on.native_run else 0
        native = cost.native_seconds(product.full, elements, summed, dtype, on, inner, summed and not is_vector)
    gemm = cheapest_gemm(written, target, dtype) if summed and numerics.gemm else None
    runs = 0
    begins = on.run and (summed or (is_complex and on.native_complex))
    if begins and multiply <= min(native, gemm.seconds if gemm else native):
        runs = product.full // max(1, _innermost(roles))
        multiply = cost.multiply_seconds(product.full, elements, summed, dtype, on, runs)
    if gemm is not None and gemm.seconds <= min(multiply, native):
        return gemm.step(written, target)
    if multiply <= native:
        return _multiply(written, target, dtype, runs)
    return _native(roles, "its loops are predicted to be fastest here"), strides


def _unnamed(term: Term, labels: list[str]) -> Term:
    """The term with axes of size 1 that carry no label any more."""
    return Term(term.slot, tuple([axis._replace(label="") if axis.label in labels else axis for axis in term.axes]))


def _innermost(roles: Roles) -> int:
    """Length of the innermost loop over both terms: over neighbours in the larger one that merge in either."""
    larger, smaller = sorted((roles.left, roles.right), key=lambda term: -term.size)
    run, shared = "", False
    for axis in reversed(by_stride([axis for axis in larger.axes if axis.label and axis.size > 1])):
        label = axis.label
        if run and ((label in smaller.labels) != shared or (label in roles.wanted) != (run[0] in roles.wanted)):
            break
        shared = label in smaller.labels
        if any(as_one(term.pick(label + run))[1] is None for term in ((larger, smaller) if shared else (larger,))):
            break
        run = label + run
    return roles.size(run)


_REAL = ("float32", "float64")

_LONG_LINES, _CROSSED = 128, 1 << 16
"""Extents of the axes that the operands lie along, and elements, from which on a crossed product is made in pieces."""


def _multiply(roles: Roles, target: Target, dtype: str, runs: int) -> tuple[Multiply, tuple[int, ...]]:
    summed, full, block = len(roles.contracted), roles.product.full, target.ceilings.block
    if summed and roles.left.size < roles.right.size:
        roles = roles.swapped()  # frameworks lay the product out as the first operand lies
    in_memory = summed and target.strided and not target.kernels
    wanted = _as_stored(roles) if in_memory else roles.wanted
    order = wanted + roles.contracted
    left, right = (_spread(term, order, roles) for term in (roles.left, roles.right))
    if not summed or (full <= block and not (dtype in _REAL and _is_crossed(roles))):
        block = 0
    step = Multiply(roles.slots, wanted, roles.sizes(wanted), left, right, summed, full, block, runs)
    return step, contiguous_strides(roles.sizes(wanted))


def _is_crossed(roles: Roles) -> bool:
    """Return whether the operands have the same axes and lie along different ones, both long."""
    across = roles.left.fastest + roles.right.fastest
    long = len(set(across)) == 2 and min([roles.size_of[label] for label in across]) >= _LONG_LINES
    return long and not (roles.rows or roles.columns) and roles.product.full >= _CROSSED


def _as_stored(roles: Roles) -> str:
    """Return the axes of the result in the order in which the left, larger operand has them in memory.

    Sums along the rows of an operand are written as fast as they are made in any order, others only in this one.
    """
    if roles.left.fastest not in roles.wanted:
        return roles.wanted
    stride = {axis.label: abs(axis.stride) for term in (roles.right, roles.left) for axis in term.axes if axis.stride}
    return "".join(sorted(roles.wanted, key=lambda label: stride.get(label, 0), reverse=True))


def _spread(term: Term, order: str, roles: Roles) -> Arrange:
    """An operand with its axes in ``order`` and size 1 where it lacks one; leading ones are left out."""
    labels = term.labels
    present = [label for label in order if label in labels]
    perm = (*term.unnamed, *(axis.position for axis in term.pick(present)))
    inner = order[order.index(present[0]) :] if present else ""
    shape = tuple(roles.size(label) if label in labels else 1 for label in inner)
    return arranged(perm, term.shape, shape)


def _native(roles: Roles, reason: str) -> Native:
    terms = roles.left, roles.right
    return native_step(terms, roles.wanted, roles.sizes(roles.wanted), reason, roles.product.full)


def native_step(terms: Sequence[Term], wanted: str, shape: tuple[int, ...], reason: str, full: int) -> Native:
    """The terms in an einsum of its own; an axis of size 1 that has lost its label is summed away."""
    used = {label for term in terms for label in term.labels}
    spare = iter([letter for letter in ascii_letters if letter not in used])
    inputs = ["".join(axis.label or next(spare) for axis in term.axes) for term in terms]
    return Native.of(tuple([term.slot for term in terms]), inputs, wanted, shape, reason, full)
