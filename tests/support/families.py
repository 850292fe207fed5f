"""A problem for every kind of kernel that contracts, the candidates that are meant by it, and what has these taken."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fused_steps import INTEGERS, KERNEL_DTYPES, ON, fused_step
from gluon_on_cpu import boxes_on_cpu
from kernel_tensors import DEVICE

from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.boxes.tiles import BoxTiling
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.choice import StepProblem
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.contraction.ways import Candidate, CopyCandidate
from einops_fast.backends.triton.launching.launch import copies_boxes
from einops_fast.backends.triton.launching.measuring import works
from einops_fast.planning.cost import is_integer
from einops_fast.runtime.plan_cache import clear_plans

Shapes = tuple[tuple[int, ...], ...]


def _any_tiling(tiling: Any) -> bool:
    return True


@dataclass(frozen=True)
class Family:
    """A problem, and which of the kernels for it are meant.

    Attributes:
        equation: the problem.
        shapes: of its operands, so small that they can be executed anywhere.
        large: the same with work for all multiprocessors of a GPU, and results in many parts where sums are split.
        kind: of a kernel's tiling.
        has: what else a tiling must have.
        copies: operands are copied first.
        dtype: of all arrays.
        units: multiprocessors that the tiles are for, where a program is to have several of them in the small problem.
    """

    equation: str
    shapes: Shapes
    large: Shapes
    kind: type
    has: Callable[[Any], bool] = _any_tiling
    copies: bool = False
    dtype: str = "float16"
    units: int | None = None

    def sizes(self, large: bool) -> Shapes:
        return self.large if large else self.shapes

    def operands(self, large: bool = False, device: str = DEVICE) -> list[Any]:
        """Random numbers; the same ones in every run."""
        return [numbers(*shape, dtype=self.dtype, seed=at, device=device) for at, shape in enumerate(self.sizes(large))]

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
_ROWS = ((64, 40), (40, 48))

FAMILIES: dict[str, Family] = {
    "pointers": Family(
        "bind,bjnd->bnij",
        ((2, 40, 3, 32), (2, 24, 3, 32)),
        ((16, 500, 8, 64), (16, 300, 8, 64)),
        _POINTERS,
        lambda tiling: _whole(tiling) and not tiling.scattered and not tiling.in_two,
    ),
    "pointers, scattered": Family(
        "dbea,ec->abcd",
        ((4, 3, 9, 12), (9, 6)),
        ((48, 48, 40, 48), (40, 64)),
        _POINTERS,
        lambda tiling: _whole(tiling) and tiling.scattered,
    ),
    "pointers, columns in two parts": Family(
        "ik,kj->ij",
        ((100, 40), (40, 70)),
        ((9000, 200), (200, 288)),
        _POINTERS,
        lambda tiling: _whole(tiling) and tiling.in_two,
    ),
    "pointers, factors": Family(
        "bi,oij,bj->bo",
        ((21, 6), (5, 6, 17), (21, 17)),
        ((3000, 20), (99, 20, 103), (3000, 103)),
        _POINTERS,
        lambda tiling: _whole(tiling) and tiling.factored,
    ),
    "pointers, split": Family(
        "ik,kj->ij", ((20, 1100), (1100, 24)), ((120, 30000), (30000, 136)), _POINTERS, _split
    ),
    "pointers on a copy": Family(
        "bij,bjk->bik",
        ((2, 20, 33), (2, 33, 17)),
        ((30, 300, 333), (30, 333, 257)),
        _POINTERS,
        _whole,
        copies=True,
    ),
    "pointers on a copy, split": Family(
        "acd,dbc->ab", ((18, 10, 400), (400, 17, 10)), ((90, 100, 90), (90, 96, 100)), _POINTERS, _split, copies=True
    ),
    "boxes": Family(
        "bind,bjnd->bnij",
        ((2, 200, 3, 64), (2, 136, 3, 64)),
        ((16, 500, 8, 64), (16, 304, 8, 64)),
        _BOXES,
        lambda tiling: _whole(tiling) and not tiling.loose and not tiling.rest,
    ),
    "boxes, columns in two parts": Family(
        "bik,bkj->bij",
        ((2, 300, 64), (2, 64, 96)),
        ((4, 3000, 288), (4, 288, 288)),
        _BOXES,
        lambda tiling: _whole(tiling) and bool(tiling.rest),
        units=2,
    ),
    "boxes, the right one stays": Family(
        "ik,kj->ij", ((700, 160), (160, 96)), ((40000, 160), (160, 96)), _BOXES, _stays(1), units=2
    ),
    "boxes in turns": Family(
        "ik,kj->ij", ((700, 160), (160, 96)), ((40000, 160), (160, 96)), _BOXES, _stays(2), units=2
    ),
    "boxes, loose": Family(
        "ik,jk->ij",
        ((130, 72), (65, 72)),
        ((3000, 136), (997, 136)),
        _BOXES,
        lambda tiling: _whole(tiling) and tiling.loose,
    ),
    "boxes, factors": Family(
        "bi,oij,bj->bo",
        ((200, 6), (40, 6, 72), (200, 72)),
        ((4096, 40), (128, 40, 128), (4096, 128)),
        _BOXES,
        lambda tiling: _whole(tiling) and tiling.factor is not None,
    ),
    "boxes, factors, split": Family(
        "bi,oij,bj->bo",
        ((70, 12), (200, 12, 64), (70, 64)),
        ((70, 96), (200, 96, 64), (70, 64)),
        _BOXES,
        lambda tiling: _split(tiling) and tiling.factor is not None,
    ),
    "boxes, split": Family(
        "ik,kj->ij", ((40, 520), (520, 24)), ((120, 30000), (30000, 136)), _BOXES, _split
    ),
    "boxes on a copy": Family(
        "bij,bjk->bik",
        ((2, 72, 33), (2, 33, 40)),
        ((30, 304, 333), (30, 333, 256)),
        _BOXES,
        _whole,
        copies=True,
    ),
    "threads": Family(
        "bik,bjk->bij",
        ((2, 64, 40), (2, 48, 40)),
        ((64, 300, 128), (64, 256, 128)),
        _THREADS,
        lambda tiling: _whole(tiling) and not tiling.chunk,
        dtype="float32",
    ),
    "threads, totals": Family(
        "ik,kj->ij",
        ((64, 600), (600, 48)),
        ((2000, 1000), (1000, 600)),
        _THREADS,
        lambda tiling: _whole(tiling) and bool(tiling.chunk),
        dtype="float32",
    ),
    "threads, rows and columns in parts": Family(
        "bik,bjk->bij",
        ((2, 100, 24), (2, 50, 24)),
        ((64, 100, 128), (64, 50, 128)),
        _THREADS,
        lambda tiling: _whole(tiling) and bool(tiling.below) and bool(tiling.further),
        dtype="float32",
    ),
    "threads, split": Family(
        "ik,kj->ij", ((40, 600), (600, 24)), ((120, 30000), (30000, 136)), _THREADS, _split, dtype="float32"
    ),
    "threads on a copy": Family(
        "bij,bkj->bik",
        ((3, 40, 33), (3, 39, 33)),
        ((64, 300, 133), (64, 256, 133)),
        _THREADS,
        _whole,
        copies=True,
        dtype="float32",
    ),
    "pointers, float32 in parts": Family(
        "ik,kj->ij", ((40, 600), (600, 24)), ((120, 30000), (30000, 136)), _POINTERS, _split, dtype="float32"
    ),
    "pointers, float64": Family("ik,kj->ij", _ROWS, ((900, 300), (300, 500)), _POINTERS, _whole, dtype="float64"),
    "loops": Family("bij,bj->bij", ((4, 10, 50), (4, 50)), ((40, 500, 700), (40, 700)), _LOOPS, _whole),
    "loops, a sum": Family(
        "bind,bind->bni", ((2, 40, 3, 16), (2, 40, 3, 16)), ((16, 500, 8, 64), (16, 500, 8, 64)), _LOOPS, _whole
    ),
    "loops, one operand": Family("abc->b", ((13, 6, 20),), ((130, 600, 200),), _LOOPS, _whole, dtype="bfloat16"),
    "loops, three operands": Family(
        "bi,bij,bj->b",
        ((4, 10), (4, 10, 31), (4, 31)),
        ((4000, 40), (4000, 40, 31), (4000, 31)),
        _LOOPS,
        _whole,
        dtype="float32",
    ),
    "loops, split": Family("bij,bij->", ((4, 30, 50), (4, 30, 50)), ((40, 300, 500), (40, 300, 500)), _LOOPS, _split),
    "loops, split in rows": Family(
        "ji,j->i", ((3000, 7), (3000,)), ((300000, 7), (300000,)), _LOOPS, _split, dtype="float32"
    ),
    "chain": Family(
        "ai,ij,jk,kb->ab",
        ((37, 9), (9, 20), (20, 5), (5, 35)),
        ((3000, 64), (64, 60), (60, 32), (32, 2000)),
        ChainTiling,
    ),
    "chain, float32": Family(
        "nai,ij,nbj->anb",
        ((3, 20, 9), (9, 17), (3, 40, 17)),
        ((30, 200, 30), (30, 17), (30, 400, 17)),
        ChainTiling,
        dtype="float32",
    ),
    "integers": Family(
        "bik,bjk->bij", ((2, 20, 33), (2, 24, 33)), ((20, 200, 133), (20, 240, 133)), _POINTERS, _whole, dtype="int32"
    ),
    "integers, split": Family(
        "ik,kj->ij", ((20, 300), (300, 24)), ((90, 9000), (9000, 120)), _POINTERS, _split, dtype="int8"
    ),
    "integers, loops": Family("ij,j->i", ((40, 103), (103,)), ((4000, 703), (703,)), _LOOPS, _whole, dtype="int64"),
    "integers, loops split": Family(
        "bij,bij->", ((4, 30, 50), (4, 30, 50)), ((40, 300, 500), (40, 300, 500)), _LOOPS, _split, dtype="int16"
    ),
}  # fmt: skip


def numbers(*shape: int, dtype: str, seed: int = 0, device: str = DEVICE) -> Any:
    """Normal numbers, or whole ones over the whole range of the dtype. Small arrays are the same on every device."""
    if device == "meta":
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        values = np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        return torch.from_numpy(values).to(device)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device, getattr(torch, dtype))


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


@contextmanager
def picking(meant: Callable[[Candidate], bool] | None = None, on: Any = ON) -> Iterator[list[str]]:
    """Every step that can be is run by the best of these kernels, or by any of the first ones; gives their names."""
    chance = random.Random(0)
    ran: list[str] = []

    def choose(self: StepProblem, arrays: Sequence[Any]) -> Candidate:
        found = kernel_candidates(self.step, self.memory.dtype(arrays[0]), on, self.precision)
        if meant is None:
            way = chance.choice(found[:20])
        else:
            way = next((way for way in found if meant(way) and _compiles(way)), None)
        assert way is not None, [each.name for each in found]
        ran.append(way.name)
        return way

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(StepProblem, "decide", choose))
        stack.enter_context(mock.patch.object(choice_module, "_small", return_value=False))
        stack.enter_context(
            mock.patch.object(torch_backend, "kernel_dtypes", return_value=frozenset((*KERNEL_DTYPES, *INTEGERS)))
        )
        clear_plans()
        stack.callback(clear_plans)
        yield ran


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
