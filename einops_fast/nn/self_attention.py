"""`QKVSelfAttention`: self-attention from one packed projection, with the state of torch's `MultiheadAttention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from einops_fast import ops
from einops_fast.attention.prepare import check_options
from einops_fast.nn.heads import head_dim_of
from einops_fast.ops.checks import check_values
from einops_fast.ops.self_attention import attention_options, head_counts


class QKVSelfAttention(nn.Module):
    """Self-attention by :func:`einops_fast.ops.qkv_self_attention`, and a projection of its result.

    Its state is that of a :class:`torch.nn.MultiheadAttention` for self-attention, where heads of keys aren't fewer.

    Args:
        embed_dim: features of the input and the result.
        num_heads: heads of the queries.
        dropout: probability of dropping weights while training.
        bias: whether the projections add a bias.
        num_kv_heads: heads of keys and values, which divides ``num_heads``; the same if ``None``.
        is_causal: whether keys after the query are hidden.
        device, dtype: of the parameters.
        scale: of the products; ``head_dim ** -0.5`` if ``None``.
        options: what else the function takes, for every call: ``window``, ``softcap``, …

    Raises:
        ShapeError: sizes don't divide.
        EinsumError: base of it; an option is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import QKVSelfAttention
        >>> attend = QKVSelfAttention(32, 4, is_causal=True)
        >>> attend.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())
        <All keys matched successfully>
        >>> attend(torch.zeros(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        is_causal: bool | str = False,
        device: Any = None,
        dtype: Any = None,
        scale: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_values(dropout=dropout, bias=bias)
        options = attention_options(options)
        check_options({"causal": is_causal, "scale": scale, **options})
        num_heads, kv_heads = head_counts(num_heads, num_kv_heads)
        rows = embed_dim + 2 * kv_heads * head_dim_of(embed_dim, num_heads, ("embed_dim", "num_heads"))
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.dropout, self.is_causal, self.options = dropout, is_causal, {"scale": scale, **options}
        self.in_proj_weight = nn.Parameter(torch.empty(rows, embed_dim, device=device, dtype=dtype))
        self.in_proj_bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's module does it."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, input: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Attention of ``input`` to itself.

        Args:
            input: (..., length, embed_dim), the result likewise.
            attn_mask: as for :func:`einops_fast.ops.qkv_self_attention`.
        """
        attended = ops.qkv_self_attention(
            input, self.num_heads, self.in_proj_weight, self.in_proj_bias, attn_mask, self.dropout, self.is_causal,
            num_kv_heads=self.num_kv_heads, training=self.training, **self.options,
        )  # fmt: skip
        projected: Tensor = self.out_proj(attended)
        return projected
