"""Programs that `einops_fast.compile` gets, beside the same ones in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

import einops_fast
from einops_fast import fusions
from einops_fast.compiler.report import REASONS, FusionLog

Program = Callable[..., Any]


class Graphs(list[Any]):
    """A backend of torch.compile that keeps the graphs it gets, and compiles nothing."""

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.append(module)
        return module.forward

    def calls(self, name: str) -> list[Any]:
        """Return the nodes that call a function of this name."""
        nodes = [node for module in self for node in module.graph.nodes]
        return [node for node in nodes if getattr(node.target, "__name__", node.target) == name]


def random_operands(*shapes: Sequence[int], gradients: bool = True) -> list[Any]:
    """Return numbers in float32, the same ones at every call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(tuple(shape), generator=generator).requires_grad_(gradients) for shape in shapes]


def values_and_gradients(program: Program, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the results of a program, and the gradients of a weighted sum of them."""
    found = program(*operands)
    values = [found] if isinstance(found, torch.Tensor) else list(found)
    wanted = [each for each in operands if each.requires_grad]
    if not wanted:
        return values, []
    total = sum([(each * torch.linspace(-1, 2, each.numel()).view(each.shape).to(each)).sum() for each in values])
    return [each.detach() for each in values], list(torch.autograd.grad(total, wanted, materialize_grads=True))


def check(
    program: Program, *calls: Sequence[Any], then: Any = "eager", close: float = 2e-4, **options: Any
) -> FusionLog:
    """Check values and gradients of a compiled program, and return what was fused in it.

    Args:
        program: a function of tensors.
        calls: the arguments of each call, tensors.
        then: the next compiler.
        close: the relative error of values and gradients; a tenth of it is the absolute one.
        options: of `einops_fast.compile`.
    """
    torch._dynamo.reset()
    with fusions() as log:
        compiled = einops_fast.compile(program, then=then, **{"fullgraph": True, **options})
        found = [values_and_gradients(compiled, operands) for operands in calls]
    for operands, (values, gradients) in zip(calls, found, strict=True):
        native, _ = values_and_gradients(program, operands)
        for own, plain in zip(values, native, strict=True):
            assert own.dtype == plain.dtype
            # Who views a result as another shape relies on that.
            assert own.is_contiguous() or not plain.is_contiguous()
        exact = values_and_gradients(program, [_doubled(each) for each in operands])
        for own, wanted in zip(values + gradients, exact[0] + exact[1], strict=True):
            torch.testing.assert_close(own.double(), wanted.double(), rtol=close, atol=close / 10)
    assert {each.reason for each in log.missed} <= set(REASONS) - {"unknown"}, str(log)
    return log


def _doubled(operand: Any) -> Any:
    if not operand.is_floating_point():
        return operand
    return operand.detach().double().requires_grad_(operand.requires_grad)


def attend(q: Any, k: Any, v: Any, mask: Any = None, fill: float = float("-inf")) -> Any:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
    if mask is not None:
        scores = scores.masked_fill(~mask, fill)
    return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v)


def operands(*shape: int, dtype: Any = None, count: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    made = torch.randn(count, *(shape or (2, 3, 6, 8)), generator=generator)
    return [each.to(dtype or torch.float32).requires_grad_() for each in made]
