"""A compiler that has compiled nothing."""

import pytest


@pytest.fixture
def nothing_compiled() -> None:
    import torch

    torch._dynamo.reset()
