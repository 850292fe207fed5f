"""Every kind of kernel that contracts has a problem that it is a candidate for, and computes it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from families import DEVICE, FAMILIES, allowed, error_of, everywhere, executed, parametrized
from fused_steps import fused_step
from test_integer_kernels import Poisoned as PoisonedIntegers
from test_kernels import MEMORY

from einops_fast.cost import is_integer

SIZES = [False, pytest.param(True, marks=pytest.mark.gpu)]


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
        found = family.members(operands, large)
        assert found
        for way in found[: 1 if DEVICE == "cpu" else 3]:
            assert error_of(way.run(memory, 0)(*read), family.equation, operands) <= allowed(family), way.name
