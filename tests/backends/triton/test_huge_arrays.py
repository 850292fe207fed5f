"""Arrays with more elements than 32 bits count, for every kind of kernel that takes them.

Each problem has less than 20 GB. What is compared with it is made of slices, one after the other.
"""

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from families import Family, everywhere
from fused_steps import ON, fused_step
from kernel_tensors import MEMORY

from einops_fast import fast_einsum
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.planning.cost import ITEM_SIZES, is_integer
from einops_fast.planning.steps import Fused, Loop

LIMIT = 1 << 31
SLICE = 1 << 26
"""Elements that are compared at once."""

ROWS = LIMIT // 1024 + 513
SUMMED = LIMIT // 256 + 513


def huge(equation: str, shapes: str, kind: type, dtype: str = "float16", split: bool = False) -> Family:
    """A problem with an array of more than `LIMIT` elements, and the kernels that are meant."""

    def has(tiling: Any) -> bool:
        return split == (kind is not ChainTiling and tiling.split > 1)

    return Family(equation, "", shapes, kind, has, dtype=dtype)


HUGE: dict[str, Family] = {
    "outer product": huge("i,j->ij", "50000 45000", ReductionTiling),
    "scale": huge("ij,j->ij", "50000x45000 45000", ReductionTiling),
    "scale the other way round": huge("ij,i->ji", "50000x45000 50000", ReductionTiling),
    "sum of rows": huge("ij->i", "50000x45000", ReductionTiling),
    "sum of columns": huge("ij->j", "50000x45000", ReductionTiling),
    "sum of columns in parts": huge("ij->j", "9000000x250", ReductionTiling, split=True),
    "dot": huge("ij,ij->", "50000x45000 50000x45000", ReductionTiling, "bfloat16", split=True),
    "result of pointers": huge("ik,kj->ij", "50000x32 32x45000", ContractionTiling),
    "result of boxes": huge("ik,kj->ij", "50000x32 32x45000", BoxTiling),
    "loose result of boxes": huge("ik,jk->ij", "50000x32 45001x32", BoxTiling),
    "batch for pointers": huge("bik,bkj->bij", "600000x64x16 600000x16x64", ContractionTiling),
    "batch for boxes": huge("bik,bkj->bij", "600000x64x16 600000x16x64", BoxTiling),
    "batch for threads": huge("bik,bkj->bij", "600000x64x8 600000x8x64", FmaTiling, "float32"),
    "batch of integers": huge("bik,bkj->bij", "600000x64x8 600000x8x64", ContractionTiling, "int8"),
    "rows for pointers": huge("ik,kj->ij", f"{ROWS}x1024 1024x24", ContractionTiling),
    "rows for boxes": huge("ik,kj->ij", f"{ROWS}x1024 1024x64", BoxTiling),
    "summed by boxes in parts": huge("ki,kj->ij", f"{SUMMED}x256 {SUMMED}x64", BoxTiling, split=True),
    "summed by pointers in parts": huge("ki,kj->ij", f"{SUMMED}x256 {SUMMED}x40", ContractionTiling, split=True),
    "chain": huge("ai,ij,jb->ab", "50000x24 24x16 16x45000", ChainTiling),
}


@pytest.fixture(autouse=True)
def memory_back() -> Iterator[None]:
    """No test finds what another one has left."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Random ones, made where they stay."""
    if is_integer(dtype):
        return torch.randint(-128, 128, shape, dtype=getattr(torch, dtype), device="cuda")
    return torch.randn(shape, dtype=getattr(torch, dtype), device="cuda")


def slices(size: int, each: int) -> Iterator[tuple[int, int]]:
    """Where parts of an axis begin, and how long they are, if each position has so many elements."""
    step = max(1, SLICE // max(each, 1))
    return ((start, min(step, size - start)) for start in range(0, size, step))


def compare(equation: str, operands: Sequence[Any], result: Any) -> None:
    """Every element of the result, or a sum of everything, against slices of the problem in float32."""
    terms, output = equation.split("->")
    inputs = terms.split(",")
    along = output[0] if output else inputs[0][0]
    (extent,) = {each.shape[term.index(along)] for term, each in zip(inputs, operands, strict=True) if along in term}
    # The largest array counts.
    each = max(array.numel() for array in (*operands, result)) // extent
    wide = torch.float32 if output else torch.float64
    total, squares = 0.0, 0.0
    for start, size in slices(extent, each):
        parts = [
            (array.narrow(term.index(along), start, size) if along in term else array).to(wide)
            for term, array in zip(inputs, operands, strict=True)
        ]
        expected, square = torch.einsum(equation, *parts), torch.einsum(equation, *map(torch.square, parts))
        if output:
            check(result.narrow(0, start, size), expected, square, start)
        else:
            total, squares = total + expected, squares + square
    if not output:
        check(result, total, squares, 0)


def check(found: Any, expected: Any, squares: Any, start: int) -> None:
    """Errors are small beside what is expected and what sums of so many numbers of either sign usually are."""
    if not found.is_floating_point():
        assert torch.equal(found, expected.to(torch.int64).to(found.dtype)), start  # exact in float32 up to there
        return
    limits = torch.finfo(found.dtype)
    # Sums are made in float32, here in another order.
    most = (6 * limits.eps if found.dtype.itemsize == 2 else 0.0) + 256 * torch.finfo(torch.float32).eps
    scale = (squares.sqrt() + expected.abs()).clamp_min(limits.smallest_normal)
    error = (found.to(expected.dtype) - expected).abs() / scale
    assert not bool(error.isnan().any()), start
    assert float(error.max()) <= most, start


@pytest.mark.parametrize("name", HUGE)
def test_sizes_and_candidates(name: str) -> None:
    """The largest array is beyond 32 bits, all fit in 20 GB, and there is such a kernel for them."""
    case = HUGE[name]
    operands = case.operands(True, "meta")
    elements = [array.numel() for array in (*operands, torch.einsum(case.equation, *operands))]
    assert max(elements) > LIMIT
    assert sum(elements) * ITEM_SIZES[case.dtype] < 20e9
    with everywhere():
        assert case.members(operands, True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", HUGE)
def test_values(name: str) -> None:
    case = HUGE[name]
    if not case.available:
        pytest.skip("nothing executes it here")
    operands = [numbers(shape, case.dtype) for shape in case.sizes(True)]
    read = [operands[slot] for slot in fused_step(case.equation, operands).reads]
    for way in case.working(operands, True, 2):
        result = way.run(MEMORY, 0)(*read)
        compare(case.equation, operands, result)
        del result


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((50_000, 45_000), (1, 0)), ((1500, 1201, 1300), (2, 0, 1)), ((1500, 1201, 1300), (1, 0, 2))],
)
def test_permuted_copies(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    array = numbers(shape, dtype).permute(axes)
    labels = "ijk"[: len(shape)]
    loops = tuple(map(Loop, labels, array.shape, [(stride,) for stride in array.stride()], [True] * len(shape)))
    step = Fused((0,), labels, tuple(array.shape), loops, False, ())
    copy = kernel_candidates(step, dtype, ON)[0].run(MEMORY, 0)(array)
    assert copy.is_contiguous()
    for start, size in slices(array.shape[0], array[0].numel()):
        assert torch.equal(copy.narrow(0, start, size), array.narrow(0, start, size)), start


@pytest.mark.gpu
def test_a_call() -> None:
    """From an equation, by what is chosen without measuring."""
    operands = [numbers((600_000, 64, 16), "float16"), numbers((600_000, 16, 64), "float16")]
    result = fast_einsum("bik,bkj->bij", *operands, autotune="never")
    compare("bik,bkj->bij", operands, result)
