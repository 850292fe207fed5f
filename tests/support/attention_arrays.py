"""The same numbers as arrays of each framework that attention takes, and back."""

from typing import Any

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip

FRAMEWORKS = ("numpy", "torch", "mxnet", pytest.param("cupy", marks=pytest.mark.gpu))


def arrays_of(framework: str, values: Any) -> Any:
    """Every NumPy array in some arguments as one of a framework; all else as it is."""
    if isinstance(values, dict):
        return {name: arrays_of(framework, value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(arrays_of(framework, value) for value in values)
    return _array(framework, values) if isinstance(values, np.ndarray) else values


def _array(framework: str, value: np.ndarray[Any, Any]) -> Any:
    if framework == "numpy":
        return value
    if framework == "mxnet":
        return mxnet_or_skip().np.array(value, dtype=value.dtype)
    module = pytest.importorskip(framework)
    return module.from_numpy(value) if framework == "torch" else module.asarray(value)


def numbers(array: Any) -> np.ndarray[Any, Any]:
    """An array of any framework as NumPy's."""
    for name in ("asnumpy", "get"):
        if hasattr(array, name):
            return getattr(array, name)()
    return np.asarray(array)


def random_arrays(*shapes, dtype="float32"):
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(dtype) for shape in shapes]


def assert_close(result, expected):
    np.testing.assert_allclose(numbers(result), expected, 1e-4)
