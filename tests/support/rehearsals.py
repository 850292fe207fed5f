"""Problems of row operators and of attention on tensors without memory, for whoever rehearses them without a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from einops_fast.attention.attend import plan_of
from einops_fast.attention.choice import Undecided
from einops_fast.attention.options import Options, Request
from einops_fast.backends.torch import operator
from einops_fast.backends.torch.attention.beginning import AttentionProblem
from einops_fast.backends.torch.attention.implementations.triton import Triton
from einops_fast.backends.torch.beginning import CallProblem
from einops_fast.backends.torch.ops import activation, cross_entropy, norm, softmax
from einops_fast.backends.torch.ops.begun import _OperatorProblem

__all__ = ["as_on_a_gpu", "attention_problem", "operator_problem", "tensor"]


def as_on_a_gpu() -> None:
    """Take operators in this process for ones on a GPU that tell what they would call; Triton mustn't interpret."""
    operator.on_gpu = lambda tensor: True
    for module in (norm, softmax, activation, cross_entropy):
        module.begun = lambda calls: calls  # type: ignore[attr-defined]


def tensor(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Return a tensor that has a gradient if its numbers can have one."""
    return torch.empty(shape, dtype=dtype, requires_grad=dtype.is_floating_point)


def operator_problem(calls: Any) -> CallProblem[Any]:
    """Return the problem of what an operator's function returns."""
    return _OperatorProblem(calls, [each is not None and each.requires_grad for each in calls.arrays])


def attention_problem(*shape: int, shapes: Sequence[Sequence[int]] = (), **options: Any) -> CallProblem[Any]:
    """Return the problem of an attention whose q, k and v have one shape, or one each."""
    q, k, v = (tensor(*each) for each in shapes or [shape] * 3)
    request = Request("b i h d, b j h d, b j h e -> b i h e", None, Options(**options))
    plan = plan_of(request, {"q": q, "k": k, "v": v}, "torch")
    plan = replace(plan, spec=replace(plan.spec, device="cuda:0"))
    undecided = Undecided([Triton()], {"triton": 1.0}, {}, "attention")
    return AttentionProblem(plan, undecided, (q, k, v))
