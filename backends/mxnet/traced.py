"""Contractions in a graph that MXNet traces once and runs with arrays of any size: hybridized and exported blocks.

Every operator here takes axes, never sizes. Sizes are only looked at for one choice that holds for all of them: which
axes to repeat because they have length 1 in one operand while tracing. An axis that is equally long in both then has to
be so in later calls, too: MXNet raises an error if it isn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einops_fast.backends.mxnet.importing import import_mxnet
from einops_fast.backends.mxnet.ops import ONEDNN_AXES, native_einsum, sum_over

mxnet = import_mxnet()
mnp, npx = mxnet.np, mxnet.npx


def contract_any_size(equation: str, *operands: Any) -> Any:
    """Return the einsum of one or two floating-point arrays, by operators that hold for all sizes.

    Args:
        equation: in letters, with an output and without an ellipsis.
        operands: arrays, as deep as the equation says.
    """
    given, _, output = equation.partition("->")
    terms = given.split(",")
    arrays, labels = [], []
    for at, (term, array) in enumerate(zip(terms, operands, strict=True)):
        needed = set(output).union(*terms[:at], *terms[at + 1 :])
        kept = "".join([label for label in dict.fromkeys(term) if label in needed])
        if len(set(term)) < len(term):
            array = native_einsum(f"{term}->{kept}", array)
        elif kept != term:
            array = sum_over(array, [axis for axis, label in enumerate(term) if label not in kept])
        arrays.append(array)
        labels.append(kept)
    if len(arrays) == 1:
        # The answer is never the operand itself: its memory would be shared.
        return mnp.copy(arrays[0]) if terms[0] == output else _ordered(arrays[0], labels[0], output)
    (a, b), (left, right) = arrays, labels
    for label in left:
        if label in right and a.shape[left.index(label)] != b.shape[right.index(label)]:
            a, b = _repeated(a, b, left.index(label), right.index(label))
    if set(left + right) == set(output):
        return _product(a, left, b, right, output)
    return _matrix_product(a, left, b, right, output)


def split_axes(array: Any, axes: Sequence[Sequence[int | None]]) -> Any:
    """Split each axis into axes of these sizes; ``None`` for a size that the axis tells.

    MXNet raises an error in a later call whose array doesn't have these.
    """
    at = 0
    for sizes in axes:
        if not sizes:
            array = mnp.squeeze(array, axis=at)
            continue
        first, *rest = sizes
        if not rest and first is not None:
            # Splits are checked, and nothing else is.
            array = _merged(npx.reshape(array, (*[-2] * at, -6, first, 1, -4)), at, 2)
        while rest:
            known = [size for size in rest if size is not None]
            parts = -1 if first is None else first, prod(known) if len(known) == len(rest) else -1
            array = npx.reshape(array, (*[-2] * at, -6, *parts, -4))
            first, *rest = rest
            at += 1
        at += 1
    return array


def merge_axes(array: Any, counts: Sequence[int]) -> Any:
    """Merge neighbouring axes: ``counts`` says how many make up each axis of the result; 0 makes one of size 1."""
    for at, count in enumerate(counts):
        array = _merged(array, at, count)
    return array


def _ordered(array: Any, labels: str, wanted: str) -> Any:
    return array if labels == wanted else mnp.transpose(array, [labels.index(label) for label in wanted])


def _positions(array: Any, axis: int) -> Any:
    # Halves can't count beyond 2048.
    return npx.arange_like(array.astype("float32") if array.dtype == np.float16 else array, axis=axis)


def _gathered(array: Any, positions: Any, axis: int) -> Any:
    """The array with an axis of length 1 as long as ``positions``; one of that length stays as it is."""
    return mnp.take(array, positions, axis=axis, mode="clip")


def _repeated(a: Any, b: Any, axis_of_a: int, axis_of_b: int) -> tuple[Any, Any]:
    """Both arrays with an equally long axis; where it has length 1 in one of them, that one is repeated."""
    positions = mnp.maximum(_positions(a, axis_of_a), _positions(b, axis_of_b))
    return _gathered(a, positions, axis_of_a), _gathered(b, positions, axis_of_b)


def _product(a: Any, left: str, b: Any, right: str, output: str) -> Any:
    """The product of elements.

    Axes that one operand lacks are gathered. MXNet's own broadcasting sums gradients ten times as slowly, and leaves
    them unwritten where nothing is to be summed.
    """
    both = [_ordered(x, own, "".join([at for at in output if at in own])) for x, own in ((a, left), (b, right))]
    for axis, label in enumerate(output):
        both = [x if label in own else mnp.expand_dims(x, axis) for x, own in zip(both, (left, right), strict=True)]
    spread = list(both)
    for axis in reversed(range(len(output))):
        for at, own in enumerate((left, right)):
            if output[axis] not in own:
                spread[at] = _gathered(spread[at], _positions(both[1 - at], axis), axis)
    return spread[0] * spread[1]


def _picked(labels: set[str], spelled: str) -> str:
    return "".join([label for label in spelled if label in labels])


def _matrix_product(a: Any, left: str, b: Any, right: str, output: str) -> Any:
    """The sum of products over the axes that the output lacks, as a stack of products of matrices.

    MXNet takes ten times as long to transpose where the last axis changes: those of the operands stay, and the columns
    have the output's.
    """
    if output[-1:] in left and output[-1:] not in right:
        a, left, b, right = b, right, a, left
    one, two, kept = set(left), set(right), set(output)
    batch, rows, columns = (_picked(labels, output) for labels in (one & two & kept, one - two, two - one))
    contracted = _picked((one & two) - kept, left)
    contracted_first, contracted_last = left[-1] in rows, right[-1] not in columns
    a = _ordered(a, left, batch + (contracted + rows if contracted_first else rows + contracted))
    b = _ordered(b, right, batch + (columns + contracted if contracted_last else contracted + columns))
    deep, high, wide, summed = map(len, (batch, rows, columns, contracted))
    # oneDNN takes two axes beside these.
    stack = max(1, min(deep, ONEDNN_AXES - 2))
    result = npx.batch_dot(
        _matrices(a, deep, stack, summed if contracted_first else high),
        _matrices(b, deep, stack, wide if contracted_last else summed),
        transpose_a=contracted_first,
        transpose_b=contracted_last,
    )
    result = _split(result, stack + 1, b, deep + (0 if contracted_last else summed), wide)
    result = _split(result, stack, a, deep + (summed if contracted_first else 0), high)
    result = _split(result, stack - 1, a, stack - 1, deep - stack + 1)
    return _ordered(result, batch + rows + columns, output)


def _matrices(array: Any, batch: int, stack: int, first: int) -> Any:
    """The array with its last ``batch - stack + 1`` batch axes as one, the ``first`` next ones, and all others."""
    last = array.ndim - batch - first
    return _merged(_merged(_merged(array, batch + first, last), batch, first), stack - 1, batch - stack + 1)


def _merged(array: Any, at: int, count: int) -> Any:
    """The array with ``count`` axes from ``at`` on as one, of length 1 for none."""
    if count == 0:
        return mnp.expand_dims(array, at)
    for _ in range(count - 1):
        # -2 copies the length of an axis, -5 is that of two, and -4 stands for all that are left.
        array = npx.reshape(array, (*[-2] * at, -5, -4))
    return array


def _split(array: Any, at: int, like: Any, begin: int, count: int) -> Any:
    """The array with axis ``at`` as the ``count`` axes that ``like`` has from ``begin`` on."""
    if count == 0:
        return mnp.squeeze(array, axis=at)
    if count == 1:
        return array
    return npx.reshape_like(array, like, lhs_begin=at, lhs_end=at + 1, rhs_begin=begin, rhs_end=begin + count)
