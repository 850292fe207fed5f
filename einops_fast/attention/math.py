"""The implementation that is always there: the reference, see :mod:`einops_fast.attention.reference`."""

from __future__ import annotations

from typing import Any

from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.memory import current_score_memory
from einops_fast.attention.prediction import unfused_seconds
from einops_fast.attention.reference import reference_attention
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.planning.cost import Ceilings

__all__ = ["Math"]


class Math(Implementation):
    """By einsum and elementwise calls."""

    name = "math"
    recordable = True
    efficiency = 0.0

    def lacks(self, spec: AttentionSpec) -> None:
        return None

    def seconds(self, spec: AttentionSpec, on: Ceilings) -> float:
        return unfused_seconds(spec, on)

    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        result, lse = reference_attention(spec, inputs, arrays_of(spec.framework), current_score_memory())
        return result, lse if spec.lse else None
