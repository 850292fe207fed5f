"""Attention in any axis order: the front, the registry of implementations, and the reference."""

from einops_fast.attention.attend import attention
from einops_fast.attention.registry import attention_backend

__all__ = ["attention", "attention_backend"]
