"""torch's ``scaled_dot_product_attention``, by the same choice of implementations as :func:`einops_fast.attention`."""

from __future__ import annotations

from typing import Any

from einops_fast.attention.attend import attention
from einops_fast.errors import EinsumError, OperandError

__all__ = ["scaled_dot_product_attention"]

_PLAIN = "... i d, ... j d, ... j e -> ... i e"
_GROUPED = "... h i d, ... g j d, ... g j e -> ... h i e"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What ``torch.nn.functional.scaled_dot_product_attention`` is, on arrays of any framework.

    Args:
        query: (..., heads, q_len, head_dim), with any number of leading axes.
        key: (..., heads, kv_len, head_dim).
        value: (..., heads, kv_len, v_head_dim).
        attn_mask: broadcastable to (..., heads, q_len, kv_len); boolean, True where a key is seen, or numbers that are
            added to the scores.
        dropout_p: probability of dropping a weight; it is dropped also outside of training.
        is_causal: hide keys after the query, the first query facing the first key.
        scale: of the products; ``head_dim ** -0.5`` if ``None``.
        enable_gqa: the heads of ``query`` may be a multiple of those of ``key`` and ``value``.

    Raises:
        EinsumError: as :func:`einops_fast.attention`.

    Example:
        >>> import numpy as np
        >>> from einops_fast import scaled_dot_product_attention
        >>> q, k = np.ones((2, 8, 5, 16)), np.ones((2, 4, 7, 16))
        >>> scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).shape
        (2, 8, 5, 16)
    """
    bias = mask = None
    if attn_mask is not None:
        if is_causal:
            raise EinsumError("attn_mask and is_causal=True can't be given together")
        if "bool" in str(attn_mask.dtype):
            mask = attn_mask
        else:
            bias = attn_mask
    for name, array in (("query", query), ("key", key), ("value", value)):
        if len(array.shape) < (3 if enable_gqa else 2):
            raise OperandError(f"{name} has {len(array.shape)} axes; it needs at least {3 if enable_gqa else 2}")
    return attention(
        _GROUPED if enable_gqa else _PLAIN,
        query,
        key,
        value,
        sequence=("i", "j"),
        bias=bias,
        mask=mask,
        dropout_p=dropout_p,
        causal=is_causal,
        scale=scale,
    )
