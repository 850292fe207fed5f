"""Attention in float64 by the reference, which is tested for itself: what the kernels are tested against."""

from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from einops_fast.attention.reference import Math
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.arrays import TorchArrays


def oracle(spec: AttentionSpec, inputs: AttentionInputs, kept: Any = None) -> tuple[Any, Any]:
    """Return the result and the logarithms in float64, differentiable.

    Args:
        spec: what to compute.
        inputs: tensors of any floating dtype.
        kept: of which weights dropout leaves, shape ``(*batch, q_len, kv_len)``.
    """
    if not spec.varlen:
        # The reference takes no axis that a bias alone has.
        inputs = replace(inputs, q=inputs.q.expand(*spec.batch, *inputs.q.shape[-2:]))
    # As the front has it: the last query faces the last key of a cache.
    alignment = "bottom_right" if spec.cache else spec.alignment
    with (
        mock.patch.object(TorchArrays, "dropout", lambda self, x, p: x * kept.reshape(x.shape) / (1 - p)),
        # What is tested must not be its own measure: on a GPU, the products would be kernels of ours.
        mock.patch.object(TorchArrays, "einsum", lambda self, equation, a, b: torch.einsum(equation, a, b)),
    ):
        return Math().run(replace(spec, dtype="float64", lse=True, alignment=alignment), inputs)
