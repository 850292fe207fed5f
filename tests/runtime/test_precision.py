"""What float32 products may be made of: the framework's setting, a block, an argument."""

from typing import Any

import pytest
import torch

from einops_fast import EinsumError, allow_precision, autotune, fast_einsum
from einops_fast.backends.torch.backend import TorchBackend
from einops_fast.backends.triton.contraction.choice import StepProblem
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.precision import PRECISIONS, settled


@pytest.mark.parametrize("precision", ["ieee", "TF32", "", None])
def test_no_such_precision(precision: Any) -> None:
    message = f"precision is one of 'tf32' and 'tf32x3', not {precision!r}"
    with pytest.raises(EinsumError, match=message), allow_precision(precision):
        pass
    if precision is not None:
        with pytest.raises(EinsumError, match=message):
            fast_einsum("i->", torch.ones(3), precision=precision)


def test_a_framework_that_is_set_to_tf32_keeps_to_that() -> None:
    assert [settled("ieee"), settled("tf32")] == ["ieee", "tf32"]
    with allow_precision("tf32x3"):
        assert [settled("ieee"), settled("tf32")] == ["tf32x3", "tf32"]


def test_the_precision_is_part_of_what_plans_are_kept_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that says that it is on a GPU."""

    class Stand(torch.Tensor):
        is_cuda = True

    operands = [torch.ones(3).as_subclass(Stand)] * 2
    backend = TorchBackend()
    found = {backend.signature(operands)}
    for precision in PRECISIONS:
        with allow_precision(precision):
            found.add(backend.signature(operands))
    assert len(found) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("as_argument", [False, True])
def test_errors_are_those_of_what_was_allowed(monkeypatch: pytest.MonkeyPatch, as_argument: bool) -> None:
    """Forward and backward, by the kernel that is predicted to be the fastest; and so in each order of settings."""
    from einops_fast.backends.triton.contraction.candidates import kernel_candidates

    asked: list[str] = []

    def choose(self: StepProblem, arrays: Any) -> Any:
        from einops_fast.backends.gpus import gpu_ceilings

        asked.append(self.precision)
        return kernel_candidates(self.step, "float32", gpu_ceilings("H200"), self.precision)[0]

    monkeypatch.setattr(StepProblem, "decide", choose)
    clear_plans()
    a = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    b = torch.randn(1024, 1024, device="cuda")
    cotangent = torch.randn(1024, 1024, device="cuda")
    wanted = a.detach().double() @ b.double()
    of_gradient = cotangent.double() @ b.double().mT
    bounds: dict[str | None, tuple[float, float]] = {None: (0.0, 1e-6), "tf32": (1e-5, 2e-3), "tf32x3": (0.0, 5e-6)}
    for precision in (None, "tf32x3", "tf32", None, "tf32", "tf32x3"):
        if as_argument or precision is None:
            result = fast_einsum("ij,jk->ik", a, b, precision=precision, autotune="wait")
        else:
            with allow_precision(precision), autotune("wait"):
                result = fast_einsum("ij,jk->ik", a, b)
        (gradient,) = torch.autograd.grad(result, a, cotangent)
        for found, exact in ((result.detach(), wanted), (gradient, of_gradient)):
            low, high = bounds[precision]
            assert low <= float((found.double() - exact).norm() / exact.norm()) <= high
    assert set(asked) == {"ieee", "tf32", "tf32x3"}
