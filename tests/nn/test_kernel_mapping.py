"""Hugging Face kernels runs ours as the forward of layers, as docs/tutorial/plugs.md has it."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("kernels")

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "plugs.md"


def test_a_layer_runs_ours() -> None:
    @kernels.use_kernel_forward_from_hub("RMSNorm")
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.randn(8)), 1e-6

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(hidden_states, (8,), self.weight, self.variance_epsilon)

    model, x = torch.nn.Sequential(Norm()), torch.randn(2, 8)
    expected = model(x)
    (code,) = re.findall(r"```python\n(from kernels .*?)```", PAGE.read_text("utf-8"), re.S)
    with kernels.use_kernel_mapping({}):
        exec(code, {"torch": torch, "model": model})
    assert model[0].forward.__func__.__module__ != __name__
    torch.testing.assert_close(model(x), expected)
