"""Which tiles Hopper's attention kernels have, that there is room for them, and how far masks show something."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_problems import DEVICE, Poisoned, attention
from gluon_on_cpu import functions_on_cpu

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention.layouts import problem_of
from einops_fast.backends.triton.attention.around import copyable, mask_bounds
from einops_fast.backends.triton.attention.hopper import positions
from einops_fast.backends.triton.attention.hopper.call import numbers_of, programs_of
from einops_fast.backends.triton.attention.hopper.tiles import HopperTiling
from einops_fast.backends.triton.attention.hopper.tilings import (
    bytes_of_one,
    fitting,
    forward_shapes,
    keys_shapes,
    queries_shapes,
    shared_bytes,
)
from einops_fast.backends.triton.attention.problem import Layout, Problem, problem
from einops_fast.planning.layout import contiguous_in_order, contiguous_strides

REGISTERS = 1 << 16

SHARED = 228 << 10
"""Bytes of a multiprocessor; each program loses 1024 of them."""


def planned(heads: int, length: int, features: int, **options: Any) -> Problem:
    """Attention of equal lengths, in C order; ``added`` names what has all positions."""
    added, units = options.pop("added", ()), options.pop("units", 132)
    scores = dict.fromkeys(added, (1, length, length))
    batch = (heads,)
    spec = AttentionSpec(
        batch, batch, batch, batch, length, length, features, features, "float16", 0.1, **scores, **options
    )
    shapes = dict.fromkeys(("q", "k", "v", "out", "d_out", "dq", "dk", "dv"), (heads, length, features)) | scores
    layouts = {name: Layout(shape, contiguous_strides(shape), "float16") for name, shape in shapes.items()}
    return problem(spec, layouts, ((9, 0), units))


def with_result(tiling: HopperTiling) -> int:
    """Bytes of the kernel for the gradient of q, which leaves from memory of its own."""
    return shared_bytes(tiling) + 2 * tiling.rows * tiling.kept(0)


def forward(given: Problem) -> HopperTiling:
    return fitting(given, forward_shapes(given), given.spec.kv_len, bytes_of_one)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (64, 64)}, {"softcap": 5.0}])
@pytest.mark.parametrize("added", [(), ("bias",), ("mask",), ("bias", "mask")])
@pytest.mark.parametrize("features", [16, 32, 64, 80, 128, 192])
@pytest.mark.parametrize("heads", [8, 4096])
def test_programs_that_share_a_multiprocessor_have_room(
    heads: int, features: int, added: tuple[str, ...], options: dict[str, Any]
) -> None:
    if added and features > 128:
        pytest.skip("has no kernel")
    for length in (40, 80, 144, 200, 256, 320, 512, 600, 1024, 2048, 4096):
        given = planned(heads, length, features, added=added, **options)
        tilings = [(forward(given), bytes_of_one)]
        if features <= 128:
            keys = fitting(given, keys_shapes(given), length, shared_bytes, turned=True)
            tilings.append((keys, shared_bytes))
            queries = fitting(given, queries_shapes(given), length, with_result)
            tilings.append((queries, with_result))
        for tiling, size in tilings:
            assert tiling.programs * (size(tiling) + 2048) <= SHARED
            threads = 128 * (tiling.groups + 1)
            assert tiling.programs * threads * tiling.registers <= REGISTERS
            # So many does a product of 64 rows with a block take, and a copying warp.
            assert tiling.registers >= (64 if tiling.block <= 64 else 90)
            shared = tiling.groups * tiling.group_registers + 24
            assert 0 <= tiling.registers * (tiling.groups + 1) - shared < 8 * (tiling.groups + 1)


@pytest.mark.parametrize(
    ("heads", "length", "features", "options", "groups"),
    [
        (4096, 144, 64, {}, 1),
        (4096, 256, 32, {"added": ("bias",)}, 1),
        (4096, 320, 128, {}, 1),
        (4096, 512, 128, {}, 2),
        (4096, 256, 64, {"softcap": 5.0}, 1),
        (4096, 600, 64, {"softcap": 5.0}, 2),
        (4096, 4096, 64, {"window": (1000, 20)}, 1),
        (4096, 4096, 64, {"window": (1000, 200)}, 2),
        (4096, 256, 40, {}, 2),
        (64, 4096, 64, {}, 3),
        # As many rounds as pay with few keys only.
        (16, 4096, 64, {}, 3),
        # Two rounds of tiles of 192 queries, of which the second is a third full.
        (16, 2048, 64, {}, 1),
        (16, 2048, 64, {"causal": True}, 2),
        (4096, 144, 192, {}, 2),
    ],
)
def test_tiles_of_the_forward_kernel(
    heads: int, length: int, features: int, options: dict[str, Any], groups: int
) -> None:
    assert forward(planned(heads, length, features, **options)).groups == groups


@pytest.mark.parametrize(("length", "copied"), [(1 << 22, True), (1 << 24, False)])
def test_no_copies_of_what_takes_64_bits_inside_a_tile(length: int, copied: bool) -> None:
    """Where features lie that far apart, the general kernels read the arrays as they lie."""
    spec = AttentionSpec((2,), (2,), (2,), (2,), length, length, 128, 128, "float16", 0.1)
    shape = (2, length, 128)
    apart, beside = contiguous_in_order(shape, (0, 2, 1)), contiguous_strides(shape)
    layouts = {
        "q": Layout(shape, apart, "float16"),
        **dict.fromkeys(("k", "v", "out"), Layout(shape, beside, "float16")),
        "lse": Layout(shape[:2], (length, 1)),
    }
    given = problem(spec, layouts, ((9, 0), 132))
    found, copies = copyable.on_copies(given, ("q", "k", "v", "out"), lambda _: True)
    copied_names = set(copies.strides) if copies else set()
    assert (copied_names, found.features.wide) == (({"q"}, False) if copied else (set(), True))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("heads", "length", "units", "most"),
    [(128, 2048, 132, 1.02), (32, 4096, 132, 1.03), (16, 1024, 4, 1.01), (33, 700, 10, 1.15), (2, 500, 132, 30.0)],
)
def test_causal_tiles_are_dealt_out_evenly(heads: int, length: int, units: int, most: float, turned: bool) -> None:
    """Each tile once, and no program has ``most`` times as many blocks as there are on average."""
    given = planned(heads, length, 64, causal=True, units=units)
    tiling = HopperTiling(2, 64, 2, 64, 64, ((True,) * 3,) * 7, right=True, turned=turned)
    numbers = numbers_of(given, tiling, heads, length)
    programs = programs_of(given, tiling, heads, length)
    deal = functions_on_cpu(positions.__name__, programs=programs)["tile_of"]
    seen: list[tuple[int, int]] = []
    blocks = [0] * programs
    for turn in range(numbers.turns):
        element, start, first, *_, end = map(int, deal(turn, numbers, tiling))
        assert 0 <= element < heads
        blocks[turn % programs] += max(0, end - first)
        if start < length:
            seen.append((element, start))
        else:
            assert end <= first
    assert sorted(seen) == [(head, start) for head in range(heads) for start in range(0, length, 128)]
    assert max(blocks) <= most * sum(blocks) / units


SHAPES = [(2, 3, 200, 500), (2, 1, 200, 500), (1, 1, 200, 500), (2, 1, 1, 500), (1, 3, 200, 1), (1, 1, 1, 1)]


def planned_for(mask: Any) -> tuple[Problem, HopperTiling]:
    spec, inputs = attention((2, 3), 200, 500, mask=tuple(mask.shape))
    inputs.mask = mask
    given = problem_of(spec, tuple(vars(inputs).values()), ((9, 0), 132))
    return given, fitting(given, forward_shapes(given), spec.kv_len, bytes_of_one)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_bounds(shape: tuple[int, ...], moved: bool, turned: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(shape, generator=generator) < 0.003
    mask[..., shape[-2] // 2 :, :] &= torch.arange(shape[-1]) > shape[-1] // 3
    mask[-1, :, :64, : shape[-1] - 1] = False  # more than is looked at at a time, and all of one of two tiles
    mask[-1, ..., :64] = False
    if moved:
        mask = mask.mT.contiguous().mT
    mask = mask.to(DEVICE)
    given, tiling = planned_for(mask)
    tiling = replace(tiling, turned=turned)
    launch, places = mask_bounds.mask_bounds(given, tiling)
    (room,) = launch.rooms
    found = Poisoned().workspace(mask, room.elements, room.dtype)
    launch.call(Poisoned(), 0, mask, found)
    found = found.cpu()
    seen = (mask.mT if turned else mask).expand(2, 3, *((500, 200) if turned else (200, 500))).cpu()
    for element, rows in enumerate(seen.flatten(0, 1)):
        # Axes that merge are counted as one.
        digits = (0, element // 3, element % 3) if len(given.sizes) > 1 else (0, 0, element)
        for tile in range(-(-len(rows) // 64)):
            shown = rows[64 * tile : 64 * (tile + 1)].any(0).nonzero().flatten().tolist()
            at = sum(digit * stride for digit, stride in zip((*digits, tile), places, strict=True))
            assert found[at : at + 2].tolist() == ([shown[0], shown[-1] + 1] if shown else [rows.shape[-1], 0])
