"""Attention is found in any spelling, and in nothing else; values and gradients are those of the program."""

from typing import Any

import attention_of_others  # noqa: F401
import fused_programs
import pytest
import torch
from attention_disturbed import DISTURBED
from attention_look_alikes import LOOK_ALIKES
from attention_spellings import SPELLINGS, Mask, Spelling

from einops_fast.compiler.report import FusionLog


def arguments(spelling: Spelling) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in spelling.shapes:
        if isinstance(shape, Mask):
            mask = torch.rand(shape.shape, generator=generator) < 0.6
            mask[..., 0] = True
            made.append(mask)
        else:
            made.append(torch.randn(shape, generator=generator).requires_grad_())
    return made


def check(spelling: Spelling, **options: Any) -> FusionLog:
    return fused_programs.check(spelling.function, arguments(spelling), **options)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_fused(name: str) -> None:
    log = check(SPELLINGS[name])
    assert [each.what for each in log.fused] == ["attention"], str(log)
    assert not log.missed


@pytest.mark.parametrize(
    "name",
    [
        "split",
        "expanded_heads",
        "grouped_einsums",
        "mask_of_keys_with_new_axes",
        "causal_by_positions",
        "causal_by_the_positions_of_a_cache",
        "block_mask_by_where",
        "normalized_late_with_heads_last",
        "sinks_of_heads",
        "difference_by_heads_and_queries",
        "three_terms",
        "blocks_of_keys",
    ],
)
def test_a_spelling_is_fused_for_sizes_that_change(name: str) -> None:
    log = check(SPELLINGS[name], dynamic=True)
    assert [each.what for each in log.fused] == ["attention"], str(log)
    assert not log.missed


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_left_alone(name: str) -> None:
    spelling, reason = LOOK_ALIKES[name]
    log = check(spelling)
    assert not log.fused, str(log)
    assert {each.reason for each in log.missed} == ({reason} if reason else set()), str(log)


@pytest.mark.parametrize("name", DISTURBED)
def test_a_disturbed_spelling_is_left_alone(name: str) -> None:
    log = check(DISTURBED[name])
    assert not log.fused, str(log)
