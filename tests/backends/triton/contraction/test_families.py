"""Every kind of kernel that contracts is a candidate for a problem, and computes it: the same bits at every run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from families import DEVICE, FAMILIES, SIZES, allowed, error_of, everywhere, executed, parametrized
from fused_steps import fused_step
from kernel_tensors import MEMORY


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_there_is_such_a_candidate(name: str, large: bool) -> None:
    """Or else what is parametrized by families would test other kernels, or none."""
    family = FAMILIES[name]
    with everywhere():
        assert family.members(family.operands(large, "meta"), large)


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


REPEATED = FAMILIES if DEVICE == "cuda" else ("pointers, split", "boxes, split")
"""An interpreter does all in one order whatever is asked of it."""


@pytest.mark.parametrize("large", SIZES)
@parametrized()
def test_values(name: str, large: bool) -> None:
    """On poisoned memory; again and again, and also by a kernel that is launched anew for operands elsewhere."""
    family = FAMILIES[name]
    operands = family.operands(large)
    read = [operands[slot] for slot in fused_step(family.equation, operands).reads]
    with executed():
        for way in family.working(operands, large, 1 if DEVICE == "cpu" else 3):
            run = way.run(MEMORY, 0)
            first = run(*read)
            assert error_of(first, family.equation, operands) <= allowed(family), way.name
            if name not in REPEATED:
                continue
            for at in range(8 if DEVICE == "cuda" else 1):
                with disturbed(at):
                    again = run(*read)
                assert torch.equal(first, again), (way.name, at)
            assert torch.equal(first, way.run(MEMORY, 0)(*(each.clone() for each in read))), way.name


@pytest.mark.parametrize("name", ["pointers, split", "threads, split"])
def test_a_part_that_is_left_out_shows(name: str) -> None:
    """One of 64 parts of the longest sums, which is little beside all of their terms."""
    family = FAMILIES[name]
    left, right = family.operands(True, "cpu")
    most = left.shape[1] - left.shape[1] // 64
    wrong = (left[:, :most].double() @ right[:most].double()).to(left.dtype)
    assert error_of(wrong, family.equation, (left, right)) > 4 * allowed(family)


@pytest.mark.gpu
@parametrized("pointers, split", "boxes, split", "threads, split", "loops, split", "integers, split")
def test_on_two_streams_at_once(name: str) -> None:
    """Each has sums of parts of its own."""
    family = FAMILIES[name]
    operands, others = family.operands(True), [each.flip(0) for each in family.operands(True)]
    (way,) = family.working(operands, True, 1)
    run = way.run(MEMORY, 0)
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
