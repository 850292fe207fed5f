"""`CausalSelfAttention`: the block that the tutorial of scaled_dot_product_attention builds, without its transposes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from einops_fast.attention.packed import apart
from einops_fast.attention.prepare import check_options
from einops_fast.errors import ShapeError
from einops_fast.nn.heads import check_features, head_dim_of
from einops_fast.ops.checks import check_values
from einops_fast.ops.self_attention import attention_or_zeros

_PATTERN = "b i h d, b j h d, b j h e -> b i h e"


class CausalSelfAttention(nn.Module):
    """Self-attention with one projection to queries, keys and values, and one of the result.

    The arguments are those of the class in PyTorch's tutorial on ``scaled_dot_product_attention``; the weights have the
    names and shapes of nanoGPT's (``c_attn``, ``c_proj``), so its checkpoints load, also with their buffer of a mask.
    Queries, keys and values are read where the projection has written them.

    Args:
        num_heads: number of heads.
        embed_dimension: features of the input and the result; a multiple of ``num_heads``.
        bias: whether the projections add a bias.
        is_causal: whether keys after the query are hidden.
        dropout: probability of dropping weights, and elements of the result, while training.
        device, dtype: of the parameters.

    Raises:
        ShapeError: ``embed_dimension`` is no multiple of ``num_heads``.
        EinsumError: base of it; an option is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import CausalSelfAttention
        >>> block = CausalSelfAttention(num_heads=4, embed_dimension=32, is_causal=True)
        >>> block(torch.zeros(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        num_heads: int,
        embed_dimension: int,
        bias: bool = False,
        is_causal: bool = False,
        dropout: float = 0.0,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_values(dropout=dropout, bias=bias)
        check_options({"causal": is_causal})
        head_dim_of(embed_dimension, num_heads, ("embed_dimension", "num_heads"))
        self.c_attn = nn.Linear(embed_dimension, 3 * embed_dimension, bias=bias, device=device, dtype=dtype)
        self.c_proj = nn.Linear(embed_dimension, embed_dimension, bias=bias, device=device, dtype=dtype)
        self.resid_dropout = nn.Dropout(dropout)
        self.dropout = dropout
        self.num_heads = num_heads
        self.embed_dimension = embed_dimension
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        """Attention of ``x`` to itself: (batch, length, embed_dimension), the result likewise."""
        check_features("x", x, self.embed_dimension)
        if x.dim() != 3:
            raise ShapeError(f"x has three axes, (batch, length, embed_dimension), not shape {tuple(x.shape)}")
        qkv = self.c_attn(x).unflatten(-1, (3, self.num_heads, self.embed_dimension // self.num_heads))
        dropout = self.dropout if self.training else 0.0
        q, k, v = apart(qkv, 2)
        result = attention_or_zeros(_PATTERN, q, k, v, dropout, sequence=("i", "j"), causal=self.is_causal)
        projected: Tensor = self.resid_dropout(self.c_proj(result.flatten(-2)))
        return projected

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        # nanoGPT keeps its mask there, where there is no fused attention.
        state_dict.pop(f"{prefix}bias", None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
