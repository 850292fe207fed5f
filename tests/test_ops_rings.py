"""Long rows through a ring of chunks in shared memory: on a GPU, or executed by NumPy, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
from gluon_on_cpu import rows_on_cpu  # noqa: E402
from ops_problems import DEVICE, assert_near, gradients, kernels, launched, leaf, randn  # noqa: E402
from row_problems import (  # noqa: E402
    apart,
    check_hidden_gradient,
    check_softmax,
    check_special_values,
    forget_plans,
    native_norm,
)

from einops_fast import ops  # noqa: E402
from einops_fast.backends.torch_memory import TorchMemory  # noqa: E402
from einops_fast.backends.triton import ring_tilings  # noqa: E402
from einops_fast.backends.triton.ring_tilings import Cut, Ring, ring_for, ring_of_cut  # noqa: E402
from einops_fast.backends.triton.rows import Rows, rows_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

DTYPES = ["float16", "float32", *(["bfloat16"] if DEVICE == "cuda" else [])]  # NumPy has no bfloat16

SLOTS = {"all kept": (9, 3), "some kept": (6, 2), "few kept": (4, 1)}
"""How many chunks the ring has room for, and how many of these are on their way."""


@pytest.fixture(params=SLOTS)
def rings(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Three programs for all rows, and chunks of 32 or 64 vectors; gives the names of the kernels that ran."""
    slots, ahead = SLOTS[request.param]

    def small(cut: Cut, rows: Rows, vector: int, size: int, shared: int, processors: int) -> Ring | None:
        cut = cut._replace(run=2 if vector == 4 else 1, warps=1, ahead=ahead)
        shared = ring_tilings._SCRATCH + slots * cut.run * 32 * vector * size
        ring = ring_of_cut(cut, rows, vector, size, shared, 3)
        return ring and ring._replace(whole=True)  # nor is another way to cut tried

    yield from _rings(small)


def _rings(small: Any) -> Iterator[list[str]]:
    ran: list[str] = []
    with (
        nullcontext() if DEVICE == "cuda" else rows_on_cpu(),
        mock.patch.object(ring_tilings, "ring_of_cut", small),
        mock.patch.object(ring_tilings, "_long", return_value=True),
        mock.patch.object(TorchMemory, "limits", return_value=(1 << 17, 4)),
        launched(ran),
    ):
        forget_plans()
        yield ran
    forget_plans()


COLUMNS = [512, 1000, 1288]
"""Two chunks of whole ones, or several with a last one that isn't."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, columns: int, dtype: str, rings: list[str]) -> None:
    check_softmax(name, columns, dtype)
    assert rings == ["softmax_ring_kernel", "softmax_gradient_ring_kernel"]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_special_values(name: str, rings: list[str]) -> None:
    check_special_values(name, 1000)
    assert rings == ["softmax_ring_kernel"]


def test_gradient_where_something_was_hidden(rings: list[str]) -> None:
    check_hidden_gradient(1000)
    assert rings == ["softmax_kernel", "softmax_gradient_ring_kernel"]


def test_scale(rings: list[str]) -> None:
    x = leaf(randn(5, 1000, dtype="float32"))
    with kernels():
        found = gradients(partial(ops.softmax, temperature=0.7), [x])
    assert rings == ["softmax_ring_kernel", "softmax_gradient_ring_kernel"]
    exact = leaf(x.double())
    expected = torch.softmax(exact / 0.7, -1)
    back = randn(5, 1000, dtype="float32", seed=7).double()
    assert_near(found[0], expected)
    assert_near(found[1], torch.autograd.grad(expected, exact, back)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("parameters", ["", "weight", "weight bias"])
@pytest.mark.parametrize("rms", [False, True])
def test_norm(rms: bool, parameters: str, columns: int, dtype: str, rings: list[str]) -> None:
    x = randn(2, 4, columns, dtype=dtype) + 30  # far from 0
    x = apart(x)
    weight = randn(columns, 2, dtype=dtype, seed=1)[:, 1] if "weight" in parameters else None
    bias = randn(columns, dtype=dtype, seed=2) if "bias" in parameters else None
    options = {"weight": weight, "bias": bias}
    with kernels():
        found = (ops.rms_norm if rms else ops.layer_norm)(x, eps=1e-5, **options)
    assert rings == ["norm_ring_kernel"]
    assert_near(found, native_norm(rms, x.double(), weight, bias), native_norm(rms, x, weight, bias))


@pytest.mark.parametrize("rms", [False, True])
def test_norm_gradients(rms: bool, rings: list[str]) -> None:
    """Made by other kernels, from the statistics that this one has written."""
    tensors = [leaf(randn(2, 4, 1000, dtype="float32") + 3), leaf(randn(1000, dtype="float32", seed=1))]
    with kernels():
        found = gradients(lambda x, w: (ops.rms_norm if rms else ops.layer_norm)(x, weight=w, eps=1e-5), tensors)
    assert rings[0] == "norm_ring_kernel"
    exact = [leaf(each.double()) for each in tensors]
    expected = native_norm(rms, *exact)
    back = randn(2, 4, 1000, dtype="float32", seed=7).double()
    for got, wanted in zip(found, [expected, *torch.autograd.grad(expected, exact, back)], strict=True):
        assert_near(got, wanted)


def test_norm_of_special_values(rings: list[str]) -> None:
    x = randn(4, 1000, dtype="float32")
    x[0, 3], x[1, 700], x[2] = torch.nan, torch.inf, 0.0
    with kernels():
        torch.testing.assert_close(ops.layer_norm(x), native_norm(False, x), equal_nan=True)


def test_other_result_type(rings: list[str]) -> None:
    x = leaf(randn(5, 1000, dtype="float16"))
    with kernels():
        found = ops.softmax(x, dtype=torch.float32)
        (gradient,) = torch.autograd.grad(found, x, back := randn(5, 1000, dtype="float32", seed=7))
    assert rings == ["softmax_ring_kernel", "softmax_gradient_ring_kernel"]
    exact = leaf(x.double())
    expected = torch.softmax(exact, -1)
    assert (found.dtype, gradient.dtype) == (torch.float32, torch.float16)
    assert_near(found, expected)
    assert_near(gradient, torch.autograd.grad(expected, exact, back.double())[0])


LIMITS = 232448, 132
"""Shared memory and multiprocessors of an H200."""

WHOLE, PART = Cut(4, 8, 4), Cut(2, 16, 2)


def ring(shape: tuple[int, ...], *strides: tuple[int, ...], items: Any = (2, 2), limits: Any = LIMITS) -> Ring | None:
    """For softmax of such arrays, of which one is read."""
    with mock.patch.object(ring_tilings, "interpreted", return_value=False):
        return ring_for(rows_of(shape, 1, strides), items, 1, *limits, {2: 16384}, WHOLE, PART)


@pytest.mark.parametrize("columns", [16392, 50_000, 65_536, 131_080, 1_000_000])
def test_which_rows_have_a_ring(columns: int) -> None:
    along = (columns, 1)
    found = ring((200, columns), along, along)
    assert found is not None
    tiling, kept, whole, programs = found
    assert tiling.slots * tiling.vectors * 16 < LIMITS[0]
    assert whole == (kept * tiling.vectors * 8 >= columns) == (columns < 100_000)
    assert kept + tiling.ahead * (1 if whole else 2) <= tiling.slots
    assert programs == 132
    assert ring((200, columns), along, along, items=()) is None, "an address is odd"
    assert ring((65, columns), along, along) is None, "fewer rows than half the multiprocessors"
    assert ring((200, columns), (1, 200), along) is None, "columns apart"
    assert ring((200, columns), (columns + 4, 1), along) is None, "not every row is aligned"
    assert ring((200, columns - 4), along, along) is None, "vectors don't divide a row"
    assert ring((200, columns), along, along, items=(4, 4)) is None, "others are as fast"
    assert ring((200, columns), along, along, limits=(65536, 132)) is None, "no asynchronous copies"


def test_what_is_copied_again_is_there_in_time() -> None:
    """It is fetched ``ahead`` steps before, so at least as many steps must go by without."""
    rows = rows_of((200, 100_000), 1, [(100_000, 1)] * 2)
    for shared in range(100_000, 240_000, 10_000):
        found = ring_of_cut(Cut(4, 8, 3), rows, 8, 2, shared, 132)
        assert found is None or found.whole or found.kept >= found.tiling.ahead
    assert ring_of_cut(Cut(4, 8, 3), rows, 8, 2, 100_000, 132) is None
