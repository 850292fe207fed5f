"""Our own kernels: see :mod:`einops_fast.backends.torch.attention.call`, which is imported for calls on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation, Prepared
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.implementations.devices import capability
from einops_fast.backends.triton_support import why_unusable

_MOST_FEATURES = 256
_ON_HOPPER = 0.85
"""Share of the peak where kernels in Gluon do it: more than cuDNN's."""


class Triton(Implementation):
    """By the kernels of this package, which read and write any strides."""

    name = "triton"
    efficiency = 0.7
    efficiencies = MappingProxyType({"float32": 0.2})  # Triton multiplies float32 slowly
    seeded = True
    preferred = True
    compiles = True

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.transforms:
            return "the kernels have no forward mode and no transforms of functions"
        for name, features in (("head_dim", spec.head_dim), ("v_head_dim", spec.v_head_dim)):
            if not 1 <= features <= _MOST_FEATURES:
                return f"the kernels take 1 to {_MOST_FEATURES} features, {name} is {features}"
        if spec.page_size and spec.gradients:
            return "the kernels have no gradients of a cache in pages"
        return None

    def efficiency_for(self, spec: AttentionSpec) -> float:
        halves = spec.dtype in ("float16", "bfloat16") and spec.device.startswith("cuda")
        if halves and capability(spec.device)[0] == 9 and not (spec.head_dim % 32 or spec.v_head_dim % 32):
            return _ON_HOPPER
        return super().efficiency_for(spec)

    def unavailable(self, device: str) -> str | None:
        if not device.startswith("cuda"):
            return "its kernels run on NVIDIA GPUs only"
        return why_unusable()

    def prepared(self, plan: Plan, arrays: Sequence[Any]) -> Prepared:
        from einops_fast.backends.torch.attention.call import GivenAttention

        return Prepared(GivenAttention(plan, self.by_views(plan).run))

    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        from einops_fast.backends.torch.attention.call import triton_attention

        return triton_attention(spec, inputs)
