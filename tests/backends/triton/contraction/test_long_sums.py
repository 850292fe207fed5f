"""What float32 products round off: long sums without tensor cores, and factors rounded to TF32."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
from fused_steps import ON, fused_step
from gluon_on_cpu import by_threads_on_cpu
from kernel_tensors import DEVICE, MEMORY, randn

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.matrix_product import to_tf32
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.problems import (
    Contraction,
    layouts,
    problem,
)
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.contraction.threads.tilings import tiling_of
from einops_fast.backends.triton.contraction.ways import Candidate, KernelCandidate
from einops_fast.backends.triton.launching.launch import interpreted

on_cpu = pytest.mark.skipif(DEVICE == "cuda" or not interpreted(), reason="Triton's functions aren't Python's")


def in_chunks(left: Any, right: Any, step: int) -> Any:
    """A matrix product in float32: steps are added up to sums of 128 products, and those to totals."""
    total = torch.zeros(len(left), right.shape[1])
    for chunk in range(0, len(right), 128):
        total += sum(
            left[:, at : at + step] @ right[at : at + step] for at in range(chunk, min(chunk + 128, len(right)), step)
        )
    return total


def check(found: Any, expected: Any, theirs: Any) -> None:
    ours, others = found.double() - expected, theirs.double() - expected
    assert ours.square().mean() <= 4 * others.square().mean()
    assert ours.abs().max() <= 2 * others.abs().max()


def contraction_of(left: Any, right: Any) -> Contraction:
    step = fused_step("ik,kj->ij", (left, right))
    loops = problem(step, layouts(step)[0])
    assert isinstance(loops, Contraction)
    return loops


@on_cpu
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("shape", [((32,), (32,), 16, 1, 2), ((16, 8), (16, 4), 8, 1, 3)])
def test_by_threads(shape: tuple[tuple[int, ...], tuple[int, ...], int, int, int], split: int) -> None:
    left, right = randn(24, 1024 * split), randn(1024 * split, 20, seed=1)
    tiling = tiling_of(contraction_of(left, right), *shape, split=split)
    assert tiling is not None
    parts = torch.full((split, 24, 20), torch.nan)
    by_threads_on_cpu(tiling, left, right, parts)
    check(parts.sum(0), left.double() @ right.double(), in_chunks(left, right, 1))


@on_cpu
@pytest.mark.parametrize(("columns", "in_two"), [(64, False), (96, True)])
def test_by_blocks(columns: int, in_two: bool) -> None:
    """Of small steps; also where columns are in two parts."""
    left, right = randn(128, 4096), randn(4096, columns, seed=1)
    ways = unsplit(kernel_candidates(fused_step("ik,kj->ij", (left, right)), "float32", ON))
    way = next(
        way
        for way in ways
        if way.tiling.rows.block == 128 and way.tiling.contracted.block == 16 and way.tiling.in_two == in_two
    )
    check(way.run(MEMORY, 0)(left, right), left.double() @ right.double(), in_chunks(left, right, 16))


def unsplit(ways: Sequence[Candidate]) -> list[KernelCandidate]:
    return [way for way in ways if isinstance(way, KernelCandidate) and way.tiling.split == 1]


LONG = [
    ("ij,jk->ik", "mk", "kn"),
    ("ij,kj->ik", "mk", "nk"),
    ("ji,jk->ik", "km", "kn"),
    ("aij,jbi->ab", "mkx", "xnk"),
    ("iaj,jib->ab", "xmk", "kxn"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("k", [512, 1728, 8192])
@pytest.mark.parametrize(("equation", "first", "second"), LONG)
def test_every_kernel_on_a_gpu(equation: str, first: str, second: str, k: int) -> None:
    """The best prediction, and both kernels with the sum in one part, against torch in the same precision."""
    sizes = {"m": 512, "n": 384, "x": 8 if "x" in first else 1, "k": k // 8 if "x" in first else k}
    operands = [randn(*(sizes[each] for each in term), seed=at) for at, term in enumerate((first, second))]
    expected = torch.einsum(equation, *(each.double() for each in operands))
    theirs = torch.einsum(equation, *operands)
    step = fused_step(equation, operands)
    read = [operands[slot] for slot in step.reads]
    ways = kernel_candidates(step, "float32", ON)
    whole = [next((way for way in unsplit(ways) if way.kind is kind), None) for kind in (ContractionTiling, FmaTiling)]
    for way in (ways[0], *whole):
        if way is not None:
            check(way.run(MEMORY, 0)(*read), expected, theirs)


@triton.jit
def _round_kernel(numbers, results):  # type: ignore[no-untyped-def]
    at = triton.language.arange(0, 4096)
    triton.language.store(results + at, to_tf32(triton.language.load(numbers + at)))


def rounded(x: Any) -> Any:
    """To 11 significant bits, halves away from zero, in float64; not for the smallest numbers, which have fewer."""
    fraction, exponent = torch.frexp(x.double())
    return torch.ldexp((fraction.abs() * 2048 + 0.5).floor() / 2048 * fraction.sign(), exponent)


def ways(equation: str, operands: Sequence[Any]) -> list[KernelCandidate]:
    """The first of each kernel that multiplies matrices."""
    found = kernel_candidates(fused_step(equation, operands), "float32", ON, "tf32")
    kernels = [way for way in found if isinstance(way, KernelCandidate)]
    firsts = {way.kind: way for way in reversed(kernels) if way.kind in (ContractionTiling, ChainTiling)}
    assert firsts
    return list(firsts.values())


def test_every_kind_of_number() -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (4096,), dtype=torch.int64).to(torch.int32)
    # Halves, among them those that carry into the exponent; the largest number; zeros, infinities, the GPU's own NaN.
    special = [0x3F801000, 0x3F803000, 0x3FFFF000, 0x3F800FFF, 0x7F7FFFFF, 0, 0x7F800000, 0x7FFFFFFF, 0x7FC00000, 1]
    bits[: len(special)] = torch.tensor(special, dtype=torch.int32)
    bits[len(special) : 2 * len(special)] = bits[: len(special)] | -(1 << 31)
    numbers = bits.view(torch.float32).to(DEVICE)
    found = torch.full_like(numbers, -1.0)
    _round_kernel[(1,)](numbers, found)
    expected = torch.where(numbers.isfinite(), rounded(numbers).float(), numbers)
    normal = ~(numbers.abs() < torch.finfo(torch.float32).tiny)
    assert torch.equal(found.isnan(), numbers.isnan())
    known = normal & ~numbers.isnan()
    assert torch.equal(found[known], expected[known])
    assert torch.equal(found.signbit()[~numbers.isnan()], numbers.signbit()[~numbers.isnan()])
    assert not (found[~numbers.isnan()].view(torch.int32) & 0x1FFF).any()
