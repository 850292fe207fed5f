"""Where torch's compiler calls our operator."""

import pytest

from einops_fast.runtime import traced


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is called for tensors of every device."""
    monkeypatch.setattr(traced, "_WITH_OPERATOR", ("cpu", "cuda"))
