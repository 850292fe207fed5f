"""The same bits at every run: sums are added up in one order, whatever else the device has to do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")

from families import (  # noqa: E402
    DEVICE,
    FAMILIES,
    SIZES,
    allowed,
    error_of,
    executed,
    parametrized,
)
from fused_steps import fused_step  # noqa: E402
from kernel_problems import MEMORY  # noqa: E402
from poisoned_integers import Poisoned as PoisonedIntegers  # noqa: E402

from einops_fast.planning.cost import is_integer  # noqa: E402

REPEATS = 8 if DEVICE == "cuda" else 1
# An interpreter does all in one order whatever is asked of it.
KINDS = () if DEVICE == "cuda" else ("pointers, split", "boxes, split")


@contextmanager
def disturbed(at: int) -> Iterator[None]:
    """Every second run has a product of matrices beside it, so that programs begin and end in another order."""
    if DEVICE == "cpu" or at % 2 == 0:
        yield
        return
    beside = torch.cuda.Stream()
    matrix, result = torch.ones(2, 2048, 2048, device="cuda")
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            torch.mm(matrix, matrix, out=result)
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("large", SIZES)
@parametrized(*KINDS)
def test_repeated(name: str, large: bool) -> None:
    """On poisoned memory, and also by a kernel that is launched anew for operands elsewhere."""
    family = FAMILIES[name]
    operands = family.operands(large)
    memory = PoisonedIntegers() if is_integer(family.dtype) else MEMORY
    read = [operands[slot] for slot in fused_step(family.equation, operands).reads]
    with executed():
        for way in family.working(operands, large, 1 if DEVICE == "cpu" else 2):
            run = way.run(memory, 0)
            first = run(*read)
            # The same wrong bits would be no comfort.
            assert error_of(first, family.equation, operands) <= allowed(family), way.name
            for at in range(REPEATS):
                with disturbed(at):
                    again = run(*read)
                assert torch.equal(first, again), (way.name, at)
            assert torch.equal(first, way.run(memory, 0)(*(each.clone() for each in read))), way.name


@pytest.mark.gpu
@parametrized("pointers, split", "boxes, split", "threads, split", "loops, split", "integers, split")
def test_on_two_streams_at_once(name: str) -> None:
    """Each has sums of parts of its own."""
    family = FAMILIES[name]
    operands, others = family.operands(True), [each.flip(0) for each in family.operands(True)]
    (way,) = family.working(operands, True, 1)
    run = way.run(PoisonedIntegers() if is_integer(family.dtype) else MEMORY, 0)
    expected = [run(*operands), run(*others)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results: list[list[Any]] = [[], []]
    for _ in range(10):
        for stream, given, found in zip(streams, (operands, others), results, strict=True):
            with torch.cuda.stream(stream):
                found.append(run(*given))
    torch.cuda.synchronize()
    for wanted, found in zip(expected, results, strict=True):
        assert all(torch.equal(wanted, each) for each in found), name
