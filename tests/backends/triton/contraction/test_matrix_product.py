"""Float32 products in TF32: factors are rounded as by the framework, and not cut off as by tensor cores."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
from fused_steps import ON, fused_step
from kernel_tensors import DEVICE, MEMORY, randn

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.matrix_product import to_tf32
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.ways import KernelCandidate

PRODUCTS = [
    ("ik,kj->ij", (37, 300), (300, 41)),
    ("bind,bjnd->bnij", (2, 20, 3, 16), (2, 7, 3, 16)),
    ("ecbfa,fd->abcde", (6, 5, 4, 6, 8), (6, 5)),
    ("ai,ij,jb->ab", (37, 9), (9, 17), (17, 70)),
]


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


@pytest.mark.parametrize(("equation", "shapes"), [(case[0], case[1:]) for case in PRODUCTS])
def test_products_are_those_of_rounded_factors(equation: str, shapes: Sequence[tuple[int, ...]]) -> None:
    operands = [randn(*shape, seed=at) for at, shape in enumerate(shapes)]
    exact = torch.einsum(equation, *(each.double() for each in operands))
    scale = torch.einsum(equation, *(each.double().abs() for each in operands))
    low, high = 1e-5, 1e-3
    if len(operands) == 2:  # else what comes between is rounded, too
        exact, (low, high) = torch.einsum(equation, *map(rounded, operands)), (0.0, 2e-6)
    for way in ways(equation, operands):
        found = way.run(MEMORY, 0)(*operands)
        assert low <= float(((found.double() - exact).abs() / scale).max()) <= high
