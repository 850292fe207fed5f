"""Kernels along rows that serve any size: right in every layout, also where their tiles are longer than a row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops_problems import (
    DEVICE,
    LAYOUTS,
    assert_near,
    cross_entropy,
    gradients,
    kernels,
    laid_out,
    leaf,
    native_norm,
    randn,
    targets,
)

from einops_fast import EinsumError, autotune, ops
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import ANY_SIZE

F = torch.nn.functional


Function = Callable[..., Any]


def _causal(x: Any) -> Any:
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return torch.softmax(x.masked_fill(~seen, -torch.inf), -1)


def _rows_of_loss(loss: Function) -> Function:
    return lambda x: loss(x, targets(*x.shape[:-1], classes=x.shape[-1]))


CASES: dict[str, tuple[Function, Function, int]] = {
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), 0),
    "log_softmax": (lambda x: ops.log_softmax(x, dim=0), lambda x: torch.log_softmax(x, 0), 0),
    "causal": (lambda x: ops.softmax(x, causal=True), _causal, 0),
    "layer_norm": (
        lambda x, w, b: ops.layer_norm(x, weight=w, bias=b), lambda *given: native_norm(False, *given), 2,
    ),
    "rms_norm": (lambda x, w: ops.rms_norm(x, weight=w, eps=1e-5), lambda *given: native_norm(True, *given), 1),
    "sum": (
        lambda x, w: ops.dropout_add_layer_norm(x, x.flip(0), weight=w, p=0.0),
        lambda x, w: (native_norm(False, x + x.flip(0), w), x + x.flip(0)), 1,
    ),
    "bias_gelu": (ops.bias_gelu, lambda x, b: F.gelu(x + b), 1),
    "cross_entropy": (
        _rows_of_loss(lambda x, target: ops.cross_entropy(x.flatten(0, 1), target.flatten(), label_smoothing=0.1)),
        _rows_of_loss(lambda x, target: cross_entropy(x, target, label_smoothing=0.1)), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "layout"),
    [*[((3, 5, 21), layout) for layout in LAYOUTS], ((2, 8, 24), "contiguous"), ((5, 3, 130), "contiguous")],
)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, shape: tuple[int, ...], layout: str) -> None:
    ours, native, vectors = CASES[name]
    tensors = [laid_out(randn(*shape), layout), *[randn(shape[-1], seed=at) for at in range(vectors)]]
    wanted = gradients(native, [leaf(each) for each in tensors])
    narrow = [leaf(each.float()) for each in tensors]
    expected = gradients(native, [leaf(each) for each in narrow])
    clear_plans()
    with kernels(), autotune(ANY_SIZE):
        found = gradients(ours, narrow)
    assert_near(found, wanted, expected, factor=8.0)


def test_backward_keeps_to_what_serves_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it runs out of the block, as in a thread of autograd's."""
    from einops_fast.backends.triton.rows.contest import Contest

    modes = []
    call = Contest.__call__

    def told(self: Contest, *arrays: Any) -> None:
        modes.append(self.site.mode)
        assert len(self.ways) == 1
        call(self, *arrays)

    monkeypatch.setattr(Contest, "__call__", told)
    clear_plans()
    with kernels():
        with autotune(ANY_SIZE):
            result = ops.softmax(torch.ones(4, 21, device=DEVICE, requires_grad=True))
        result.sum().backward()
    assert modes == [ANY_SIZE, ANY_SIZE]


def test_nobody_else_sets_the_mode() -> None:
    with pytest.raises(EinsumError, match="the mode of autotune is one of"):
        autotune("any" + " size")
