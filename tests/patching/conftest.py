"""Frameworks before and after a patch."""

from importlib import import_module

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip
from patches import MODULES, NUMPY_NATIVE, runs_ours

from einops_fast import unpatch
from einops_fast.backends import get_backend


@pytest.fixture
def all_native():
    yield
    unpatch()
    assert np.einsum is NUMPY_NATIVE
    assert not runs_ours(np)


@pytest.fixture(params=MODULES)
def home(request):
    """Name and main module of each framework."""
    if request.param == "mxnet":
        mxnet_or_skip()  # imports it where a plain import can't
    return request.param, pytest.importorskip(MODULES[request.param][0])


@pytest.fixture
def mnp():
    return mxnet_or_skip().np


@pytest.fixture
def calls(monkeypatch):
    """Put a spy in the place of a framework's native einsum; returns its calls."""

    def install(module):
        seen = []
        native = module.einsum
        framework = "numpy" if module is np else "torch"
        get_backend(framework)  # which keeps the native function for its own use

        def einsum(*operands, **options):
            seen.append(operands)
            return native(*operands, **options)

        for name in MODULES[framework]:
            monkeypatch.setattr(import_module(name), "einsum", einsum)
        return seen

    return install
