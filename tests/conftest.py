"""Hypothesis profiles, the ``gpu`` marker, and what every test starts from."""

import functools
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# Threads that wait keep no processor from those of other workers. Read when the first library with threads is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from quick_interpreter import hurry

from einops_fast.backends import gpu_rates
from einops_fast.runtime import new_shapes, tiers

# "ci" tries the same examples on every run, so that a red run can be repeated; "long" goes looking for new
# ones. Choose with --hypothesis-profile or HYPOTHESIS_PROFILE. The first call to a framework takes seconds:
# hence no deadline.
settings.register_profile(
    "ci",
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@functools.cache
def has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


# On a GPU, a test's first call has the kernel that it is about; what doesn't wait for one has tests of its own.
if has_cuda():
    os.environ.setdefault("EINOPS_FAST_AUTOTUNE", "wait")
# Before anything imports Triton: without a GPU, kernels are tested in its interpreter.
else:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    with suppress(ImportError):
        hurry()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, compilations for GPUs, so that no worker waits for it at the end."""
    items.sort(key=lambda item: not hasattr(getattr(item, "module", None), "printed"))


def pytest_collection_finish() -> None:
    """What is there until the end, modules and tests, needn't be gone through whenever garbage is collected."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_cuda():
        pytest.skip("needs torch and a CUDA device")


@pytest.fixture(autouse=True)
def same_numbers_in_every_run() -> None:
    """So that a red run can be repeated, in whatever order and process its tests ran."""
    np.random.seed(0)
    try:
        import torch
    except ImportError:
        return
    # That of all devices keeps a stack for each that isn't there.
    seed = torch.manual_seed if has_cuda() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(autouse=True)
def guards_without_their_time() -> None:
    """torch.compile flushes the processor's caches to measure how long guards take, which nobody asks here."""
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *given: 0.0


@pytest.fixture(autouse=True)
def planned_at_the_first_call() -> Iterator[None]:
    """Most tests are about plans, and make one call."""
    new_shapes.AT_SECOND_CALL = False
    yield
    new_shapes.AT_SECOND_CALL = True


@pytest.fixture(autouse=True)
def new_shapes_only() -> None:
    """No test's calls depend on the shapes that others called with."""
    new_shapes.by_question.clear()


@pytest.fixture(autouse=True)
def nothing_is_left_undecided() -> Iterator[None]:
    """No test settles what calls of another one have begun, perhaps on a GPU that was pretended."""
    yield
    tiers._undecided.clear()


@pytest.fixture(autouse=True, scope="session")
def rates_of_gpus_when_they_are_asked_for() -> None:
    """No test's memory or time is that of a measurement beside it."""
    gpu_rates._START = 3600.0


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A device of torch."""
    return str(request.param)


@pytest.fixture
def torch() -> Any:
    """The module, for tests of modules that don't all need it."""
    return pytest.importorskip("torch")
