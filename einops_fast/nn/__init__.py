"""Modules of torch made of :func:`einops_fast.attention` and :mod:`einops_fast.ops`. Importing this imports torch."""

from einops_fast.nn.causal import CausalSelfAttention
from einops_fast.nn.linear import FusedLinear
from einops_fast.nn.loss import CrossEntropyLoss
from einops_fast.nn.multihead import MultiHeadAttention
from einops_fast.nn.norm import DropoutAddLayerNorm, LayerNorm, RMSNorm
from einops_fast.nn.softmax import LogSoftmax, Softmax

__all__ = [
    "CausalSelfAttention",
    "CrossEntropyLoss",
    "DropoutAddLayerNorm",
    "FusedLinear",
    "LayerNorm",
    "LogSoftmax",
    "MultiHeadAttention",
    "RMSNorm",
    "Softmax",
]
