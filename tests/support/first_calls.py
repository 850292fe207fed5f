"""Calls of row operators and of attention on a GPU, and their results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from einops_fast import attention, autotune, ops
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.ops import begun
from einops_fast.runtime import tiers
from einops_fast.runtime.choosing import kernel_hash
from einops_fast.runtime.plan_cache import clear_plans

__all__ = ["Ran", "calls", "decisions", "in_a_checkpoint", "on_a_gpu", "results"]


def on_a_gpu(monkeypatch: Any, folder: Path) -> Iterator[None]:
    """Have operators on the CPU begin as on a GPU; nothing is known of any calls."""
    monkeypatch.setattr(begun, "_INTERPRETED", False)
    monkeypatch.setattr(begun, "gpu_ceilings", lambda device: gpu_ceilings("H200"))
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(folder))
    clear_plans()
    with autotune("auto"):
        yield
    clear_plans()


def in_a_checkpoint(inside: bool = True) -> AbstractContextManager[Any]:
    """Return a block with the hooks of one, or nothing."""
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x) if inside else nullcontext()


class Ran(list[str]):
    """The names of the ways that ran, and what says how long the last one took."""

    def way(self, name: str, run: Callable[..., Any] = torch.sin) -> Callable[..., Any]:
        return lambda *arrays: self.append(name) or run(*arrays)  # type: ignore[func-returns-value]

    def stopwatch(self, seconds: Mapping[str, float]) -> Callable[[], Any]:
        def new() -> Any:
            stopped: list[str] = []
            return SimpleNamespace(
                start=lambda: None, stop=lambda: stopped.append(self[-1]), seconds=lambda: seconds[stopped[-1]]
            )

        return new


def decisions(owner: type, method: str, monkeypatch: Any, folder: Path) -> Iterator[list[str]]:
    """Give the names of the ways that a method keeps; kernels pay at once, and nothing is known of any."""
    names: list[str] = []
    keep = getattr(owner, method)

    def told(self: Any, way: Any, *rest: Any) -> None:
        names.append(way.name)
        keep(self, way, *rest)

    monkeypatch.setattr(owner, method, told)
    monkeypatch.setattr(tiers, "PRICE", 0.0)
    monkeypatch.setattr(tiers, "_PRICE_OF_COMPILER", 0.0)
    kernel_hash()
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(folder))
    clear_plans()
    with autotune("auto"):
        yield names
    clear_plans()


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """What computes a call, and its operands, by name."""

    def given(*shape: int, gradients: bool = True) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_(gradients)

    x, weight, scores = given(64, 128, 256), given(256), given(512, 1000)
    target = torch.randint(0, 1000, (512,), device="cuda")
    q, k, v = (given(2, 300, 4, 64) for _ in range(3))
    return {
        "layer_norm": (lambda x, weight: ops.layer_norm(x, weight=weight, bias=weight), (x, weight)),
        "rms_norm": (lambda x, weight: ops.rms_norm(x, weight=weight), (x, weight)),
        "sum_norm": (lambda x, weight: ops.dropout_add_layer_norm(x, x, weight, p=0.0)[0], (x, weight)),
        "softmax": (lambda x: ops.softmax(x, dim=-1), (x,)),
        "columns": (lambda x: ops.log_softmax(x, dim=1), (x,)),
        "bias_gelu": (ops.bias_gelu, (x, weight)),
        "cross_entropy": (lambda scores: ops.cross_entropy(scores, target), (scores,)),
        "attention": (
            lambda q, k, v: attention("b i h d, b j h d, b j h e -> b i h e", q, k, v, causal=True), (q, k, v)
        ),
        "inference": (lambda q, k, v: attention(q.detach(), k, v.detach(), layout="bshd"), (q, k.detach(), v)),
    }  # fmt: skip


def results(run: Callable[..., Any], operands: tuple[Any, ...]) -> list[Any]:
    """Return the result of a call and its gradients."""
    given = [each.detach().requires_grad_(each.requires_grad) for each in operands]
    result = run(*given)
    leaves = [each for each in given if each.requires_grad and result.requires_grad]
    seed = torch.arange(result.numel(), device="cuda").sin().view(result.shape).to(result.dtype)
    return [result, *torch.autograd.grad(result, leaves, seed, allow_unused=True)] if leaves else [result]
