"""Steps of pairs that differ in their sizes alone: made once, for sizes that are primes, and filled in with others.

Where two operands lie without gaps, it follows from the equation and the order of their axes in memory how a GEMM, or
a product of elements, reads them, whatever the sizes are; so do the diagonals and sums before it. And in steps made for
sizes that are primes, each number tells the axes that it is the product of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import inf, prod
from operator import itemgetter
from typing import Any, NamedTuple

from einops_fast.planning import cost
from einops_fast.planning.cost import Product, is_complex
from einops_fast.planning.layout import Term, contiguous_in_order, contiguous_strides
from einops_fast.planning.lowering import Lowering
from einops_fast.planning.matrices import may_lag_behind
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import Diagonal, Fused, Gemm, Multiply, Step, Sum, View
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.record import Record

_PRIMES = [number for number in range(1009, 1409, 2) if all(number % odd for odd in range(3, 38, 2))]
"""Sizes, above all other numbers in steps: places of axes, and slots."""


def filled_in(
    subscripts: Subscripts, sizes: Mapping[str, int], operands: Sequence[Operand], target: Target, numerics: Numerics
) -> tuple[Step, ...] | None:
    """The steps that lowering makes for two operands; ``None`` unless one product computes the pair without a copy.

    That is a GEMM, or one of elements without sums. It is returned where no other step can be predicted to be faster.
    """
    one, two = operands
    dtype = numerics.compute
    if one.dtype != dtype or two.dtype != dtype:
        return None
    if 1 in one.shape or 1 in two.shape:
        # Without rows, columns or what is summed, other steps are faster. And an axis may broadcast.
        (left, right), output = subscripts.inputs, subscripts.output
        for label, size in zip(left + right, (*one.shape, *two.shape), strict=True):
            if size == 1 and not (sizes[label] == 1 and label in output and label in left and label in right):
                return None
    orders = _order(one), _order(two)
    if None in orders:
        return None
    kind = _kind(subscripts, orders, target, numerics)
    template = kind.template if kind.came else None
    kind.came = True
    if template is None:
        return None
    product = Product(*[prod([sizes[label] for label in labels]) for labels in template.extents])
    batch, m, n, k = product
    full, elements, on = product.full, (batch * m * k, batch * k * n, batch * m * n), target.ceilings
    summed = bool(template.extents[3])
    multiply = cost.multiply_seconds(full, elements, summed, dtype, on)
    # Where loops begin, and add to memory, makes them slower than this.
    native = cost.native_seconds(full, elements, summed, dtype, on) if template.loops and on.native else inf
    if not summed:
        if multiply > native:
            return None
    elif (1 in (m, n) and may_lag_behind(full, dtype, on)) or cost.gemm_seconds(product, 1, dtype, on) > min(
        multiply, native
    ):
        return None
    return template.make([prod([sizes[label] for label in labels]) for labels in template.products])


def _order(operand: Operand) -> tuple[int, ...] | None:
    """The axes, slowest first, of an array without gaps; ``None`` for others, and where that isn't certain."""
    shape, strides = operand.shape, operand.strides
    if 0 in shape:
        return None
    if strides == contiguous_strides(shape):
        return ()
    if 1 in shape:
        return None
    order = tuple(sorted(range(len(shape)), key=strides.__getitem__, reverse=True))
    return order if strides == contiguous_in_order(shape, order) else None


class _Template(NamedTuple):
    """Steps whose sizes are left open."""

    extents: tuple[str, str, str, str]  # labels of the batch, rows, columns and contracted axes
    loops: bool  # whether the framework's own einsum may be faster
    products: tuple[str, ...]  # the labels whose sizes make up each number
    make: Callable[[Sequence[int]], tuple[Step, ...]]  # makes the steps of these numbers


class _Kind:
    """Pairs that differ in their sizes alone: steps with open sizes take longer to make; the second has them made."""

    came = False

    def __init__(self, *pair: Any) -> None:
        self._pair = pair

    @cached_property
    def template(self) -> _Template | None:
        return _template(*self._pair)


_kind = lru_cache(maxsize=1024)(_Kind)


def _template(
    subscripts: Subscripts, orders: tuple[tuple[int, ...], ...], target: Target, numerics: Numerics
) -> _Template | None:
    (left, right), output = subscripts.inputs, subscripts.output
    every = dict.fromkeys(left + right)
    # The terms of the pair, once diagonals were taken and axes summed that only one operand has.
    kept = [
        "".join([label for label in dict.fromkeys(term) if label in other or label in output])
        for term, other in ((left, right), (right, left))
    ]
    given = kept == [left, right]
    if (
        len(every) > len(_PRIMES) or (target.kernels and not given)
        or numerics.native or not numerics.gemm or numerics.widens or numerics.compute != numerics.result
        or target.any_size or target.in_order or target.memory or not target.strided
    ):  # fmt: skip
        return None
    sizes = dict(zip(every, _PRIMES, strict=False))
    operands = []
    for term, order in zip((left, right), orders, strict=True):
        shape = tuple([sizes[label] for label in term])
        operands.append(Operand(shape, contiguous_in_order(shape, order or range(len(shape))), numerics.compute))
    lowering = Lowering(subscripts, sizes, target, numerics)
    if given:
        terms = [
            lowering.start(at, term, operand) for at, (term, operand) in enumerate(zip(kept, operands, strict=True))
        ]
    else:
        terms = [Term(at, term, tuple([sizes[label] for label in term])) for at, term in enumerate(kept)]
    roles = Roles(terms[0], terms[1], output, sizes)
    batch, rows, columns, contracted = roles.batch, roles.rows, roles.columns, roles.contracted
    if contracted and output not in (batch + rows + columns, batch + columns + rows):
        return None
    if not contracted and (target.kernels or is_complex(numerics.compute)):
        return None  # they are priced by their innermost loops
    if contracted and given and not _merges(roles, target.batch_axes):
        return None
    if given:
        lowering.finish(lowering.pair(terms[0], terms[1]))
        steps = tuple(lowering.steps)
    else:
        steps = lowering.run(operands, ((0, 1),))
    if not _is_one_product(steps, roles.product, target):
        return None
    along_batch = roles.lies_along_batch
    products: dict[str, int] = {}
    make = _maker(steps, {size: label for label, size in sizes.items()}, products) or _always(steps)
    loops = not (contracted and rows and columns) or along_batch
    return _Template((batch, rows, columns, contracted), loops, tuple(products), make)


def _merges(roles: Roles, batch_axes: int) -> bool:
    """Whether a GEMM may read both operands where they lie, all batch axes as few enough.

    Then the axes of each role lie side by side in each operand, and those of the batch are not the fastest.
    """
    shared = [roles.contracted, roles.batch] if len(roles.batch) > batch_axes else [roles.contracted]
    shared = [roles.left.in_memory(labels) for labels in shared]
    for term, free in ((roles.left, roles.rows), (roles.right, roles.columns)):
        lies = term.in_memory(term.labels)
        if term.fastest in roles.batch or not all(labels in lies for labels in (term.in_memory(free), *shared)):
            return False
    return True


def _is_one_product(steps: tuple[Step, ...], product: Product, target: Target) -> bool:
    """Whether steps are one product that reads both operands where they lie, and perhaps a view of its result.

    Before a product are diagonals and sums, if any.
    """
    pairs = [at for at, step in enumerate(steps) if len(step.reads) == 2]
    if len(pairs) != 1 or not all(isinstance(step, Diagonal | Sum) for step in steps[: pairs[0]]):
        return False
    steps = steps[pairs[0] :]
    first = steps[0]
    if isinstance(first, Multiply):
        return len(steps) == 1 and not first.summed and not first.left.moves and not first.right.moves
    if isinstance(first, Fused):
        return len(steps) == 1 and _is_one_product(first.library, product, target)
    if not isinstance(first, Gemm) or first.left.moves or first.right.moves:
        return False
    if (prod(first.batch), {first.m, first.n}, first.k) != (product.batch, {product.m, product.n}, product.k):
        return False  # some rows or columns became a batch
    if first.buffer is not None and len(first.batch) > target.batch_axes:
        return False  # it is looped over
    return all(isinstance(step, View) and not step.how.moves for step in steps[1:])


def _maker(value: Any, labels: Mapping[int, str], products: dict[str, int]) -> Callable[[Sequence[int]], Any] | None:
    """Return what makes a part of steps of the numbers that it holds, each a product of sizes; ``None`` if it has none.

    ``products`` has the place of each number, by its labels; new ones are added.
    """
    if type(value) is int and value >= _PRIMES[0]:
        factors = "".join([label for size, label in labels.items() if value % size == 0])
        return itemgetter(products.setdefault(factors, len(products)))
    if not isinstance(value, tuple):
        return None
    makers = [_maker(each, labels, products) for each in value]
    if not any(makers):
        return None
    parts = [maker or _always(each) for maker, each in zip(makers, value, strict=True)]
    if isinstance(value, Record):
        kind = type(value)
        return lambda numbers: kind(*[part(numbers) for part in parts])
    return lambda numbers: tuple([part(numbers) for part in parts])


def _always(value: Any) -> Callable[[Sequence[int]], Any]:
    return lambda numbers: value
