"""Copies in blocks: the same elements as in a copy as a whole, and where it is left to the framework."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einops_fast.backends import blocked_copies, get_backend
from einops_fast.backends.blocked_copies import block_extents, copy_in_blocks
from einops_fast.backends.numpy import NumpyBackend

LARGE = (4, 90, 80, 70)
"""Over a million elements."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Extents of the blocks of each copy that is made in blocks."""
    found: list[tuple[int, ...]] = []

    def recorded(target: Any, source: Any, extents: tuple[int, ...], threads: int = 1) -> None:
        target[...] = 77
        found.append(extents)
        copy_in_blocks(target, source, extents, threads)

    for name in ("numpy", "torch.steps"):
        module = pytest.importorskip(f"einops_fast.backends.{name}")
        monkeypatch.setattr(module, "copy_in_blocks", recorded)
    return found


@given(st.data())
def test_any_strides(data: st.DataObject) -> None:
    """Small ones: the same blocking with a shorter side."""
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    base = np.arange(np.prod(shape) * 2 ** len(shape)).reshape([2 * size for size in shape])
    steps = [data.draw(st.sampled_from([1, 2, -1])) for _ in shape]
    cut = [
        slice(None, size) if step == 1 else slice(None, None, step or 1)
        for size, step in zip(shape, steps, strict=True)
    ]
    array = base[tuple(cut)].transpose(order)
    array = np.broadcast_to(array[:1], (3, *array.shape[1:])) if data.draw(st.booleans()) else array
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LEAST": 1, "_SIDE": 4, "_LINES": 2, "_PAGES": 2, "_SHORT": 1}.items():
            patch.setattr(blocked_copies, name, value)
        block_extents.cache_clear()
        strides = tuple(stride // array.itemsize for stride in array.strides)
        extents = block_extents(array.shape, strides, array.itemsize)
    block_extents.cache_clear()
    if extents is None:
        return
    assert all(1 <= extent <= size for extent, size in zip(extents, array.shape, strict=True))
    for threads in (1, 2):
        target = np.full(array.shape, -1)
        copy_in_blocks(target, array, extents, threads)
        np.testing.assert_array_equal(target, array)


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_numpy(order: tuple[int, ...], copies: list[Any]) -> None:
    array = np.arange(np.prod(LARGE), dtype="f").reshape(LARGE).transpose(order)
    found = NumpyBackend().contiguous(array)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, array)
    # Where the fastest axis becomes the slowest, lines would be read again and again; else the cache holds them.
    assert bool(copies) == (order[0] == 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("threads", [1, 2])
def test_torch(dtype: str, threads: int, copies: list[Any], monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    module = pytest.importorskip("einops_fast.backends.torch.steps")
    monkeypatch.setattr(module, "_SHARED", 1 << 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    array = torch.randint(-9, 9, LARGE).to(getattr(torch, dtype)).permute(3, 0, 2, 1)
    found = get_backend("torch").contiguous(array)
    assert found.is_contiguous()
    assert found.dtype == array.dtype
    assert torch.equal(found, array)
    assert len(copies) == 1
