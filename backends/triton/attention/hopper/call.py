"""Launching Hopper's kernels of attention: arrays as the hardware sees them, and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.backends.triton.attention.decode.work import DecodeTiling
from einops_fast.backends.triton.attention.hopper.tiles import GROUP_ROWS, ITEM, PADDED, HopperTiling, Numbers, Places
from einops_fast.backends.triton.attention.launches import Launch, Room
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.cost import ITEM_SIZES

BATCH_AXES = 3
"""That an array has as the hardware sees it."""

LOG2E = math.log2(math.e)

NOWHERE = Places(ANY, ANY, ANY, ANY)
"""Of an array that there isn't."""

_SHARERS = 4
"""Programs at work on the same batch element, at least about so many, where tiles differ in what there is to do."""

_CACHED = 24 << 20
"""Bytes of operands that such programs go through side by side, about: half of the level-2 cache."""


def is_for_hopper(problem: Problem) -> bool:
    """Return whether any of these kernels may be used: on Hopper, for halves and what all of them can do."""
    spec, features = problem.spec, problem.features
    if interpreted() or problem.capability[0] != 9 or spec.dtype not in ("float16", "bfloat16") or spec.scale <= 0:
        return False
    return not (features.alibi or features.segments or features.dropout or spec.varlen) and features.axes <= BATCH_AXES


def of_batch(values: Sequence[Any], missing: Any) -> tuple[Any, ...]:
    """Return a value for each of the batch axes that the kernels count; ``missing`` for those that there aren't."""
    return (*(missing,) * (BATCH_AXES - len(values)), *values)


def launch(
    function: Any,
    tiling: HopperTiling | DecodeTiling,
    arrays: Mapping[str, Array | None],
    numbers: tuple[Any, ...],
    programs: int,
    even: Sequence[str] = ("q_len", "padded"),
    rooms: tuple[Room, ...] = (),
    otherwise: tuple[Launch, ...] = (),
) -> Launch:
    """Return the launch of a kernel, which takes ``arrays`` in its order, ``numbers`` and ``tiling``.

    ``even`` are those of the last numbers for which it matters whether they are multiples of 16.
    """
    options, constants = {"num_warps": 4, "maxnreg": tiling.registers}, {"tiling": tiling}
    call = DeclaredCall(function, (programs, 1), tuple(arrays.values()), numbers, constants, options, even)
    return Launch(
        call, tuple([array_of(name) if array else None for name, array in arrays.items()]), rooms, otherwise=otherwise
    )


def array_of(parameter: str) -> str:
    """Return the name of the array that a kernel's parameter is, or is a descriptor of."""
    return parameter.removesuffix("desc").rstrip("_")


def padded(problem: Problem) -> int:
    """Return the queries of a batch element in the array of rows' numbers."""
    return -(-problem.spec.q_len // PADDED) * PADDED


def described(problem: Problem, tiling: HopperTiling, name: str) -> Array | None:
    """Return an array of that name as kernels take it; ``None`` if there is none."""
    spec = problem.spec
    if name in ("bias", "mask", "d_bias"):
        return _added(problem, tiling, name)
    if name == "bounds":
        return Array("int32") if tiling.bounded else None
    if name == "rows" and tiling.turned:
        # Of each batch element the logarithms of its queries, then their delta.
        length = padded(problem)
        return Array("float32", (2 * problem.elements, length), (length, 1), (1, tiling.block))
    if name in ("rows", "lse"):
        return Array("float32")
    of_keys, of_values = name in ("k", "v", "dk", "dv"), name in ("v", "dv", "out", "d_out")
    # Tiles are of keys or of queries, blocks of the others.
    rows = GROUP_ROWS if of_keys == tiling.turned else tiling.block
    tail = (spec.kv_len if of_keys else spec.q_len, spec.v_head_dim if of_values else spec.head_dim)
    return copied(problem, name, spec.dtype, tail, (rows, tiling.box(int(of_values))))


def _added(problem: Problem, tiling: HopperTiling, name: str) -> Array | None:
    """Return the bias, its gradient or the mask: in tiles, or an address."""
    along = tiling.mask if name == "mask" else tiling.bias
    dtype = "uint8" if name == "mask" else problem.dtype("bias")
    if along is None or (name == "d_bias" and not tiling.d_bias):
        return None
    if name == "d_bias" and tiling.in_parts:
        return Array("float32", aligned=False)
    if along != (True, True):
        return Array(dtype, aligned=False)
    box = (tiling.block, GROUP_ROWS) if tiling.turned else (GROUP_ROWS, tiling.block)
    return copied(problem, name, dtype, (problem.spec.q_len, problem.spec.kv_len), box)


def copied(problem: Problem, name: str, dtype: str, tail: tuple[int, int], box: tuple[int, ...]) -> Array:
    """Return an array whose boxes the hardware copies, with the batch axes that it has and ``tail``."""
    *batch, row, column = getattr(problem.strides, name)
    own = of_batch(batch, 0)
    sizes = [size if stride else 1 for size, stride in zip(of_batch(problem.sizes, 1), own, strict=True)]
    # Any stride does for an axis of size 1.
    anything = ALIGNMENT // ITEM_SIZES[dtype]
    strides = tuple(stride or anything for stride in (*own, row, column))
    return Array(dtype, (*sizes, *tail), strides, (*(1,) * (BATCH_AXES + 2 - len(box)), *box))


def places_of(batch: Sequence[int], position: int) -> Places:
    """Return where a batch element and one of its positions are, from their strides."""
    return Places._make((*of_batch(batch, 0), position))


def programs_of(problem: Problem, tiling: HopperTiling, elements: int, length: int) -> int:
    """Return how many are worth starting: as many as share each multiprocessor, if there are tiles enough."""
    return min(elements * -(-length // tiling.rows), problem.units * tiling.programs)


def numbers_of(
    problem: Problem, tiling: HopperTiling, elements: int, length: int, bounds: Places | None = None
) -> Numbers:
    """Return those of a kernel whose tiles share so many positions, and of which a mask has such bounds."""
    spec = problem.spec
    shift = spec.kv_len - spec.q_len if problem.features.bottom_right else 0
    tiles = max(1, -(-length // tiling.rows))
    together, rounds, sections = elements, 0, 0
    if tiling.right and elements:
        # As many elements as fill an even number of rounds, of about those whose blocks the cache holds.
        programs = programs_of(problem, tiling, elements, length)
        others = problem.share * spec.q_len if tiling.turned else spec.kv_len
        size = others * (spec.head_dim + spec.v_head_dim) * ITEM
        fitting = min(max(1, _CACHED // size), -(-problem.units // _SHARERS))
        rounds = 2 * -(-fitting * tiles // (2 * programs))
        together = min(elements, max(1, rounds * programs // tiles))
        rounds = 2 * -(-together * tiles // (2 * programs))
        sections = -(-elements // together)
    _, second, third = of_batch(problem.sizes, 1)
    return Numbers(
        elements,
        tiles,
        sections * rounds * programs if sections else elements * tiles,
        together,
        rounds,
        problem.share,
        spec.q_len,
        spec.kv_len,
        padded(problem),
        shift - int(problem.numbers.left),
        shift + int(problem.numbers.right),
        second,
        third,
        spec.scale * LOG2E,
        spec.softcap * LOG2E,
        _added_places(problem.strides.bias, tiling.bias),
        _added_places(problem.strides.mask, tiling.mask),
        bounds or NOWHERE,
    )


def _added_places(strides: tuple[int, ...] | None, along: tuple[bool, bool] | None) -> Places:
    if strides is None or along in (None, (True, True)):
        return NOWHERE
    *batch, of_queries, of_keys = strides
    return places_of(batch, of_queries or of_keys)
