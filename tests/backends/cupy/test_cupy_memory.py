"""CuPy's memory as the kernels get it, with NumPy in its place: there needn't be a GPU for this."""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

MODULE = "einops_fast.backends.cupy.memory"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    instead: Any = ModuleType("cupy")
    instead.empty = lambda count, dtype: SimpleNamespace(data=np.empty(count, dtype))
    instead.cuda = SimpleNamespace(memory=SimpleNamespace(OutOfMemoryError=MemoryError))
    # NumPy refuses what doesn't fit into the buffer.
    instead.ndarray = lambda shape, dtype, memptr, strides: np.ndarray(shape, dtype, buffer=memptr, strides=strides)
    monkeypatch.setitem(sys.modules, "cupy", instead)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield import_module(MODULE).CupyMemory()
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 5), (8, 1)), ((2, 3, 5), (40, 8, 1)), ((), ()), ((0, 5), (8, 1))],
)
def test_arrays_with_gaps_have_memory_for_them(memory: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Copies of operands have rows that begin at multiples of 16 bytes."""
    found = memory.empty(np.empty(1, "float16"), shape, strides)
    assert (found.shape, found.dtype) == (shape, np.float16)
    assert found.size == 0 or found.strides == tuple(2 * stride for stride in strides)
