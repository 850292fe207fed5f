"""`qkv_self_attention`: one projection to queries, keys and values, and attention on views of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einops_fast.attention.attend import attention
from einops_fast.attention.options import count
from einops_fast.attention.packed import apart
from einops_fast.attention.torch_state import plain_mask
from einops_fast.errors import ShapeError
from einops_fast.ops.activation import dropout_bias_activation, read_linear
from einops_fast.ops.checks import check_mask, check_values
from einops_fast.ops.dispatch import computed, function_for
from einops_fast.vocabulary import names_of, renamed, respelled

_OPTIONS = {*names_of(attention)} - {"bias", "causal", "dropout_p", "layout", "mask", "scale", "sequence"}
"""What else attention takes."""

_PATTERN = "... i h d, ... j g d, ... j g e -> ... i h e"


def qkv_self_attention(
    input: Any,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any = None,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool | str = False,
    scale: float | None = None,
    *,
    num_kv_heads: int | None = None,
    training: bool = True,
    **options: Any,
) -> Any:
    """Attention of ``input`` to itself, from one packed projection, for tensors of torch.

    Queries, keys and values are views of the projection with different offsets: none is copied. The names of the
    arguments are those of ``torch.nn.functional``'s ``multi_head_attention_forward`` and
    ``scaled_dot_product_attention``; the projection of the result is left to the caller.

    Args:
        input: (..., length, features).
        num_heads: heads of the queries.
        in_proj_weight: ((num_heads + 2 * num_kv_heads) * head_dim, features): rows of the queries, then those of the
            keys, then those of the values.
        in_proj_bias: one number per row of the weight.
        attn_mask: broadcastable to (..., num_heads, length, length): boolean, True where a key is seen, or numbers that
            are added to the scores.
        dropout_p: probability of dropping a weight; with 1 the result is zeros.
        is_causal: hide keys after the query; a mask may be given, too.
        scale: of the products; ``head_dim ** -0.5`` if ``None``.
        num_kv_heads: heads of keys and values, which divides ``num_heads``; the same if ``None``.
        training: False for no dropout.
        options: what else :func:`einops_fast.attention` takes: ``window``, ``softcap``, ``return_lse``, …

    Returns:
        (..., length, num_heads * head_dim); with ``return_lse`` also the logs of the denominators,
        (..., length, num_heads).

    Raises:
        ShapeError: sizes don't fit.
        EinsumError: base of it; an option is wrong.
        OperandError: it isn't a tensor of torch.

    Example:
        >>> import torch
        >>> from einops_fast import ops
        >>> x, weight = torch.zeros(2, 5, 32), torch.zeros(32 + 2 * 16, 32)
        >>> ops.qkv_self_attention(x, 4, weight, is_causal=True, num_kv_heads=2).shape
        torch.Size([2, 5, 32])
    """
    if not options.keys() <= _OPTIONS:
        return respelled(qkv_self_attention, options, locals(), _OPTIONS)
    arrays = {"in_proj_weight": in_proj_weight, "in_proj_bias": in_proj_bias, "attn_mask": attn_mask}
    function_for("linear", input, "qkv_self_attention", ("in_proj_weight",), **arrays)
    if len(input.shape) < 2:
        raise ShapeError(f"input has shape {tuple(input.shape)}; it needs axes of positions and features")
    num_heads, kv_heads = head_counts(num_heads, num_kv_heads)
    head_dim = _head_dim(num_heads, kv_heads, tuple(in_proj_weight.shape))
    check_values(dropout_p=dropout_p)
    *batch, length, _ = input.shape
    attn_mask = plain_mask(attn_mask, input)
    check_mask("attn_mask", attn_mask, "scores", (*batch, num_heads, length, length))
    packed = computed(read_linear, (input, in_proj_weight, in_proj_bias), "none", "in_proj_", "qkv_self_attention")
    packed = packed.unflatten(-1, (num_heads + 2 * kv_heads, head_dim))
    q, k, v = apart(packed, -2, (num_heads, kv_heads, kv_heads))
    if attn_mask is not None:
        name = "mask" if "bool" in str(attn_mask.dtype) else "bias"
        options[name] = attn_mask
    found = attention_or_zeros(
        _PATTERN, q, k, v, dropout_p if training else 0.0, sequence=("i", "j"), causal=is_causal, scale=scale, **options
    )
    result, *others = found if isinstance(found, tuple) else (found,)
    result = result.flatten(-2)
    return (result, *others) if others else result


def attention_or_zeros(pattern: str, q: Any, k: Any, v: Any, dropout_p: float, **options: Any) -> Any:
    """:func:`einops_fast.attention`, also with a probability of 1, for which it has no factor: then zeros."""
    if dropout_p != 1:
        return attention(pattern, q, k, v, dropout_p=dropout_p, **options)
    found = attention(pattern, q, k, v, **options)
    result, *others = found if isinstance(found, tuple) else (found,)
    result = dropout_bias_activation(result, p=1.0)
    return (result, *others) if others else result


def attention_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`qkv_self_attention` hands to attention by its names there; EinsumError for what it doesn't."""
    return renamed(qkv_self_attention, options, _OPTIONS)


def head_counts(num_heads: Any, num_kv_heads: Any = None, name: str = "num_heads") -> tuple[int, int]:
    """Heads of queries, and of keys and values, which are as many if ``None``."""
    heads = count(name, num_heads, "a number of heads, 1 or more")
    kv_heads = heads if num_kv_heads is None else count("num_kv_heads", num_kv_heads, "a number of heads, 1 or more")
    if heads % kv_heads:
        raise ShapeError(f"{name} {heads} isn't a multiple of num_kv_heads {kv_heads}")
    return heads, kv_heads


def _head_dim(num_heads: int, num_kv_heads: int, shape: tuple[int, ...]) -> int:
    """Features of a head, of a packed weight of this shape."""
    heads = num_heads + 2 * num_kv_heads
    if len(shape) != 2 or shape[0] % heads or not shape[0]:
        raise ShapeError(
            f"in_proj_weight has shape {shape}: its rows have to be a multiple of {heads}, for {num_heads} heads of "
            f"queries and twice {num_kv_heads} of keys and values"
        )
    return shape[0] // heads
