"""Our own kernels on CuPy's arrays, of a size and by means that make sure they are what runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from families import FAMILIES, allowed, parametrized, picking, rounding

from einops_fast import autotune, contract_expression, fast_einsum
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.runtime.plan_cache import clear_plans

pytestmark = pytest.mark.gpu

DTYPES = ("float16", "float32", "float64")


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


def arrays_of(xp: Any, shapes: Any, dtype: str) -> list[Any]:
    """Normal numbers, the same ones in every run."""
    return [
        xp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))
        for seed, shape in enumerate(shapes)
    ]


def error_of(xp: Any, result: Any, equation: str, arrays: Any) -> float:
    """The largest error of an element, against it and what a sum of such terms usually is."""
    assert result.dtype == arrays[0].dtype
    wide = [each.astype("float64") for each in arrays]
    expected = xp.einsum(equation, *wide)
    usual = xp.sqrt(xp.einsum(equation, *map(xp.square, wide)))
    scale = xp.maximum(usual + xp.abs(expected), np.finfo(result.dtype).smallest_normal)
    assert result.shape == expected.shape
    assert not bool(xp.isnan(result).any())
    return float((xp.abs(result.astype("float64") - expected) / scale).max())


def best(way: Any) -> bool:
    """The best prediction of all kernels is meant."""
    return True


@contextmanager
def launched() -> Iterator[list[str]]:
    """Names of the kernels that are launched."""
    found: list[str] = []

    call = DeclaredCall.__call__

    def record(self: Any, *arguments: Any) -> bool:
        found.append(self.tiling.name)
        return call(self, *arguments)

    with mock.patch.object(DeclaredCall, "__call__", record):
        yield found


@pytest.mark.parametrize("large", [False, True])
@parametrized(*(name for name, family in FAMILIES.items() if family.dtype in DTYPES))
def test_every_kind_of_kernel(cupy: Any, name: str, large: bool) -> None:
    """Among them sums in parts, and copies whose rows have gaps between them."""
    family = FAMILIES[name]
    arrays = arrays_of(cupy, family.sizes(large), family.dtype)
    with picking(family.meant, family.on(large)) as ran, launched() as kernels:
        result = fast_einsum(family.equation, *arrays)
        again = fast_einsum(family.equation, *arrays)
    assert len(ran) == 1
    assert kernels
    assert isinstance(result, cupy.ndarray)
    assert error_of(cupy, result, family.equation, arrays) <= allowed(family), ran
    assert bool((result == again).all())


PROBLEMS = [
    ("bind,bjnd->bnij", ((3, 150, 4, 64), (3, 72, 4, 64))),
    ("dbea,ec->abcd", ((16, 24, 40, 48), (40, 24))),
    ("bij,bj->bi", ((4, 300, 501), (4, 501))),
    ("ij,ij->", ((900, 700), (900, 700))),
]

ALWAYS = [*((*case, dtype) for case, dtype in zip(PROBLEMS, ("float16", "float32", "float16", "float64"), strict=True))]


@pytest.mark.parametrize(("equation", "shapes", "dtype"), ALWAYS)
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_measured(
    cupy: Any, equation: str, shapes: Any, dtype: str, streams: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By CuPy's clock, on its current stream; operands are as they were."""
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    clear_plans()  # with what was measured on another stream
    arrays = arrays_of(cupy, shapes, dtype)
    before = [each.copy() for each in arrays]
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True) if streams else cupy.cuda.Stream.null
    with stream, launched() as kernels:
        result = fast_einsum(equation, *arrays, autotune="always")
    stream.synchronize()
    assert len(set(kernels)) > 1  # they competed
    assert error_of(cupy, result, equation, arrays) <= rounding(dtype)
    for array, kept in zip(arrays, before, strict=True):
        assert bool((array == kept).all())
    assert list(tmp_path.rglob("*.json"))


def _strided(xp: Any, array: Any) -> Any:
    wide = xp.full(tuple(2 * size + 1 for size in array.shape), np.nan, array.dtype)
    window = tuple(slice(1, None, 2) for _ in array.shape)
    wide[window] = array
    return wide[window]


def _negative(xp: Any, array: Any) -> Any:
    every = (slice(None, None, -1),) * array.ndim
    return xp.ascontiguousarray(array[every])[every]


def _unaligned(xp: Any, array: Any) -> Any:
    memory = xp.zeros(array.size + 1, array.dtype)
    view = memory[1:].reshape(array.shape)
    view[...] = array
    return view


LAYOUTS: dict[str, Callable[[Any, Any], Any]] = {
    "reversed": lambda xp, array: xp.ascontiguousarray(array.transpose()).transpose(),
    "last axis first": lambda xp, array: xp.moveaxis(xp.ascontiguousarray(xp.moveaxis(array, -1, 0)), 0, -1),
    "strided": _strided,
    "negative": _negative,
    "expanded": lambda xp, array: xp.broadcast_to(array[:1], array.shape),
    "unaligned": _unaligned,
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("equation", "shapes"), PROBLEMS)
def test_layouts_do_not_matter(cupy: Any, equation: str, shapes: Any, layout: str, dtype: str) -> None:
    plain = arrays_of(cupy, shapes, dtype)
    for at in range(len(plain)):
        arrays = [LAYOUTS[layout](cupy, each) if index == at else each for index, each in enumerate(plain)]
        with picking(best) as ran:
            result = fast_einsum(equation, *arrays)
        assert ran
        assert error_of(cupy, result, equation, arrays) <= rounding(dtype), (ran, at)


@parametrized("pointers", "boxes", "pointers, split", "boxes, split", "threads, split", "pointers on a copy", "loops")
@pytest.mark.parametrize("expression", [False, True])
def test_a_stream_of_its_own(cupy: Any, name: str, expression: bool) -> None:
    """Kernels wait for what was queued there before, which takes a while, and for nothing else."""
    family = FAMILIES[name]
    arrays = arrays_of(cupy, family.sizes(True), family.dtype)
    later = [cupy.asarray(each[::-1].copy()) for each in arrays]
    busy = cupy.full((4096, 4096), 1e-4, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with picking(family.meant, family.on(True)):
        call: Any = (
            contract_expression(family.equation, *(each.shape for each in arrays))
            if expression
            else lambda *operands: fast_einsum(family.equation, *operands)
        )
        with stream:
            call(*arrays)  # compiles, and fills the stream's pool of memory
            for _ in range(2):
                cupy.matmul(busy, busy)
        cupy.cuda.Device().synchronize()
        with stream:
            for _ in range(4):
                cupy.matmul(busy, busy)
            for array, values in zip(arrays, later, strict=True):
                array[...] = values
            result = call(*arrays)
    stream.synchronize()
    assert error_of(cupy, result, family.equation, later) <= allowed(family)


def test_modes_and_dtypes_do_not_mix(cupy: Any) -> None:
    """A call after one of another dtype is by kernels for its own."""
    with picking(best) as ran, autotune("never"):
        for dtype in (*DTYPES, *DTYPES):
            arrays = arrays_of(cupy, ((120, 300), (300, 80)), dtype)
            result = fast_einsum("ik,kj->ij", *arrays)
            assert error_of(cupy, result, "ik,kj->ij", arrays) <= rounding(dtype)
    assert len(ran) == len(DTYPES)
