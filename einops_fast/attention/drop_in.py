"""torch's ``scaled_dot_product_attention``, by the same choice of implementations as :func:`einops_fast.attention`."""

from __future__ import annotations

from collections.abc import Hashable
from math import lcm
from typing import Any, NoReturn

from einops_fast.annotations import ArrayT
from einops_fast.attention import registry, torch_state
from einops_fast.attention.arguments import read_call
from einops_fast.attention.attend import attend
from einops_fast.attention.options import Options
from einops_fast.attention.registry import unchecked_names
from einops_fast.attention.words import known
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import OperandError
from einops_fast.foreign import refuse_stand_in
from einops_fast.runtime import tracing
from einops_fast.runtime.tracing import is_tracing
from einops_fast.runtime.tuning import unchecked_mode
from einops_fast.vocabulary import respelled

_PLAIN = "... i d, ... j d, ... j e -> ... i e"
_NAME = "scaled_dot_product_attention"
_GROUPED = "... h i d, ... g j d, ... g j e -> ... h i e"


def scaled_dot_product_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **unknown: NoReturn,
) -> ArrayT:
    """Do what ``torch.nn.functional.scaled_dot_product_attention`` does, on arrays of any framework.

    Args:
        query: (..., heads, q_len, head_dim), with any number of leading axes.
        key: (..., heads, kv_len, head_dim).
        value: (..., heads, kv_len, v_head_dim).
        attn_mask: broadcastable to (..., heads, q_len, kv_len); boolean, True where a key is seen, or numbers that are
            added to the scores; or torch's ``CausalBias``.
        dropout_p: probability of dropping a weight; it is dropped also outside of training. With 1, zeros are left.
        is_causal: hide keys after the query, the first query facing the first key; also beside ``attn_mask``.
        scale: of the products; ``head_dim ** -0.5`` if ``None``.
        enable_gqa: the heads of ``query`` may be a multiple of those of ``key`` and of those of ``value``; where these
            two differ, heads are repeated until they don't.

    Raises:
        EinsumError: as :func:`einops_fast.attention`.
        OperandError: one of these: an array is none, ``is_causal`` is no truth value, or is True beside a
            ``CausalBias``.
        ShapeError: one of these: a ``CausalBias`` was made for other lengths.

    Example:
        >>> import numpy as np
        >>> from einops_fast import scaled_dot_product_attention
        >>> q, k = np.ones((2, 8, 5, 16)), np.ones((2, 4, 7, 16))
        >>> scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).shape
        (2, 8, 5, 16)
    """
    if unknown:
        return respelled(scaled_dot_product_attention, unknown, locals())
    causal: Any = is_causal
    if attn_mask is not None and type(attn_mask).__name__ == "CausalBias":
        found = torch_state.causal_of(attn_mask, query, key)
        if is_causal is not False:
            raise OperandError("attn_mask is a CausalBias, which says what is_causal would say: give one of them")
        attn_mask, causal = None, found
    words: Hashable = None
    if (
        type(dropout_p) is float and dropout_p < 1 and (scale is None or type(scale) is float)
        and not tracing.is_followed() and not torch_state.is_strict()
    ):  # fmt: skip
        words = (
            _NAME, dropout_p, causal, scale, enable_gqa, attn_mask is None or getattr(attn_mask, "dtype", False),
            unchecked_names(), unchecked_mode(), registry.generation,
        )  # fmt: skip
        arrays = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        run = known(words, arrays)
        if run is not None:
            return run(*arrays)
    bias = mask = None
    for name, array in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if not is_tracing():
            refuse_stand_in(array, name)
            torch_state.refuse_without_sizes(array, name)
        if not hasattr(array, "shape") and (array is not None or name != "attn_mask"):
            raise OperandError(f"{name} is of type {type(array).__name__}; it is an array")
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if getattr(flag, "shape", ()) != () or flag not in (True, False):
            raise OperandError(f"{name} is True or False, not {flag!r}")
    if attn_mask is not None:
        kind = dtype_name(attn_mask.dtype)
        if kind == "bool":
            mask = attn_mask
        elif kind in FLOATS:
            bias = attn_mask
        else:
            raise OperandError(f"attn_mask has dtype {kind}; it is boolean or has floating-point numbers")
    for name, array in (("query", query), ("key", key), ("value", value)):
        if len(array.shape) < (3 if enable_gqa else 2):
            raise OperandError(f"{name} has {len(array.shape)} axes; it needs at least {3 if enable_gqa else 2}")
    if enable_gqa and not getattr(key, "is_nested", False) and key.shape[-3] != value.shape[-3]:
        key, value = _as_many_heads(query.shape[-3], key, value)
    nothing_left = isinstance(dropout_p, int | float) and dropout_p == 1
    dropout = 0.0 if nothing_left else dropout_p
    options = Options(causal, scale=scale, dropout_p=dropout)
    pattern = _GROUPED if enable_gqa else _PLAIN
    call = read_call((pattern, query, key, value), None, ("i", "j"), options, {"bias": bias, "mask": mask})
    result = attend(*call, words)
    return result * 0.0 if nothing_left else result


def _as_many_heads(heads: int, key: Any, value: Any) -> tuple[Any, Any]:
    """Return keys and values with the same number of heads, if both numbers divide that of the queries."""
    kinds = key.shape[-3], value.shape[-3]
    if 0 in kinds or heads % kinds[0] or heads % kinds[1]:
        return key, value
    each = heads if is_tracing() else lcm(*kinds)  # a compiler doesn't know it of symbols
    return _repeated(key, each // kinds[0]), _repeated(value, each // kinds[1])


def _repeated(array: Any, times: int) -> Any:
    if times == 1:
        return array
    return array.repeat_interleave(times, -3) if hasattr(array, "repeat_interleave") else array.repeat(times, axis=-3)
