"""Every kind of kernel that contracts has a problem that it is a candidate for, and computes it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from families import (
    DEVICE,
    FAMILIES,
    SIZES,
    allowed,
    error_of,
    everywhere,
    executed,
    parametrized,
)
from fused_steps import fused_step
from kernel_problems import MEMORY
from poisoned_integers import Poisoned as PoisonedIntegers

from einops_fast.planning.cost import is_integer


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_there_is_such_a_candidate(name: str, large: bool) -> None:
    """Or else what is parametrized by families would test other kernels, or none."""
    family = FAMILIES[name]
    with everywhere():
        assert family.members(family.operands(large, "meta"), large)


@pytest.mark.parametrize("large", SIZES)
@parametrized()
def test_values(name: str, large: bool) -> None:
    family = FAMILIES[name]
    operands = family.operands(large)
    memory = PoisonedIntegers() if is_integer(family.dtype) else MEMORY
    read = [operands[slot] for slot in fused_step(family.equation, operands).reads]
    with executed():
        for way in family.working(operands, large, 1 if DEVICE == "cpu" else 3):
            assert error_of(way.run(memory, 0)(*read), family.equation, operands) <= allowed(family), way.name


@pytest.mark.parametrize("name", ["pointers, split", "threads, split"])
def test_a_part_that_is_left_out_shows(name: str) -> None:
    """One of 64 parts of the longest sums, which is little beside all of their terms."""
    family = FAMILIES[name]
    left, right = family.operands(True, "cpu")
    most = left.shape[1] - left.shape[1] // 64
    wrong = (left[:, :most].double() @ right[:most].double()).to(left.dtype)
    assert error_of(wrong, family.equation, (left, right)) > 4 * allowed(family)
