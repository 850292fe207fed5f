"""Our own kernels against float64, every tiling: on a GPU, or in Triton's interpreter where there is none."""

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fused_steps import COMPLEX, KERNEL_DTYPES, ON, fused_step
from kernel_problems import CHAINS, FACTORED, LAYOUTS, LOOPS, MATRICES, check, problems
from kernel_tensors import DEVICE, MEMORY, Poisoned, decided, randn, randoms

from einops_fast import autotune, fast_einsum
from einops_fast.backends.triton.contraction.candidates import kernel_candidate, kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.problems import ChainProblem, Contraction, Reduction
from einops_fast.backends.triton.contraction.ways import Candidate, CopyCandidate, KernelCandidate

# The interpreter takes milliseconds for each program.
MOST = 4 if DEVICE == "cuda" else 2


def ways(equation: str, operands: Sequence[Any], most: int = MOST) -> list[Candidate]:
    """A sample of the kernels for a contraction, the same in every run: the first, some others, one for any size."""
    dtype = str(operands[0].dtype).removeprefix("torch.")
    if DEVICE == "cpu" and dtype in ("bfloat16", "float64"):
        most = 1
    step = fused_step(equation, operands)
    first, *others = kernel_candidates(step, dtype, ON)
    chance = random.Random(zlib.crc32(f"{equation} {dtype}".encode()))
    found = [first, *chance.sample(others, min(most - 1, len(others)))]
    return [*found, *filter(None, [generic_kernel(step, dtype, ON)])]


RIGHT = [
    (case[0], case[1:], dtype, kind)
    for cases, dtypes, kind in (
        (MATRICES + LOOPS, KERNEL_DTYPES, None),
        (FACTORED, ("float16", "bfloat16"), None),
        (CHAINS, KERNEL_DTYPES, ChainTiling),
        (MATRICES[::4] + LOOPS, COMPLEX, ReductionTiling),
    )
    for dtype in dtypes
    for case in cases
]
"""Problems, and of which kind all their kernels are, if of one."""


@pytest.mark.parametrize(("equation", "shapes", "dtype", "kind"), RIGHT)
def test_kernels_are_right(equation: str, shapes: Sequence[tuple[int, ...]], dtype: str, kind: Any) -> None:
    operands = randoms(shapes, dtype)
    found = ways(equation, operands, MOST if dtype == "float16" else MOST // 2)
    # All but chains have a kernel for any size, too.
    assert found[-1]._generic == (kind is not ChainTiling)
    assert all(kind in (None, way.kind) for way in found)
    check(equation, operands, found)


@pytest.mark.parametrize("conjugated", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bij->bi", "i,j->ij", "ij,kj->ki"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_conjugates_are_read_as_they_lie(dtype: str, equation: str, conjugated: tuple[int, ...]) -> None:
    sizes = {"b": 2, "i": 7, "j": 12, "k": 5}
    shapes = [tuple(sizes[label] for label in term) for term in equation.partition("->")[0].split(",")]
    operands = [each.conj() if at in conjugated else each for at, each in enumerate(randoms(shapes, dtype))]
    wanted = torch.einsum(equation, *[each.to(torch.complex128) for each in operands])
    step = fused_step(equation, operands)
    for way in [*kernel_candidates(step.replace(conjugated=conjugated), dtype, ON)[:2], generic_kernel(
        step.replace(conjugated=conjugated), dtype, ON)]:  # fmt: skip
        assert way is not None
        torch.testing.assert_close(way.run(MEMORY, 0)(*operands).to(torch.complex128), wanted, rtol=1e-4, atol=1e-4)
    with decided(lambda found: found[0]) as ran, autotune("wait"):
        found = fast_einsum(equation, *operands)
    assert ran
    torch.testing.assert_close(found.to(torch.complex128), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_plans_tell_conjugates_from_what_is_in_memory() -> None:
    one, other = randn(2, 40, 3, dtype="complex64"), randn(2, 40, 3, dtype="complex64", seed=1)
    with decided(lambda found: found[0]) as ran, autotune("wait"):
        plain = fast_einsum("bij,bij->bi", one, other)
        assert ran
        conjugate = fast_einsum("bij,bij->bi", one, other.conj())
    torch.testing.assert_close(plain, torch.einsum("bij,bij->bi", one, other))
    torch.testing.assert_close(conjugate, torch.einsum("bij,bij->bi", one, other.conj()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("equation", "shapes", "dtype"),
    [(case[0], case[1:], "float16") for case in (*MATRICES[1:10:2], *LOOPS[1:10:2], CHAINS[4])]
    + [(case[0], case[1:], "complex64") for case in LOOPS[1:10:3]],
)
def test_layouts_do_not_matter(equation: str, shapes: Sequence[tuple[int, ...]], dtype: str, layout: str) -> None:
    plain = randoms(shapes, dtype)
    for at, operand in enumerate(plain):
        for relaid in LAYOUTS[layout](operand):
            operands = [*plain[:at], relaid, *plain[at + 1 :]]
            check(equation, operands, ways(equation, operands, MOST // 2))


@problems(("ij,j->i", (5, 33), (33,)), ("ai,ij,jb->ab", (20, 9), (9, 5), (5, 33)))
def test_infinity_beyond_the_edge_stays_out(equation: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """A tile reaches beyond a summed extent; what an operand without that axis has there must not count."""
    operands = [operand.abs_() for operand in randoms(shapes)]
    operands[0][3, 2] = float("inf")
    for way in ways(equation, operands):
        result = way.run(MEMORY, 0)(*operands)
        assert (result[3] == float("inf")).all()
        assert result[[at for at in range(shapes[0][0]) if at != 3]].isfinite().all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@problems(
    ("bij,bkj->bik", (3, 20, 33), (3, 19, 33)),
    ("ijb,bkj->bik", (20, 33, 4), (4, 19, 33)),
    ("acd,dbc->ab", (18, 10, 12), (12, 17, 10)),
)
def test_kernels_on_copies_are_right(equation: str, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
    operands = randoms(shapes, dtype)
    found = kernel_candidates(fused_step(equation, operands), dtype, ON)
    copying = {way.name.split(", contraction")[0]: way for way in found if way.name.startswith("copy")}
    assert copying
    check(equation, operands, list(copying.values()))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_columns_in_two_parts_at_odd_places(dtype: str, offset: int) -> None:
    """These aren't copied ahead of time, so that both parts lie at one address, one after the other."""
    left = randn(2 * 130 * 140 + offset, dtype=dtype)[offset:].view(2, 130, 140)
    right = randn(130 * 65 + offset, dtype=dtype, seed=1)[offset:].view(130, 65)
    found = kernel_candidates(fused_step("adb,dc->acb", (left, right)), dtype, ON)
    kernels = [way for way in found if isinstance(way, KernelCandidate) and way.kind is ContractionTiling]
    in_two = [way for way in kernels if way.tiling.in_two]
    assert in_two
    check("adb,dc->acb", (left, right), in_two[: 2 * MOST])


@problems(*MATRICES[4:7], *LOOPS[2:5], CHAINS[4])
def test_wide_offsets(equation: str, shapes: Sequence[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The 64-bit way, which only arrays of gigabytes take."""
    monkeypatch.setattr(Contraction, "wide", True)
    monkeypatch.setattr(Reduction, "wide", True)
    monkeypatch.setattr(ChainProblem, "wide", True)
    operands = randoms(shapes, "float16")
    check(equation, operands, ways(equation, operands))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_precision_of_float32_is_what_was_asked_for(precision: str) -> None:
    left, right = randn(256, 512), randn(512, 256, seed=1)
    expected = left.double() @ right.double()
    way = kernel_candidates(fused_step("ik,kj->ij", (left, right)), "float32", ON, precision)[0]
    error = ((way.run(MEMORY, 0)(left, right).double() - expected).norm() / expected.norm()).item()
    low, high = {"ieee": (0.0, 1e-6), "tf32": (1e-4, 2e-3), "tf32x3": (0.0, 5e-6)}[precision]
    assert low <= error <= high


def first(equation: str, dtype: str, *shapes: tuple[int, ...]) -> Any:
    return kernel_candidates(fused_step(equation, randoms(shapes, dtype, "meta")), dtype, ON)[0]


def test_copies_that_there_is_no_memory_for() -> None:
    """Operands are read as they lie then, and no more memory is asked for in vain."""
    asked = []

    class Full(Poisoned):
        exhausted = MemoryError

        def empty(self, like: Any, shape: Any, strides: Any) -> Any:
            if shape != (18, 17):
                asked.append(shape)
                raise MemoryError
            return super().empty(like, shape, strides)

    operands = randoms(((18, 10, 12), (12, 17, 10)), "float16")
    step = fused_step("acd,dbc->ab", operands)
    way = next(way for way in kernel_candidates(step, "float16", ON) if isinstance(way, CopyCandidate))
    run = way.run(Full(), 0)
    read = [operands[slot] for slot in step.reads]
    first, again = run(*read), run(*read)
    assert len(asked) == 1
    assert torch.equal(first, again)
    torch.testing.assert_close(first, torch.einsum("acd,dbc->ab", *operands), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("equation", "shapes", "dtypes"),
    [
        ("aedf,bfce->abcd", ((4, 6, 5, 20), (3, 20, 8, 6)), ("float16", "float32")),
        ("ik,kj->ij", ((100, 300), (300, 50)), ("float16", "float32")),
        ("bi,oij,bj->bo", ((40, 6), (9, 6, 45), (40, 45)), ("float16",)),
        ("ij,j->ji", ((100, 300), (300,)), ("float16", "float32")),
        ("ij,ij->i", ((100, 300), (100, 300)), ("float16", "float32")),
    ],
)
def test_a_kernel_is_found_by_its_name(equation: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
    """That is how a choice on disk is taken up again; each has a name of its own."""
    for dtype in dtypes:
        step = fused_step(equation, randoms(shapes, dtype))
        ways = {way.name: way for way in kernel_candidates(step, dtype, ON)}
        assert len(ways) == len(kernel_candidates(step, dtype, ON))
        for name in [*ways][::9]:
            found = kernel_candidate(name, step, dtype, ON)
            assert found is not None
            assert getattr(found, "tiling", None) == getattr(ways[name], "tiling", None)
        assert kernel_candidate("contraction of nothing", step, dtype, ON) is None
