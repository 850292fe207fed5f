"""What the tests of the operators share: layouts, poisoned memory, kernels wherever they run, error bounds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from optional_mxnet import mxnet_or_skip

from einops_fast.runtime.plan_cache import clear_plans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Function = Callable[..., Any]

LAYOUTS = ("contiguous", "reversed", "sliced", "padded")

EPSILON = {"float64": 1e-13, "float32": 4e-7, "float16": 5e-4, "bfloat16": 4e-3 if DEVICE == "cuda" else 8e-3}
"""What is allowed where the framework itself makes no error. Triton's interpreter cuts bfloat16 off."""


def _anywhere(tensor: Any) -> bool:
    return True


def launched(names: list[str]) -> Any:
    """Has the names of the kernels that are launched written to a list."""
    pytest.importorskip("triton")
    from einops_fast.backends.triton.launching.kernel_call import KernelCall

    call = KernelCall.__call__

    def recorded(self: KernelCall, *arguments: Any) -> bool:
        names.append(self.function.fn.__name__)
        return call(self, *arguments)

    return mock.patch.object(KernelCall, "__call__", recorded)


@contextmanager
def kernels(queued: bool = True) -> Iterator[None]:
    """Tensors go to the kernels also where there is no GPU: to the interpreter. All new memory holds NaN.

    Whether any kernel is ``queued`` is checked.
    """
    calls: list[str] = []
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory
    try:
        with (
            mock.patch("einops_fast.backends.torch.operator.on_gpu", _anywhere),
            launched(calls),
        ):
            assert torch.empty(3, device=DEVICE).isnan().all()
            yield
        assert bool(calls) == queued
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def tiled(plan: Any, **tilings: Any) -> Iterator[None]:
    """Kernels have these tiles, whatever the functions of the plan would list."""
    with mock.patch.multiple(plan, **{name: lambda *_, tiles=tiles: tiles for name, tiles in tilings.items()}):
        clear_plans()
        yield
    clear_plans()


def where(by_kernels: bool) -> Any:
    """Return a block in which tensors go to the kernels, or to torch's functions as where there is no GPU."""
    return kernels() if by_kernels else nullcontext()


def check(
    ours: Function,
    reference: Function,
    tensors: Sequence[Any],
    by_kernels: bool = True,
    factor: float = 2.0,
    of_gradients: float = 3.0,
) -> list[Any]:
    """Check the results and gradients of an operator against those of a reference in float64, and return them.

    In fewer digits, they miss these by at most so many times as much as the reference does in the same dtype.
    """
    with where(by_kernels):
        found = gradients(ours, tensors)
    rounded = str(tensors[0].dtype)[6:]
    if rounded == "float64":
        assert_near(found, gradients(reference, tensors))
        return found
    native, exact = gradients(reference, tensors), [_in_float64(each) for each in tensors]
    wanted = gradients(reference, exact, rounded=rounded)
    assert [each.dtype for each in found] == [each.dtype for each in native]
    results = len(found) - sum(each is not None and each.requires_grad for each in tensors)
    assert_near(found[:results], wanted[:results], native[:results], factor)
    assert_near(found[results:], wanted[results:], native[results:], of_gradients)
    return found


def _in_float64(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().double().requires_grad_(tensor.requires_grad)


def namespace(framework: str) -> Any:
    """The functions of a framework that are NumPy's; skips the test where it isn't installed."""
    if framework == "mxnet":
        return mxnet_or_skip().np
    return pytest.importorskip(framework)


def as_numpy(array: Any) -> Any:
    """An array of any framework as NumPy's."""
    return array.asnumpy() if hasattr(array, "asnumpy") else array.get() if hasattr(array, "get") else array


def randn(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """Normal numbers, the same on every device and, but for rounding, in every dtype."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(DEVICE, getattr(torch, dtype))


def targets(*shape: int, classes: int = 21) -> Any:
    """Numbers of classes; each fifth one doesn't count."""
    found = (randn(*shape, seed=5).abs() * 1e6).long() % classes
    found.view(-1)[::5] = -100
    return found


def cross_entropy(
    x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, z_loss: float = 0.0, dim: int = -1,
) -> Any:  # fmt: skip
    """By the definition, with a matrix of targets."""
    x = x.movedim(dim, -1)
    counts = (target != ignore_index).to(x.dtype)
    one_hot = torch.nn.functional.one_hot(target.clamp_min(0), x.shape[-1]).to(x.dtype)
    weight = torch.ones_like(x[(0,) * (x.dim() - 1)]) if weight is None else weight.to(x.dtype)
    lse = x.logsumexp(-1)
    less = weight * (lse[..., None] - x)
    share = (1 - label_smoothing) * one_hot + label_smoothing / x.shape[-1]
    losses = ((share * less).sum(-1) + z_loss * lse**2) * counts
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / ((one_hot @ weight) * counts).sum()


def native_norm(rms: bool, x: Any, weight: Any = None, bias: Any = None) -> Any:
    """By torch's functions, in the type of ``x``."""
    weight, bias = (None if each is None else each.to(x.dtype) for each in (weight, bias))
    if not rms:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    found = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)
    return found if bias is None else found + bias


def laid_out(values: Any, layout: str) -> Any:
    """The same values with other strides."""
    if layout == "reversed":
        order = tuple(range(values.dim()))[::-1]
        return values.permute(order).contiguous().permute(order)
    if layout == "sliced":
        wide = values.new_zeros([2 * size for size in values.shape])
        return wide[(slice(None, None, 2),) * values.dim()].copy_(values)
    if layout == "padded":
        wide = values.new_zeros([size + 3 for size in values.shape])
        return wide[tuple(slice(2, 2 + size) for size in values.shape)].copy_(values)
    return values.contiguous()


def leaf(values: Any) -> Any:
    """The same tensor, strides and all, as a leaf that wants a gradient."""
    return values.detach().requires_grad_()


def gradients(function: Function, tensors: Sequence[Any], seed: int = 7, rounded: str = "") -> list[Any]:
    """The results of a function and the gradients of its tensors, for random gradients of the results.

    These are ``rounded`` to a dtype, or to that of the results.
    """
    found = function(*tensors)
    results = found if isinstance(found, tuple) else (found,)
    back = [randn(*each.shape, dtype=rounded or str(each.dtype)[6:], seed=seed).to(each) for each in results]
    wanted = [each for each in tensors if each is not None and each.requires_grad]
    return [*results, *torch.autograd.grad(results, wanted, back)]


def assert_near(found: Any, expected: Any, native: Any = None, factor: float = 2.0) -> None:
    """Check that tensors miss others, in float64, by at most ``factor`` times what ``native`` ones miss them by."""
    if not isinstance(found, torch.Tensor):
        for one, exact, theirs in zip(found, expected, native or [None] * len(found), strict=True):
            assert_near(one, exact, theirs, factor)
        return
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape
    kind = str(found.dtype).removeprefix("torch.")
    finite = expected.isfinite()
    torch.testing.assert_close(found.double()[~finite], expected.double()[~finite], equal_nan=True)
    exact = torch.where(finite, expected, 0.0).double()
    error = (torch.where(finite, found, 0.0).double() - exact).abs()
    allowed = EPSILON[kind] * max(float(exact.abs().max()) if exact.numel() else 0.0, 1.0)
    if native is not None:
        native = native.detach()
        missed = (torch.where(finite, native, 0.0).double() - exact).abs()
        allowed = max(allowed, factor * float(missed.max()) if missed.numel() else 0.0)
    assert not error.isnan().any()
    assert not error.numel() or float(error.max()) <= allowed, (float(error.max()), allowed)
