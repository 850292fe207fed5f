"""Which of two kernels begins while the other one ends."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.triton.contraction import ways as ways_to_run
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.ways import CopyCandidate, KernelCandidate
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused
from einops_fast.planning.target import Numerics, Operand, Target

ON = gpu_ceilings("H200")


def ways(equation: str, *shapes: tuple[int, ...]) -> list[Any]:
    operands = [Operand(shape, contiguous_strides(shape), "float16") for shape in shapes]
    where = Target("torch", "cuda:0", ON, kernels=frozenset({"float16"}))
    numerics = Numerics("float16", "float16", gemm=True)
    (step,) = make_plan(parse(equation, tuple(map(len, shapes))), operands, where, numerics).steps
    assert isinstance(step, Fused)
    return list(kernel_candidates(step, "float16", ON))


@pytest.mark.parametrize("early", [False, True])
def test_partial_sums_lead(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What adds them up may begin early, where the device is able to; nothing follows a whole sum."""
    monkeypatch.setattr(ways_to_run, "follow_early", lambda: early)
    found = [way for way in ways("ik,kj->ij", (128, 1 << 16), (1 << 16, 128)) if isinstance(way, KernelCandidate)]
    assert {way.tiling.split > 1 for way in found} == {False, True}
    for way in found:
        assert way.leads == (early and way.tiling.split > 1)
        assert not way.follows


@pytest.mark.parametrize("early", [False, True])
def test_a_kernel_follows_a_copy(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the copy that is launched last."""
    monkeypatch.setattr(ways_to_run, "follow_early", lambda: early)
    found = [way for way in ways("acd,dbc->ab", (288, 64, 288), (288, 288, 64)) if isinstance(way, CopyCandidate)]
    found = [way for way in found if isinstance(way._then, KernelCandidate)]
    assert found
    for way in found:
        last = way._copies[max(way._copies)]
        assert isinstance(last, KernelCandidate)
        assert isinstance(way._then, KernelCandidate)
        assert way._then.follows == last.leads == early
        assert way._then.leads == (early and way._then.tiling.split > 1)


def test_a_chain_follows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor the copy before it says anything about the other."""
    monkeypatch.setattr(ways_to_run, "follow_early", lambda: True)
    (copy, *_), (chain, *_) = ways("ij,j->ij", (64, 64), (64,)), ways("ai,ij,jb->ab", (4096, 32), (32, 16), (16, 4096))
    assert isinstance(chain.tiling, ChainTiling)
    CopyCandidate({0: copy}, chain, lambda: chain)
    assert chain._in_turn() == chain.tiling
    assert copy._in_turn() == copy.tiling
