"""Our own kernels: see :mod:`einops_fast.backends.torch_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from einops_fast.attention.math import Math
from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.triton import usable

if not usable():
    raise ImportError("it needs Triton 3.6 or later")

from einops_fast.backends import torch_attention
from einops_fast.backends.torch_attention import GivenAttention, triton_attention, unsupported


def _by_the_reference(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    return Math().run(replace(spec, lse=True), inputs)


torch_attention.second_order = _by_the_reference

__all__ = ["Triton"]


class Triton(Implementation):
    """By the kernels of this package, which read and write any strides."""

    name = "triton"
    efficiency = 0.7
    efficiencies = MappingProxyType({"float32": 0.2})  # Triton multiplies float32 slowly
    seeded = True
    preferred = True

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.transforms:
            return "its kernels have no forward-mode derivative and can't be vmapped"
        return unsupported(spec)

    def unavailable(self, device: str) -> str | None:
        return None if device.startswith("cuda") else "its kernels run on NVIDIA GPUs only"

    def prepared(self, plan: Plan) -> Callable[[Mapping[str, Any]], Any]:
        return GivenAttention(plan)

    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        return triton_attention(spec, inputs)
