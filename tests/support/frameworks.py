"""How arrays of each framework are made and read, for tests of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from optional_mxnet import mxnet_or_skip

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Framework:
    """What the tests need of a framework.

    Attributes:
        make: an array of the framework with the values and the layout of a NumPy array, in the named dtype.
        read: its values.
        einsum: the framework's own.
        negative: whether strides may be negative.
        backend: its name for `get_backend`.
    """

    make: Callable[[Array, str], Any]
    read: Callable[[Any], Array]
    einsum: Callable[..., Any]
    negative: bool = False
    backend: str = "numpy"


@cache
def _torch(device: str) -> Framework:
    torch = pytest.importorskip("torch")

    def make(array: Array, dtype: str) -> Any:
        strides = [stride // array.itemsize for stride in array.strides]
        reach = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
        memory = torch.ones(max(reach + 1, 0), dtype=getattr(torch, dtype), device=device)
        if memory.is_floating_point() or memory.is_complex():
            memory.fill_(torch.nan)  # reading between the elements shows
        tensor = memory.as_strided(array.shape, strides)
        stored = (..., *(slice(None if stride else 1) for stride in strides))
        tensor[stored] = torch.from_numpy(array[stored].copy())
        return tensor

    def read(tensor: Any) -> Array:
        array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
        return array

    return Framework(make, read, torch.einsum, backend="torch")


@cache
def _mxnet() -> Framework:
    mxnet = mxnet_or_skip().np
    return Framework(
        lambda array, dtype: mxnet.array(array, dtype=dtype), mxnet.ndarray.asnumpy, mxnet.einsum, backend="mxnet"
    )


def framework(name: str) -> Framework:
    """The framework; skips the test where it isn't installed."""
    if name == "numpy":
        return Framework(lambda array, dtype: array, np.asarray, np.einsum, negative=True)
    return _mxnet() if name == "mxnet" else _torch("cuda" if name == "torch-cuda" else "cpu")


def on_cuda(*values: Any) -> Any:
    """A parameter with torch on a GPU for its framework."""
    return pytest.param("torch-cuda", *values, marks=pytest.mark.gpu)
