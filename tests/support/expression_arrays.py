"""Arrays for expressions, and how close results have to be."""

import numpy as np
from attention_arrays import numbers


def random_arrays(*shapes, dtype="float32"):
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(dtype) for shape in shapes]


def assert_close(result, expected):
    np.testing.assert_allclose(numbers(result), expected, 1e-4)
