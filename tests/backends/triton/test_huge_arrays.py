"""Arrays with more elements than 32 bits count, for every kind of kernel that takes them; without a GPU, small ones.

Each problem has less than 20 GB. What is compared with it is made of slices, one after the other.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")

from families import DEVICE, compiles, everywhere, executed  # noqa: E402
from fused_steps import ON, fused_step  # noqa: E402
from kernel_problems import MEMORY  # noqa: E402
from poisoned_integers import Poisoned as PoisonedIntegers  # noqa: E402

from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling  # noqa: E402
from einops_fast.backends.triton.contraction.candidates import kernel_candidates  # noqa: E402
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling  # noqa: E402
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling  # noqa: E402
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling  # noqa: E402
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling  # noqa: E402
from einops_fast.backends.triton.contraction.ways import Candidate, CopyCandidate  # noqa: E402
from einops_fast.backends.triton.launching.launch import copies_boxes, interpreted  # noqa: E402
from einops_fast.planning.cost import ITEM_SIZES, is_integer  # noqa: E402

if DEVICE == "cpu" and not interpreted():
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)

LIMIT = 1 << 31
SLICE = 1 << 26
"""Elements that are compared at once."""


@dataclass(frozen=True)
class Huge:
    """A problem with an array of more than `LIMIT` elements, and the kernels that are meant.

    Attributes:
        equation: the problem.
        sizes, small: of its axes by label, and where there is no GPU.
        dtype: of all arrays.
        kind: of the tiling.
        split: sums are in parts.
    """

    equation: str
    sizes: dict[str, int]
    small: dict[str, int]
    dtype: str
    kind: type
    split: bool = False

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        terms, result = self.equation.split("->")
        return [tuple(sizes[label] for label in term) for term in (*terms.split(","), result)]

    def members(self, operands: Sequence[Any]) -> list[Candidate]:
        found = kernel_candidates(fused_step(self.equation, operands), self.dtype, ON)
        return [
            way
            for way in found
            if way.kind is self.kind and not isinstance(way, CopyCandidate) and self.split == _in_parts(way)
        ]


def _in_parts(way: Any) -> bool:
    return bool(way.kind is not ChainTiling and way.tiling.split > 1)


_OUTER = {"i": 50_000, "j": 45_000}
_FEW = {"i": 70, "j": 90, "k": 24, "b": 5, "l": 9, "a": 40}

HUGE: dict[str, Huge] = {
    "outer product": Huge("i,j->ij", _OUTER, _FEW, "float16", ReductionTiling),
    "outer product of integers": Huge("i,j->ij", _OUTER, _FEW, "int8", ReductionTiling),
    "scale": Huge("ij,j->ij", _OUTER, _FEW, "float16", ReductionTiling),
    "scale the other way round": Huge("ij,i->ji", _OUTER, _FEW, "float16", ReductionTiling),
    "batch of outer products": Huge(
        "bi,bj->bij", {"b": 600_000, "i": 60, "j": 64}, _FEW, "bfloat16", ReductionTiling
    ),
    "sum of rows": Huge("ij->i", _OUTER, _FEW, "float16", ReductionTiling),
    "sum of columns": Huge("ij->j", _OUTER, _FEW, "float16", ReductionTiling),
    "sum of columns in parts": Huge(
        "ij->j", {"i": 9_000_000, "j": 250}, {"i": 3000, "j": 7}, "float16", ReductionTiling, split=True
    ),
    "dot": Huge("ij,ij->", _OUTER, {"i": 70, "j": 900}, "bfloat16", ReductionTiling, split=True),
    "vectors": Huge("bij,bj->bi", {"b": 300, "i": 8000, "j": 1000}, _FEW, "float16", ReductionTiling),
    "result of pointers": Huge("ik,kj->ij", {**_OUTER, "k": 32}, _FEW, "float16", ContractionTiling),
    "result of boxes": Huge(
        "ik,kj->ij", {**_OUTER, "k": 32}, {"i": 136, "j": 72, "k": 40}, "float16", BoxTiling
    ),
    "loose result of boxes": Huge(
        "ik,jk->ij", {"i": 50_000, "j": 45_001, "k": 32}, {"i": 130, "j": 65, "k": 72}, "float16", BoxTiling
    ),
    "batch for pointers": Huge(
        "bik,bkj->bij", {"b": 600_000, "i": 64, "j": 64, "k": 16}, _FEW, "float16", ContractionTiling
    ),
    "batch for boxes": Huge(
        "bik,bkj->bij",
        {"b": 600_000, "i": 64, "j": 64, "k": 16},
        {"b": 3, "i": 64, "j": 64, "k": 16},
        "float16",
        BoxTiling,
    ),
    "batch for threads": Huge(
        "bik,bkj->bij", {"b": 600_000, "i": 64, "j": 64, "k": 8}, _FEW, "float32", FmaTiling
    ),
    "batch of integers": Huge(
        "bik,bkj->bij", {"b": 600_000, "i": 64, "j": 64, "k": 8}, _FEW, "int8", ContractionTiling
    ),
    "rows for pointers": Huge(
        "ik,kj->ij", {"i": LIMIT // 1024 + 513, "k": 1024, "j": 24}, _FEW, "float16", ContractionTiling
    ),
    "rows for boxes": Huge(
        "ik,kj->ij",
        {"i": LIMIT // 1024 + 513, "k": 1024, "j": 64},
        {"i": 200, "k": 72, "j": 64},
        "float16",
        BoxTiling,
    ),
    "contracted, for boxes in parts": Huge(
        "ki,kj->ij",
        {"k": LIMIT // 256 + 513, "i": 256, "j": 64},
        {"k": 520, "i": 40, "j": 24},
        "float16",
        BoxTiling,
        split=True,
    ),
    "contracted, for pointers in parts": Huge(
        "ki,kj->ij",
        {"k": LIMIT // 256 + 513, "i": 256, "j": 40},
        {"k": 1100, "i": 20, "j": 24},
        "float16",
        ContractionTiling,
        split=True,
    ),
    "chain": Huge("ai,ij,jb->ab", {"a": 50_000, "b": 45_000, "i": 24, "j": 16}, _FEW, "float16", ChainTiling),
}  # fmt: skip


@pytest.fixture(autouse=True)
def memory_back() -> Iterator[None]:
    """No test finds what another one has left."""
    yield
    if DEVICE == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def available(case: Huge) -> bool:
    if case.kind is FmaTiling:
        return DEVICE == "cuda"
    return case.kind is not BoxTiling or DEVICE == "cpu" or bool(copies_boxes())


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Random ones, made where they stay."""
    if is_integer(dtype):
        return torch.randint(-128, 128, shape, dtype=getattr(torch, dtype), device=DEVICE)
    return torch.randn(shape, dtype=getattr(torch, dtype), device=DEVICE)


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
    shapes = case.shapes(case.sizes)
    elements = [torch.Size(shape).numel() for shape in shapes]
    assert max(elements) > LIMIT
    assert sum(elements) * ITEM_SIZES[case.dtype] < 20e9
    *operands, _ = (torch.empty(shape, dtype=getattr(torch, case.dtype), device="meta") for shape in shapes)
    with everywhere():
        assert case.members(operands)


@pytest.mark.parametrize("name", HUGE)
def test_values(name: str) -> None:
    case = HUGE[name]
    if not available(case):
        pytest.skip("nothing executes it here")
    *shapes, _ = case.shapes(case.sizes if DEVICE == "cuda" else case.small)
    operands = [numbers(shape, case.dtype) for shape in shapes]
    memory: Any = PoisonedIntegers() if is_integer(case.dtype) else MEMORY
    read = [operands[slot] for slot in fused_step(case.equation, operands).reads]
    with executed():
        found = [*islice(filter(compiles, case.members(operands)), 2 if DEVICE == "cuda" else 1)]
        assert found
        for way in found:
            result = way.run(memory, 0)(*read)
            compare(case.equation, operands, result)
            del result


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((50_000, 45_000), (1, 0)), ((1500, 1201, 1300), (2, 0, 1)), ((1500, 1201, 1300), (1, 0, 2))],
)
def test_permuted_copies(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    from einops_fast.backends.torch.einsum.copies import CopyingByKernel

    if DEVICE == "cpu":
        shape = tuple(size // (50 if len(shape) > 2 else 500) for size in shape)
    array = numbers(shape, dtype).permute(axes)
    copy = CopyingByKernel().contiguous(array)
    assert copy.is_contiguous()
    for start, size in slices(array.shape[0], array[0].numel()):
        assert torch.equal(copy.narrow(0, start, size), array.narrow(0, start, size)), start


@pytest.mark.gpu
def test_a_call() -> None:
    """From an equation, by what is chosen without measuring."""
    from einops_fast import fast_einsum

    operands = [numbers((600_000, 64, 16), "float16"), numbers((600_000, 16, 64), "float16")]
    result = fast_einsum("bik,bkj->bij", *operands, autotune="never")
    compare("bik,bkj->bij", operands, result)
