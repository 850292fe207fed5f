"""Products with a bias and an activation in their kernel."""

from collections.abc import Sequence
from typing import Any

from fused_steps import fused_step
from kernel_tensors import MEMORY

from einops_fast.backends.triton.contraction.ways import Candidate
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.steps import Fused


def finished_step(tensors: Sequence[Any], activation: str, keeps: bool = False) -> Fused:
    """The step of ``linear`` for an input, a weight and perhaps a bias."""
    x, _, *bias = tensors
    leading = "abc"[: x.dim() - 1]
    step = fused_step(f"{leading}k,nk->{leading}n", tensors[:2]).replace(any_order=False)
    strides = (0,) * (x.dim() - 1) + bias[0].stride() if bias else None
    return step.replace(epilogue=Epilogue(activation, strides, keeps))


def finished(way: Candidate, tensors: Sequence[Any], keeps: bool) -> tuple[Any, ...]:
    found = way.run(MEMORY, 0)(*tensors)
    return found if keeps else (found,)
