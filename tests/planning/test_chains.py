"""Plans of three and more operands for kernels: chains in one step, products of factors, axes of intermediates."""

from collections.abc import Sequence
from dataclasses import replace
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from gpu_plans import TARGET, plan

from einops_fast import fast_einsum
from einops_fast.explanation import explanation_of
from einops_fast.planning.chains import chain_of
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused, Gemm
from einops_fast.planning.target import Numerics, Operand

CHAIN = "ai,ij,jk,kb->ab"


def reads(steps: Sequence[Any]) -> list[tuple[int, ...]]:
    return [step.reads for step in steps]


def test_a_small_chain_is_one_step() -> None:
    made = plan(CHAIN, a=4096, b=4096, i=64, j=64, k=64)
    (step,) = made.steps
    assert isinstance(step, Fused)
    assert step.any_order
    assert [type(each) for each in step.library] == [Gemm] * 3
    assert sorted(slot for each in step.library for slot in each.reads) == list(range(6))
    chain = chain_of(step.loops)
    assert chain is not None
    assert (chain.sides, chain.depths) == ((1, 4096, 4096), (64, 64, 64))
    told = explanation_of(made)
    (report,) = told.steps
    assert (report.kind, report.equation, report.reads) == ("fused", CHAIN, (0, 1, 2, 3))
    assert report.cost.flops == told.flops == 2 * 4096 * (64 * 64 * 2 + 64 * 4096)
    assert report.cost.moved == 2 * (4096 * 64 * 2 + 64 * 64 * 2 + 4096 * 4096)
    assert "in one kernel, product by product, or by gemm and gemm and gemm" in str(told)
    assert told.largest_intermediate == 0


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("float16", {"i": 64, "j": 512, "k": 64}),  # no tile holds it
        ("float32", {"i": 64, "j": 64, "k": 64}),  # without tensor cores, no tile holds so much
        ("float16", {"i": 200, "j": 16, "k": 16}),
        ("float64", {"i": 64, "j": 64, "k": 64}),  # of which there are no kernels
    ],
)
def test_large_matrices_are_multiplied_in_pairs(dtype: str, sizes: dict[str, int]) -> None:
    steps = plan(CHAIN, dtype, a=4096, b=4096, **sizes).steps
    assert [len(step.reads) for step in steps] == [2, 2, 2]


def test_the_cheaper_plan_is_taken() -> None:
    """One kernel saves launches and memory traffic, but repeats some products."""
    whole = plan(CHAIN, a=4096, b=4096, i=64, j=64, k=64)
    pairs = plan(CHAIN, optimize="optimal", a=4096, b=4096, i=64, j=64, k=64)
    assert len(whole.steps) == 1 < len(pairs.steps)
    assert whole.seconds < pairs.seconds
    assert sum(cost.moved for cost in whole.costs) < sum(cost.moved for cost in pairs.costs)
    slow = TARGET.replace(ceilings=replace(TARGET.ceilings, call=0.0, flops={"float16": 1e11, "float32": 1e11}))
    terms, sizes = ["ai", "ij", "jk", "kb"], {"a": 4096, "b": 4096, "i": 128, "j": 128, "k": 16}
    shapes = [tuple(sizes[label] for label in term) for term in terms]
    operands = [Operand(shape, contiguous_strides(shape), "float16") for shape in shapes]
    bound = make_plan(parse(CHAIN, (2, 2, 2, 2)), operands, slow, Numerics("float16", "float16"))
    assert len(bound.steps) == 3  # arithmetic is what takes time there, and pairs have less of it


def test_an_order_that_was_asked_for_is_kept() -> None:
    sizes = dict.fromkeys("ab", 4096) | dict.fromkeys("ijk", 64)
    assert reads(plan(CHAIN, optimize=False, **sizes).steps) == [(0, 1), (2, 4), (3, 5)]
    assert reads(plan(CHAIN, optimize=[(0, 1, 2, 3)], **sizes).steps) == [(0, 1, 2, 3)]


# ---- which operands are multiplied together, and the axes of intermediates


@pytest.mark.parametrize("name", ["ring", "ladder"])
def test_networks_of_equal_shapes(name: str) -> None:
    letters, generator = ascii_letters[:24], np.random.default_rng(0)
    sides = [letters[at] + letters[(at + 1) % 12] for at in range(12)]
    terms = sides if name == "ring" else [side + letters[at + 12] for at, side in enumerate(sides)] + [*letters[12:]]
    output = "" if name == "ring" else letters[12]
    equation = ",".join(terms) + "->" + output
    arrays = [generator.standard_normal((3,) * len(term)) for term in terms]
    expected = np.einsum(equation, *arrays, optimize="greedy")
    np.testing.assert_allclose(fast_einsum(equation, *arrays), expected, rtol=1e-9)
    np.testing.assert_allclose(
        fast_einsum(equation, *[each.T for each in arrays]),
        np.einsum(equation, *[each.T for each in arrays], optimize="greedy"),
        rtol=1e-9,
    )
