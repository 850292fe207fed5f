"""What the reference of attention needs of torch beside einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from einops_fast.attention.arrays import Arrays
from einops_fast.backends.torch.types import is_traced, may_read_values
from einops_fast.errors import OperandError
from einops_fast.runtime.autocast import autocasts

_LENGTHS = (
    "einops_fast: attention without a kernel of ours computes packed and nested sequences one by one, by their "
    "lengths, which no single graph can depend on. Compile without fullgraph=True, call attention outside of what is "
    "compiled or traced, or pad the sequences and give a mask or segment_ids."
)


class TorchArrays(Arrays):
    """Tensors on any device; everything can be differentiated as often as torch can."""

    def __init__(self) -> None:
        super().__init__(torch)

    def einsum(self, equation: str, a: Any, b: Any) -> Any:
        if autocasts(a):
            with torch.autocast(a.device.type, enabled=False):
                return super().einsum(equation, a, b)
        return super().einsum(equation, a, b)

    def permute(self, array: Any, order: tuple[int, ...]) -> Any:
        return array.permute(*order)  # torch takes less time to read no tuple

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to(getattr(torch, dtype))

    def positions(self, start: int, count: int, like: Any) -> Any:
        return torch.arange(start, start + count, device=like.device)

    def full(self, shape: Sequence[int], value: float, like: Any) -> Any:
        return like.new_full(tuple(shape), value)

    def nothing(self, shape: Sequence[int], *arrays: Any) -> Any:
        zeros = self.full(shape, 0.0, arrays[0])
        return torch.where(zeros > 0, sum([each.sum() for each in arrays]), zeros)

    def largest(self, array: Any) -> Any:
        return array.detach().amax(-1, keepdim=True)

    def maximum(self, a: Any, b: Any) -> Any:
        return torch.maximum(a.detach(), b.detach())

    def pieces(self, array: Any, axis: int, size: int) -> list[Any]:
        return list(array.split(size, axis))

    def dropout(self, array: Any, p: float) -> Any:
        return torch.dropout(array, p, True)

    def integers(self, array: Any) -> list[int]:
        if torch.compiler.is_dynamo_compiling():
            # Where the graph may not break, torch would complain of the first thing that is asked about a length.
            torch._dynamo.graph_break(msg=_LENGTHS)
        elif is_traced() and not torch.compiler.is_compiling():
            raise OperandError(_LENGTHS)
        return super().integers(array)

    def can_look(self, array: Any) -> bool:
        return may_read_values(array)

    def block(self, function: Callable[..., Any], gradients: bool, *arguments: Any) -> Any:
        if not gradients:
            return function(*arguments)
        return checkpoint(function, *arguments, use_reentrant=False)

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()
