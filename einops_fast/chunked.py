"""Einsum of Dask arrays: pairs in the order of a path, each contracted block by block when the result is computed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from math import isnan, prod
from typing import Any

from einops_fast.arguments import Call
from einops_fast.errors import OperandError
from einops_fast.planning.notation import bind_sizes
from einops_fast.planning.path import Path, candidate_paths

_GROWTH = 4
"""How many times the larger operand's block one of the result may have, or Dask's ``array.chunk-size`` if that is more;
then operands get smaller blocks."""

_steps: ContextVar[list[Any] | None] = ContextVar("einops_fast_dask_steps", default=None)
"""Where a call that is explained says its path, and then a line about each step."""


def has_chunks(arrays: Sequence[Any]) -> bool:
    """Whether one of the arrays is Dask's."""
    dask = sys.modules.get("dask.array")
    return dask is not None and any(isinstance(array, dask.Array) for array in arrays)


def _dask() -> Any:
    """Dask's arrays, whose functions are without types."""
    return import_module("dask.array")


def chunked_einsum(
    call: Call, out: Any, dtype: Any, order: str, casting: Any, optimize: Any, limit: int | None = None
) -> Any:  # fmt: skip
    """Return the einsum of arrays of which one at least is Dask's, as a Dask array; the order is that of its blocks.

    ``limit`` are the bytes that a task may allocate; the other arguments are those of :func:`einops_fast.fast_einsum`.
    """
    import numpy as np

    da = _dask()

    if out is not None:
        raise OperandError("out isn't for Dask arrays, which are made when they are computed; da.store writes results")
    arrays = [da.asarray(array) for array in call.arrays]
    subscripts = call.subscripts(tuple([array.ndim for array in arrays]))
    for at, array in enumerate(arrays):
        if any(map(isnan, array.shape)):
            problem = f"operand {at} has blocks of unknown sizes, {array.shape}; its compute_chunk_sizes() finds them"
            raise OperandError(problem)
    sizes = bind_sizes(subscripts, [array.shape for array in arrays])
    wanted = np.result_type(*[array.dtype for array in arrays]) if dtype is None else np.dtype(dtype)
    for at, array in enumerate(arrays):
        if not np.can_cast(array.dtype, wanted, casting):
            raise OperandError(f"operand {at} has dtype {array.dtype}, which {casting=} doesn't convert to {wanted}")
    terms = [
        _operand(array.astype(wanted), labels, sizes) for array, labels in zip(arrays, subscripts.inputs, strict=True)
    ]
    path = candidate_paths(subscripts, sizes, optimize, None)[0]
    steps = _steps.get()
    if steps is not None:
        steps.append(path)
    for number, positions in enumerate(path, 1):
        taken = [terms[at] for at in positions]
        terms = [term for at, term in enumerate(terms) if at not in positions]
        later = {*subscripts.output, *"".join([labels for _, labels in terms])}
        every = dict.fromkeys("".join([labels for _, labels in taken]))
        kept = subscripts.output if number == len(path) else "".join([label for label in every if label in later])
        terms.append((_contracted(taken, kept, limit), kept))
    return terms[0][0]


def explained(operands: Sequence[Any], **options: Any) -> tuple[list[Any], Path, list[str]]:
    """Return a call's operands as NumPy's arrays without memory, its path, and a line about the tasks of each step."""
    from einops_fast.backends import get_backend
    from einops_fast.einsum import fast_einsum

    example = get_backend("numpy").example

    def stand_in(operand: Any) -> Any:
        if has_chunks([operand]):
            return example(operand.shape, operand.dtype)
        return [*map(stand_in, operand)] if isinstance(operand, list) and has_chunks(operand) else operand

    token = _steps.set([])
    try:
        fast_einsum(*operands, **options)
        path, *lines = _steps.get() or [()]
    finally:
        _steps.reset(token)
    return [*map(stand_in, operands)], path, lines


def _operand(array: Any, labels: str, sizes: Mapping[str, int]) -> tuple[Any, str]:
    """An operand and its labels: without axes of one element that stand for longer ones, diagonals in whole blocks."""
    single = [size == 1 != sizes[label] for label, size in zip(labels, array.shape, strict=True)]
    left = "".join([label for label, alone in zip(labels, single, strict=True) if not alone])
    array = array[tuple([0 if alone else slice(None) for alone in single])]
    return array.rechunk({at: array.chunks[left.index(label)] for at, label in enumerate(left)}), left


def _contracted(terms: Sequence[tuple[Any, str]], kept: str, limit: int | None) -> Any:
    """The product of arrays with these labels, summed over all but ``kept``."""
    da, terms = _dask(), _in_smaller_blocks(terms, kept, limit)
    summed = "".join([label for label in dict.fromkeys("".join([labels for _, labels in terms])) if label not in kept])
    equation = f"{','.join([labels for _, labels in terms])}->{kept}"
    given = [each for array, labels in terms for each in (array, labels)]
    parts = da.blockwise(
        partial(_of_blocks, equation, len(summed), limit), kept + summed, *given,
        adjust_chunks=dict.fromkeys(summed, 1), dtype=terms[0][0].dtype,
    )  # fmt: skip
    axes = tuple(range(len(kept), len(kept) + len(summed)))
    steps = _steps.get()
    if steps is not None:
        block, added = "×".join(map(str, parts.chunksize[: len(kept)])), prod([parts.numblocks[at] for at in axes])
        sums = f", each the sum of {added}" if added > 1 else ""
        steps.append(f"{equation} in {prod(parts.numblocks)} tasks: blocks of up to {block or 1}{sums}")
    # Sums of integers stay in their dtype, as those of einsum.
    if any(parts.numblocks[at] > 1 for at in axes):
        return parts.sum(axis=axes, dtype=parts.dtype)
    return parts.squeeze(axes)


def _in_smaller_blocks(terms: Sequence[tuple[Any, str]], kept: str, limit: int | None) -> Sequence[tuple[Any, str]]:
    """The arrays in such blocks that those of the result aren't far larger."""
    from dask import config
    from dask.utils import parse_bytes

    longest: dict[str, int] = {}
    for array, labels in terms:
        for label, chunks in zip(labels, array.chunks, strict=True):
            longest[label] = max(longest.get(label, 1), *chunks)
    largest, item = max(prod(array.chunksize) for array, _ in terms), terms[0][0].dtype.itemsize
    most = max(_GROWTH * largest * item, parse_bytes(config.get("array.chunk-size")))
    most = most if limit is None else min(most, limit)
    factor = prod(longest[label] for label in kept) * item / most
    if factor <= 1 or len(terms) < 2:
        return terms
    users = Counter([label for _, labels in terms for label in labels])
    made = []
    for array, labels in terms:
        free = {at: "auto" for at, label in enumerate(labels) if label in kept and users[label] == 1}
        limit = max(int(prod(array.chunksize) * item / factor ** (1 / len(terms))), item)
        made.append((array.rechunk(free, block_size_limit=limit) if free else array, labels))
    return made


def _of_blocks(equation: str, summed: int, limit: int | None, *blocks: Any) -> Any:
    """The einsum of blocks, with an axis of one element for each that is summed."""
    from einops_fast.einsum import fast_einsum

    found = fast_einsum(equation, *blocks, memory_limit=limit)
    return found.reshape((*found.shape, *[1] * summed))
