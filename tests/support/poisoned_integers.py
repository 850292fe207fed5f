"""Memory full of a number that no right result has, for integers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from einops_fast.backends.torch.memory import TorchMemory


class Poisoned(TorchMemory):
    """Memory that is full of the same number when it is handed out."""

    def empty(self, like: Any, shape: Any, strides: Any) -> Any:  # type: ignore[override]
        return like.new_empty_strided(shape, strides).fill_(85)

    def maker(self, dtype: str) -> Any:
        return self.empty

    def workspace(self, like: Any, elements: int, dtype: str) -> Any:
        return super().workspace(like, elements, dtype).fill_(85)
