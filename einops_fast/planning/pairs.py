"""How one pair of terms becomes one step: the kinds of step, their price, and the choice.

Every axis of a pair is *batch* (in both terms and the result), *row* or *column* (in one term and the
result) or *contracted* (in both terms, not in the result). A product without contracted axes is a
multiplication; else a GEMM (see :mod:`einops_fast.planning.matrices`), a multiplication and a sum, or the framework's
own einsum is chosen, whichever is predicted to take least time. A contracted axis of size 1 sums nothing, and is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from string import ascii_letters

from einops_fast.planning import cost
from einops_fast.planning.layout import Term
from einops_fast.planning.matrices import cheapest_gemm
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import Arrange, Multiply, Native, Step
from einops_fast.planning.target import Numerics, Target


def contract_pair(
    left: Term, right: Term, wanted: str, sizes: Mapping[str, int], target: Target, numerics: Numerics
) -> Step:
    """The cheapest step that contracts two terms. Its result lies in C order.

    A label that only one of them has is in ``wanted``, which has the order that suits whoever reads the result.
    """
    roles = Roles(left, right, wanted, sizes)
    single = [label for label in roles.contracted if sizes[label] == 1]
    if single:
        left, right = left.unlabelled(single), right.unlabelled(single)
        roles = Roles(left, right, wanted, sizes)
    # Sums of products are written in the order of their labels, anything else lies in memory as the operands do.
    written = Roles(left, right, target.memory, sizes) if target.memory and roles.contracted else roles
    dtype, on = numerics.compute, target.ceilings
    summed = bool(roles.contracted)
    if numerics.native and (summed or dtype == "bool"):
        return _native(roles, numerics.native)
    batch, m, n, k = roles.product
    full = batch * m * n * k
    elements = (left.size, right.size, batch * m * n)
    multiply = cost.multiply_seconds(full, elements, summed, dtype, on)
    native = inf
    is_vector = m == 1 or n == 1
    # Loops are a match for BLAS only where every element of the larger operand is used once, or all run along a batch.
    if on.native and (not summed or is_vector or roles.lies_along_batch):
        inner = _innermost(roles) if (summed or cost.is_complex(dtype)) and on.native_run else 0
        native = cost.native_seconds(full, elements, summed, dtype, on, inner, summed and not is_vector)
    gemm = cheapest_gemm(written, target, dtype) if summed and numerics.gemm else None
    runs = 0
    begins = on.run and (summed or (cost.is_complex(dtype) and on.native_complex))
    if begins and multiply <= min(native, gemm.seconds if gemm else native):
        runs = full // max(1, _innermost(roles))
        multiply = cost.multiply_seconds(full, elements, summed, dtype, on, runs)
    if gemm is not None and gemm.seconds <= min(multiply, native):
        return gemm.step(written, target)
    if multiply <= native:
        return _multiply(written, target, dtype, runs)
    return _native(roles, "its loops are predicted to be fastest here")


def _innermost(roles: Roles) -> int:
    """Length of the innermost loop over both terms: over neighbours in the larger one that merge in either."""
    larger, smaller = roles.left, roles.right
    if smaller.size > larger.size:
        larger, smaller = smaller, larger
    sizes, both, wanted = roles.sizes, smaller.strides, roles.wanted
    length, group, merging = 1, None, (0, 0)
    for label in reversed(larger.in_memory(larger.labels)):
        size = sizes[label]
        if size < 2:
            continue
        own, strides = (label in both, label in wanted), (larger.strides[label], both.get(label, 0))
        if group is not None and (own != group or strides != merging):
            break
        group, length = own, length * size
        merging = strides[0] * size, strides[1] * size
    return length


_REAL = ("float32", "float64")

_LONG_LINES, _CROSSED = 128, 1 << 16
"""Extents of the axes that the operands lie along, and elements, from which on a crossed product is made in pieces."""


def _multiply(roles: Roles, target: Target, dtype: str, runs: int) -> Multiply:
    summed, full, block = len(roles.contracted), roles.product.full, target.ceilings.block
    if summed and roles.left.size < roles.right.size:
        roles = roles.swapped()  # frameworks lay the product out as the first operand lies
    in_memory = summed and target.strided and not target.kernels
    wanted = _as_stored(roles) if in_memory else roles.wanted
    order = wanted + roles.contracted
    left, right = _spread(roles.left, order, roles), _spread(roles.right, order, roles)
    if not summed or (full <= block and not (dtype in _REAL and _is_crossed(roles))):
        block = 0
    return Multiply(roles.slots, wanted, roles.shape(wanted), left, right, summed, full, block, runs)


def _is_crossed(roles: Roles) -> bool:
    """Return whether the operands have the same axes and lie along different ones, both long."""
    across = roles.left.fastest + roles.right.fastest
    long = len(set(across)) == 2 and min([roles.sizes[label] for label in across]) >= _LONG_LINES
    return long and not (roles.rows or roles.columns) and roles.product.full >= _CROSSED


def _as_stored(roles: Roles) -> str:
    """Return the axes of the result in the order in which the left, larger operand has them in memory.

    Sums along the rows of an operand are written as fast as they are made in any order, others only in this one.
    """
    if roles.left.fastest not in roles.wanted:
        return roles.wanted
    left, right = roles.left.strides, roles.right.strides
    return "".join(sorted(roles.wanted, key=lambda label: abs(left.get(label, 0) or right.get(label, 0)), reverse=True))


def _spread(term: Term, order: str, roles: Roles) -> Arrange:
    """An operand with its axes in ``order`` and size 1 where it lacks one; leading ones are left out."""
    places, sizes = term.labels, roles.sizes
    inner = order.lstrip("".join([label for label in order if label not in places]))
    own = "".join([label for label in inner if label in places])
    return term.seen(own, tuple([sizes[label] if label in places else 1 for label in inner]))


def _native(roles: Roles, reason: str) -> Native:
    terms = roles.left, roles.right
    return native_step(terms, roles.wanted, roles.shape(roles.wanted), reason, roles.product.full)


def native_step(terms: Sequence[Term], wanted: str, shape: tuple[int, ...], reason: str, full: int) -> Native:
    """The terms in an einsum of its own; an axis of size 1 that has lost its label is summed away."""
    used = {label for term in terms for label in term.labels}
    spare = iter([letter for letter in ascii_letters if letter not in used])
    inputs = []
    for term in terms:
        labels = list(term.labels)
        for at in term.unnamed:
            labels.insert(at, next(spare))
        inputs.append("".join(labels))
    return Native.of(tuple([term.slot for term in terms]), inputs, wanted, shape, reason, full)
