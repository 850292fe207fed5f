"""How far masks show something, which tells Hopper's attention kernels what to leave out."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import DEVICE, Poisoned, attention

from einops_fast.backends.torch.attention.layouts import problem_of
from einops_fast.backends.triton.attention.around import mask_bounds
from einops_fast.backends.triton.attention.around.mask_bounds import is_bounded
from einops_fast.backends.triton.attention.hopper.tiles import HopperTiling
from einops_fast.backends.triton.attention.hopper.tilings import bytes_of_one, fitting, forward_shapes
from einops_fast.backends.triton.attention.problem import Problem

SHAPES = [(2, 3, 200, 500), (2, 1, 200, 500), (1, 1, 200, 500), (2, 1, 1, 500), (1, 3, 200, 1), (1, 1, 1, 1)]


def planned(mask: Any) -> tuple[Problem, HopperTiling]:
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
    given, tiling = planned(mask)
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


def test_small_problems_and_shared_keys_have_none() -> None:
    given, tiling = planned(torch.ones(2, 1, 1, 500, dtype=torch.bool))
    assert not is_bounded(given, tiling)
    with mock.patch.object(mask_bounds, "_WORTH", 0):
        assert is_bounded(given, tiling)
        assert not is_bounded(given, replace(tiling, mask=None))
        assert not is_bounded(given, replace(tiling, d_bias=True))
        assert is_bounded(given, replace(tiling, grouped=True))
        assert not is_bounded(given, replace(tiling, grouped=True, turned=True))
