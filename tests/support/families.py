"""A problem for every kind of kernel that contracts, the candidates that are meant by it, and what has these taken."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fused_steps import ON, fused_step
from gluon_on_cpu import boxes_on_cpu
from kernel_tensors import DEVICE, decided, randoms

from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.contraction.ways import Candidate, CopyCandidate
from einops_fast.backends.triton.launching.launch import copies_boxes
from einops_fast.backends.triton.launching.measuring import works
from einops_fast.planning.cost import is_integer

Shapes = tuple[tuple[int, ...], ...]


def _any_tiling(tiling: Any) -> bool:
    return True


@dataclass(frozen=True)
class Family:
    """A problem, and which of the kernels for it are meant.

    Attributes:
        equation: the problem.
        shapes: of its operands, as ``'2x3 3x4'``, so small that they can be executed anywhere.
        large: the same with work for all multiprocessors of a GPU, and results in many parts where sums are split.
        kind: of a kernel's tiling.
        has: what else a tiling must have.
        copies: operands are copied first.
        dtype: of all arrays.
        units: multiprocessors that the tiles are for, where a program is to have several of them in the small problem.
    """

    equation: str
    shapes: str
    large: str
    kind: type
    has: Callable[[Any], bool] = _any_tiling
    copies: bool = False
    dtype: str = "float16"
    units: int | None = None

    def sizes(self, large: bool) -> Shapes:
        texts = (self.large if large else self.shapes).split()
        return tuple(tuple(map(int, text.split("x"))) for text in texts)

    def operands(self, large: bool = False, device: str = DEVICE) -> list[Any]:
        """Random numbers; the same ones in every run."""
        return randoms(self.sizes(large), self.dtype, device)

    def meant(self, way: Candidate) -> bool:
        """Whether a candidate is one of the family."""
        if isinstance(way, CopyCandidate) != self.copies or way.kind is not self.kind:
            return False
        return self.has(way._then.tiling if isinstance(way, CopyCandidate) else way.tiling)  # type: ignore[attr-defined]

    def members(self, operands: Sequence[Any], large: bool = False) -> list[Candidate]:
        """The family's kernels for such operands, the best prediction first."""
        step = fused_step(self.equation, operands)
        return [way for way in kernel_candidates(step, self.dtype, self.on(large)) if self.meant(way)]

    def working(self, operands: Sequence[Any], large: bool, most: int) -> list[Candidate]:
        """The first of them that compile for the device, as the engine would take them; at least one."""
        found = list(islice(filter(_compiles, self.members(operands, large)), most))
        assert found, self
        return found

    def on(self, large: bool) -> Any:
        return ON if large or self.units is None else replace(ON, units=self.units)

    @property
    def gpu_only(self) -> bool:
        """Whether nothing but a GPU executes the kernel as a candidate."""
        return self.kind is FmaTiling

    @property
    def available(self) -> bool:
        """Whether it can be executed here."""
        if DEVICE == "cpu":
            return not self.gpu_only
        return self.kind is not BoxTiling or copies_boxes()


def _compiles(way: Candidate) -> bool:
    """Whether a kernel can be run here: some tiles are too large for a device."""
    return DEVICE == "cpu" or works(way)


def _whole(tiling: Any) -> bool:
    return bool(tiling.split == 1)


def _split(tiling: Any) -> bool:
    return bool(tiling.split > 1)


def _stays(turns: int) -> Callable[[Any], bool]:
    return lambda tiling: tiling.resident and tiling.turns == turns


_POINTERS, _BOXES, _THREADS, _LOOPS = ContractionTiling, BoxTiling, FmaTiling, ReductionTiling

FAMILIES: dict[str, Family] = {
    "pointers": Family(
        "bind,bjnd->bnij", "2x40x3x32 2x24x3x32", "16x500x8x64 16x300x8x64",
        _POINTERS, lambda tiling: _whole(tiling) and not tiling.scattered and not tiling.in_two,
    ),
    "pointers, scattered": Family(
        "dbea,ec->abcd", "4x3x9x12 9x6", "48x48x40x48 40x64",
        _POINTERS, lambda tiling: _whole(tiling) and tiling.scattered,
    ),
    "pointers, columns in two parts": Family(
        "ik,kj->ij", "100x40 40x70", "9000x200 200x288", _POINTERS, lambda tiling: _whole(tiling) and tiling.in_two,
    ),
    "pointers, factors": Family(
        "bi,oij,bj->bo", "21x6 5x6x17 21x17", "3000x20 99x20x103 3000x103",
        _POINTERS, lambda tiling: _whole(tiling) and tiling.factored,
    ),
    "pointers, split": Family("ik,kj->ij", "20x1100 1100x24", "120x30000 30000x136", _POINTERS, _split),
    "pointers on a copy": Family(
        "bij,bjk->bik", "2x20x33 2x33x17", "30x300x333 30x333x257", _POINTERS, _whole, copies=True,
    ),
    "pointers on a copy, split": Family(
        "acd,dbc->ab", "18x10x400 400x17x10", "90x100x90 90x96x100", _POINTERS, _split, copies=True,
    ),
    "boxes": Family(
        "bind,bjnd->bnij", "2x200x3x64 2x136x3x64", "16x500x8x64 16x304x8x64",
        _BOXES, lambda tiling: _whole(tiling) and not tiling.loose and not tiling.rest,
    ),
    "boxes, columns in two parts": Family(
        "bik,bkj->bij", "2x300x64 2x64x96", "4x3000x288 4x288x288",
        _BOXES, lambda tiling: _whole(tiling) and bool(tiling.rest), units=2,
    ),
    "boxes, the right one stays": Family(
        "ik,kj->ij", "700x160 160x96", "40000x160 160x96", _BOXES, _stays(1), units=2,
    ),
    "boxes in turns": Family("ik,kj->ij", "700x160 160x96", "40000x160 160x96", _BOXES, _stays(2), units=2),
    "boxes, loose": Family(
        "ik,jk->ij", "130x72 65x72", "3000x136 997x136", _BOXES, lambda tiling: _whole(tiling) and tiling.loose,
    ),
    "boxes, factors": Family(
        "bi,oij,bj->bo", "200x6 40x6x72 200x72", "4096x40 128x40x128 4096x128",
        _BOXES, lambda tiling: _whole(tiling) and tiling.factor is not None,
    ),
    "boxes, factors, split": Family(
        "bi,oij,bj->bo", "70x12 200x12x64 70x64", "70x96 200x96x64 70x64",
        _BOXES, lambda tiling: _split(tiling) and tiling.factor is not None,
    ),
    "boxes, split": Family("ik,kj->ij", "40x520 520x24", "120x30000 30000x136", _BOXES, _split),
    "boxes on a copy": Family(
        "bij,bjk->bik", "2x72x33 2x33x40", "30x304x333 30x333x256", _BOXES, _whole, copies=True,
    ),
    "threads": Family(
        "bik,bjk->bij", "2x64x40 2x48x40", "64x300x128 64x256x128",
        _THREADS, lambda tiling: _whole(tiling) and not tiling.chunk, dtype="float32",
    ),
    "threads, totals": Family(
        "ik,kj->ij", "64x600 600x48", "2000x1000 1000x600",
        _THREADS, lambda tiling: _whole(tiling) and bool(tiling.chunk), dtype="float32",
    ),
    "threads, rows and columns in parts": Family(
        "bik,bjk->bij", "2x100x24 2x50x24", "64x100x128 64x50x128",
        _THREADS, lambda tiling: _whole(tiling) and bool(tiling.below) and bool(tiling.further), dtype="float32",
    ),
    "threads, split": Family("ik,kj->ij", "40x600 600x24", "120x30000 30000x136", _THREADS, _split, dtype="float32"),
    "threads on a copy": Family(
        "bij,bkj->bik", "3x40x33 3x39x33", "64x300x133 64x256x133", _THREADS, _whole, copies=True, dtype="float32",
    ),
    "pointers, float32 in parts": Family(
        "ik,kj->ij", "40x600 600x24", "120x30000 30000x136", _POINTERS, _split, dtype="float32",
    ),
    "pointers, float64": Family("ik,kj->ij", "64x40 40x48", "900x300 300x500", _POINTERS, _whole, dtype="float64"),
    "loops": Family("bij,bj->bij", "4x10x50 4x50", "40x500x700 40x700", _LOOPS, _whole),
    "loops, a sum": Family("bind,bind->bni", "2x40x3x16 2x40x3x16", "16x500x8x64 16x500x8x64", _LOOPS, _whole),
    "loops, one operand": Family("abc->b", "13x6x20", "130x600x200", _LOOPS, _whole, dtype="bfloat16"),
    "loops, three operands": Family(
        "bi,bij,bj->b", "4x10 4x10x31 4x31", "4000x40 4000x40x31 4000x31", _LOOPS, _whole, dtype="float32",
    ),
    "loops, split": Family("bij,bij->", "4x30x50 4x30x50", "40x300x500 40x300x500", _LOOPS, _split),
    "loops, split in rows": Family("ji,j->i", "3000x7 3000", "300000x7 300000", _LOOPS, _split, dtype="float32"),
    "chain": Family("ai,ij,jk,kb->ab", "37x9 9x20 20x5 5x35", "3000x64 64x60 60x32 32x2000", ChainTiling),
    "chain, float32": Family(
        "nai,ij,nbj->anb", "3x20x9 9x17 3x40x17", "30x200x30 30x17 30x400x17", ChainTiling, dtype="float32",
    ),
    "integers": Family("bik,bjk->bij", "2x20x33 2x24x33", "20x200x133 20x240x133", _POINTERS, _whole, dtype="int32"),
    "integers, split": Family("ik,kj->ij", "20x300 300x24", "90x9000 9000x120", _POINTERS, _split, dtype="int8"),
    "integers, loops": Family("ij,j->i", "40x103 103", "4000x703 703", _LOOPS, _whole, dtype="int64"),
    "integers, loops split": Family(
        "bij,bij->", "4x30x50 4x30x50", "40x300x500 40x300x500", _LOOPS, _split, dtype="int16",
    ),
}  # fmt: skip


def error_of(result: Any, equation: str, operands: Sequence[Any]) -> float:
    """The largest error of an element, against it and what a sum of such terms usually is; of integers 0 or 1.

    Terms are of either sign: against the sum of their magnitudes, a part that is left out of a long sum is little.

    Raises:
        AssertionError: dtype or shape are wrong, or there is a NaN.
    """
    assert result.dtype == operands[0].dtype
    if not result.is_floating_point():
        expected = np.einsum(equation, *(each.cpu().numpy() for each in operands))
        assert tuple(result.shape) == expected.shape
        return float((result.cpu().numpy() != expected).any())
    wide = [each.double() for each in operands]
    expected = torch.einsum(equation, *wide)
    # Numbers that are smaller than normal ones are rounded as if they were as large.
    least = torch.finfo(result.dtype).smallest_normal
    usual = torch.einsum(equation, *(each.square() for each in wide)).sqrt()
    scale = (usual + expected.abs()).clamp_min(least)
    assert result.shape == expected.shape
    assert not result.isnan().any()
    return float(((result.double() - expected) / scale).abs().max()) if result.numel() else 0.0


def allowed(family: Family) -> float:
    """What `error_of` may be."""
    return rounding(family.dtype)


def rounding(dtype: str) -> float:
    """The same: of 16 bits, a result is rounded, and what is between products; of more, each sum of thousands is."""
    if is_integer(dtype):
        return 0.0
    return float((6 if dtype in ("float16", "bfloat16") else 256) * torch.finfo(getattr(torch, dtype)).eps)


def executed() -> Any:
    """A context in which kernels with boxes are executed by NumPy where there is no GPU."""
    return boxes_on_cpu(2) if DEVICE == "cpu" else nullcontext()


@contextmanager
def everywhere() -> Iterator[None]:
    """All candidates are found, also those that nothing here can execute."""
    with (
        mock.patch.object(candidates, "copies_boxes", return_value=True),
        mock.patch.object(candidates, "interpreted", return_value=False),
    ):
        yield


def picking(meant: Callable[[Candidate], bool] | None = None, on: Any = ON) -> Any:
    """Every step that can be is run by the best of these kernels, or by any of the first ones; gives their names."""
    chance = random.Random(0)

    def pick(found: Sequence[Any]) -> Any:
        if meant is None:
            return chance.choice(found[:20])
        way = next((way for way in found if meant(way) and _compiles(way)), None)
        assert way is not None, [each.name for each in found]
        return way

    return decided(pick, on)


def parametrized(*names: str) -> Any:
    """A mark that gives a test these families, or all; what can't be executed here is skipped."""
    skip = pytest.mark.skipif
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=skip(not FAMILIES[name].available, reason="not executed here"))
            for name in names or FAMILIES
        ],
    )


SIZES = [False, pytest.param(True, marks=pytest.mark.gpu)]
