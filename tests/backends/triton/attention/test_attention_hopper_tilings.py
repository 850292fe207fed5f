"""Which tiles Hopper's attention kernels have, that there is room for them, and how far masks show something."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_problems import DEVICE, Poisoned, attention

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention.layouts import problem_of
from einops_fast.backends.triton.attention.around import mask_bounds
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
from einops_fast.planning.layout import contiguous_strides

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
