"""Which of two kernels begins while the other one ends."""

from typing import Any

import pytest
from fused_steps import ON, fused_step
from kernel_tensors import randoms

from einops_fast.backends.triton.contraction import ways as ways_to_run
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.ways import CopyCandidate, KernelCandidate


@pytest.fixture(params=[False, True])
def early(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the device lets a kernel begin while the one before it ends."""
    monkeypatch.setattr(ways_to_run, "follow_early", lambda: request.param)
    return bool(request.param)


def ways(equation: str, *shapes: tuple[int, ...]) -> list[Any]:
    return list(kernel_candidates(fused_step(equation, randoms(shapes, "float16", "meta")), "float16", ON))


def test_partial_sums_lead(early: bool) -> None:
    """What adds them up may begin early; nothing follows a whole sum."""
    found = [way for way in ways("ik,kj->ij", (128, 1 << 16), (1 << 16, 128)) if isinstance(way, KernelCandidate)]
    assert {way.tiling.split > 1 for way in found} == {False, True}
    assert all(way.leads == (early and way.tiling.split > 1) and not way.follows for way in found)


def test_a_kernel_follows_a_copy(early: bool) -> None:
    """It waits for the copy that is launched last."""
    found = [way for way in ways("acd,dbc->ab", (288, 64, 288), (288, 288, 64)) if isinstance(way, CopyCandidate)]
    assert found
    for way in found:
        last, then = way._copies[max(way._copies)], way._then
        assert then.follows == last.leads == early  # type: ignore[attr-defined]
        assert then.leads == (early and then.tiling.split > 1)  # type: ignore[attr-defined]


def test_a_chain_follows_nothing(early: bool) -> None:
    """Neither it nor the copy before it says anything about the other."""
    (copy, *_), (chain, *_) = ways("ij,j->ij", (64, 64), (64,)), ways("ai,ij,jb->ab", (4096, 32), (32, 16), (16, 4096))
    assert isinstance(chain.tiling, ChainTiling)
    CopyCandidate({0: copy}, chain, lambda: chain)
    assert (chain._in_turn(), copy._in_turn()) == (chain.tiling, copy.tiling)
