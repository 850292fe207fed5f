"""Names of dtypes."""

from __future__ import annotations

from typing import Any

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What our kernels compute in."""


def dtype_name(dtype: Any) -> str:
    """A dtype of any framework as NumPy spells it, whatever its byte order.

    >>> import numpy as np
    >>> dtype_name(np.float32), dtype_name(np.dtype(">i4")), dtype_name("bfloat16")
    ('float32', 'int32', 'bfloat16')
    """
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return str(name).removeprefix("torch.")
