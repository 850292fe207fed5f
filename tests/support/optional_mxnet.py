"""MXNet, for tests that go without it where it can't be had."""

from importlib import import_module
from typing import Any

import pytest

from einops_fast.backends import get_backend


def mxnet_or_skip() -> Any:
    """The module, imported by way of the backend, which may take more than an import."""
    try:
        get_backend("mxnet")
    except (ImportError, OSError):
        pytest.skip("needs MXNet", allow_module_level=True)
    return import_module("mxnet")
