"""Modules of torch made of :func:`einops_fast.attention`. Importing this imports torch."""

from einops_fast.nn.causal import CausalSelfAttention
from einops_fast.nn.multihead import MultiHeadAttention

__all__ = ["CausalSelfAttention", "MultiHeadAttention"]
