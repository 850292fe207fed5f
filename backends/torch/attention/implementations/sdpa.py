"""torch's own scaled_dot_product_attention: cuDNN, FlashAttention and the memory-efficient kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from einops_fast.attention.registry import allowed_names
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.implementations.base import Sdpa, is_plain
from einops_fast.backends.torch.attention.implementations.devices import capability, has_cudnn
from einops_fast.backends.torch.attention.implementations.four_axes import (
    ALIGNED,
    FourAxes,
    aligned,
    odd_addresses,
    odd_strides,
)
from einops_fast.runtime.tracing import is_tracing, known

_cuda: Any = torch.backends.cuda

_EXACT = {"float16": ("float16",), "bfloat16": ("bfloat16",), "float32": ("float16", "bfloat16", "float32")}
"""By dtype of the queries, the dtypes of a bias that has the same values in it."""

_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""torch's names of the implementations that its function chooses among."""


class _OnGpu(Sdpa):
    """One backend of CUDA devices."""

    backend: ClassVar[Any]
    features: ClassVar[int] = 256
    multiple: ClassVar[int] = 8
    #: The oldest compute capability that it is for.
    oldest: ClassVar[tuple[int, int]] = (8, 0)
    #: What it computes on.
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16")
    may_refuse = True
    without = (("alibi", "slopes"), ("segments", "segments"), ("window", "window"), *Sdpa.without)

    def lacks(self, spec: AttentionSpec) -> str | None:
        if max(spec.head_dim, spec.v_head_dim) > self.features:
            return f"it takes head_dim up to {self.features}, not {max(spec.head_dim, spec.v_head_dim)}"
        if spec.head_dim % self.multiple or spec.v_head_dim % self.multiple:
            return f"it takes multiples of {self.multiple} as head_dim, not {spec.head_dim} and {spec.v_head_dim}"
        if not spec.head_dim % 8 and odd_strides(spec):  # torch copies others to have a multiple of 8
            return f"it reads {ALIGNED} bytes at a time, and the strides are no multiples"
        if spec.bias_dtype and spec.bias_dtype not in _EXACT.get(spec.dtype, ()):
            return f"it would round the bias from {spec.bias_dtype} to {spec.dtype}"
        if spec.dtype not in self.dtypes:
            return f"it takes {' and '.join(self.dtypes)} only, not {spec.dtype}"
        if spec.deterministic and spec.gradients:
            return "its gradients needn't have the same bits on every run"
        if 0 in (*spec.batch, spec.q_len, spec.kv_len):
            return "it takes no empty arrays"
        if any(strides and strides[-1] != 1 for strides in spec.strides):
            return "it wants the features of a head side by side"
        return super().lacks(spec)

    def unavailable(self, device: str) -> str | None:
        if not device.startswith("cuda"):
            return "it is for tensors on NVIDIA GPUs"
        if capability(device) < self.oldest:
            return f"it needs a GPU of compute capability {'.'.join(map(str, self.oldest))} or later"
        return None

    def refuses(self, spec: AttentionSpec, inputs: AttentionInputs | None = None) -> str | None:
        reason = super().refuses(spec) or (self.lacks_on(spec) if spec.device else None)
        return reason or (None if inputs is None else self._refuses_arrays(spec, inputs))

    def lacks_on(self, spec: AttentionSpec) -> str | None:
        """Return what of the spec it can't do on the device."""
        return None

    def _refuses_arrays(self, spec: AttentionSpec, inputs: AttentionInputs) -> str | None:
        axes = self.axes(spec)
        assert isinstance(axes, FourAxes)
        if not spec.head_dim % 8 and odd_addresses(inputs):
            return f"it reads {ALIGNED} bytes at a time, and an operand doesn't begin at a multiple"
        mask, causal, _ = self._mask(spec, inputs, axes)
        q, k, v = axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)
        parameters = _cuda.SDPAParams(q, k, v, mask, spec.dropout_p, causal, axes.grouped)
        can = getattr(_cuda, f"can_use_{self.name}_attention")(parameters, False)
        return None if can else "torch says that it can't be used for these tensors"

    def _operands(self, inputs: AttentionInputs, axes: FourAxes) -> tuple[Any, ...]:
        found = super()._operands(inputs, axes)
        return found if is_tracing() else aligned(*found)

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        if is_tracing():
            # Nobody can ask torch now whether the library takes these tensors: torch goes on to the next one where not.
            allowed = allowed_names() or ("efficient", "math")
            order = [self.backend, *[_BACKENDS[name] for name in allowed if name in _BACKENDS]]
            with sdpa_kernel(list(dict.fromkeys(order)), set_priority=True):
                return super().call(spec, axes, inputs)
        with sdpa_kernel(self.backend):
            return super().call(spec, axes, inputs)


class Flash(_OnGpu):
    """FlashAttention-2, as torch has it."""

    name = "flash"
    efficiency = 0.48
    backend = SDPBackend.FLASH_ATTENTION
    multiple = 1
    without = (("bias", "bias"), ("mask", "mask"), *_OnGpu.without)

    def lacks(self, spec: AttentionSpec) -> str | None:
        if not spec.scale > 0:
            return f"it hides keys before it scales the scores, so it takes a positive scale only, not {spec.scale}"
        if spec.head_dim != spec.v_head_dim:
            return f"it takes the same head_dim for q, k and v only, not {spec.head_dim} and {spec.v_head_dim}"
        odd = _is_odd(spec)
        if odd and spec.alignment == "top_left":
            return "it has causality only where the last query faces the last key"
        if odd and not known(spec.q_len <= spec.kv_len):
            return "it has no zeros for queries without any key"
        if spec.lse and spec.gradients:
            return "the log of the denominator that it returns has no gradient"
        if (spec.lse or odd) and spec.head_dim % 8:
            return f"it wants a multiple of 8 as head_dim here, not {spec.head_dim}"
        axes = self.axes(spec)
        if (spec.lse or odd) and isinstance(axes, FourAxes) and axes.grouped:
            return "torch lets heads share their keys only where lengths are equal and no lse is asked for"
        return super().lacks(spec)

    def lacks_on(self, spec: AttentionSpec) -> str | None:
        wide = spec.gradients and spec.head_dim > 192 and (spec.head_dim <= 224 or spec.dropout_p > 0)
        if wide and capability(spec.device) not in ((8, 0), (9, 0), (10, 0), (10, 3)):
            return f"its gradients with head_dim {spec.head_dim} don't fit in this GPU's shared memory"
        return None

    def _refuses_arrays(self, spec: AttentionSpec, inputs: AttentionInputs) -> str | None:
        # The operator's causality isn't what torch asks about.
        return super()._refuses_arrays(replace(spec, causal=spec.causal and spec.q_len == spec.kv_len), inputs)

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        # While a compiler traces, torch may have to go on to another library, which the operator doesn't.
        by_torch = is_tracing() and not (spec.lse or _is_odd(spec))
        if axes.grouped or spec.head_dim % 8 or by_torch:
            return super().call(spec, axes, inputs)
        # The operator itself, whose causality is that of FlashAttention: the last query faces the last key.
        result, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            *self._operands(inputs, axes), spec.dropout_p, spec.causal, False, scale=spec.scale
        )  # fmt: skip
        return axes.back(result), axes.back(lse) if spec.lse else None


def _is_odd(spec: AttentionSpec) -> bool:
    """Return whether queries and keys that causality lets face each other may differ in number."""
    return spec.causal and not known(spec.q_len == spec.kv_len)


class _WithMask(_OnGpu):
    """A backend that takes a bias, which stands for a mask too."""

    without = (("lse", "log of the denominator that torch returns"), *_OnGpu.without)

    def lacks(self, spec: AttentionSpec) -> str | None:
        facing = spec.alignment == "top_left" or known(spec.q_len == spec.kv_len)
        if spec.causal and not facing and spec.bias is None:
            return "it has causality only where the first query faces the first key"
        whole = [shape[-2:] == (spec.q_len, spec.kv_len) for shape in (spec.bias, spec.mask) if shape is not None]
        if spec.causal and whole and not any(whole):
            return "causality beside a bias would need a mask of all queries and keys"
        return super().lacks(spec)

    def _hidden(self, dtype: Any) -> float:
        # Not -inf: a query that sees no key must not become NaN. It sees all of them, and its result is overwritten.
        return float(torch.finfo(dtype).min) / 2

    def _mask(self, spec: AttentionSpec, inputs: AttentionInputs, axes: FourAxes) -> tuple[Any, bool, Any]:
        mask, causal, allowed = super()._mask(spec, inputs, axes)
        if mask is not None and mask.dtype == torch.bool:
            dtype = inputs.q.dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, self._hidden(dtype))
        if mask is not None and mask.stride(-1) != 1:  # no library takes such a mask
            mask = mask.contiguous()
        return mask, causal, allowed

    def _finished(self, result: Any, allowed: Any) -> Any:
        return result if allowed is None else torch.where(allowed.any(-1, keepdim=True), result, 0.0)


class Cudnn(_WithMask):
    """cuDNN's fused attention."""

    name = "cudnn"
    efficiency = 0.8
    plans = True
    backend = SDPBackend.CUDNN_ATTENTION
    without = (("bias_gradient", "gradient of the bias"), *_WithMask.without)

    def unavailable(self, device: str) -> str | None:
        return super().unavailable(device) or (None if has_cudnn() else "this torch has no cuDNN")

    def lacks_on(self, spec: AttentionSpec) -> str | None:
        if max(spec.head_dim, spec.v_head_dim) > 128 and capability(spec.device)[0] not in (9, 10):
            return "it takes head_dim up to 128 on this GPU"
        return None

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        # The library's own operator refuses what torch's function would give to another one.
        plain = None if is_tracing() else self.plain(spec, axes)
        if plain is None:
            return super().call(spec, axes, inputs)
        return axes.back(plain(axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v))), None

    def plain(self, spec: AttentionSpec, axes: FourAxes) -> Callable[..., Any] | None:
        """Call the operator itself: to have torch choose it takes twice as long on the host."""
        if axes.grouped or not is_plain(spec):
            return None
        operator = torch.ops.aten._scaled_dot_product_cudnn_attention.default
        options = None, spec.gradients, spec.dropout_p, spec.causal, False

        def run(q: Any, k: Any, v: Any) -> Any:
            return operator(*aligned(q, k, v), *options, scale=spec.scale)[0]

        return run


class Efficient(_WithMask):
    """The memory-efficient kernels, from xFormers."""

    name = "efficient"
    recordable = True
    efficiency = 0.2
    efficiencies = MappingProxyType({"float32": 0.5})
    backend = SDPBackend.EFFICIENT_ATTENTION
    dtypes = ("float16", "bfloat16", "float32")
    features = 1 << 16
    oldest = (5, 0)

    def lacks_on(self, spec: AttentionSpec) -> str | None:
        if spec.dtype == "bfloat16" and capability(spec.device) < (8, 0):
            return "it has no bfloat16 on this GPU"
        return None

    def lacks(self, spec: AttentionSpec) -> str | None:
        found = super().lacks(spec)
        axes = self.axes(spec)
        if found is None and isinstance(axes, FourAxes) and axes.grouped:
            return "it has no heads that share their keys"
        return found

    def axes(self, spec: AttentionSpec) -> FourAxes | str:
        axes = super().axes(spec)
        if isinstance(axes, FourAxes) and axes.kv_heads == 1:
            # One head of keys for all: it is the same memory for every head.
            return axes._replace(kv_heads=axes.heads, kv_sizes=axes.sizes)
        return axes
