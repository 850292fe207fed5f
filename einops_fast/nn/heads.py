"""What attention modules with the weights of transformers share: masks, caches, and attention on split features."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from einops_fast.attention.options import count
from einops_fast.errors import EinsumError, ShapeError
from einops_fast.nn.masks import mask_options
from einops_fast.ops.self_attention import attention_or_zeros

__all__ = ["attend_heads", "check_features", "head_dim_of", "refuse"]

_LENGTH_FIRST = "b i h d, b j g d, b j g e -> b i h e"
_HEADS_FIRST = "b i h d, b g j d, b g j e -> b i h e"


def head_dim_of(features: int, heads: int, names: tuple[str, str] = ("hidden_size", "num_attention_heads")) -> int:
    """Features of a head."""
    of_features, of_heads = names
    features = count(of_features, features, "a number of features, 1 or more")
    heads = count(of_heads, heads, "a number of heads, 1 or more")
    if features % heads:
        raise ShapeError(f"{of_features} {features} isn't a multiple of {of_heads} {heads}")
    return features // heads


def check_features(name: str, tensor: Tensor, size: int) -> None:
    """Raise ShapeError unless the last axis of a tensor has the size that a module is for."""
    shape = tuple(tensor.shape)
    if shape[-1:] != (size,):
        found = f"{name} has no axis"
        if shape:
            found = f"axis {len(shape) - 1} of {name} of shape {shape} has size {shape[-1]}"
        raise ShapeError(f"{found}, but the module is for {size} features")


def attend_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
    dropout_p: float,
    cache: Any = None,
    layer: int | None = None,
    cache_options: Any = None,
) -> Tensor:
    """Attention of (batch, length, heads, head_dim) to keys and values likewise, and to those of a cache.

    Args:
        q, k, v: views of projections; k and v may have fewer heads.
        mask: of four axes, as transformers makes them; see :func:`einops_fast.nn.masks.mask_options`.
        causal: without a mask, whether several queries see no keys after them, the first facing the first.
        scale: of the products.
        dropout_p: probability of dropping a weight.
        cache: transformers' cache of keys and values, which gets the new ones.
        layer: the number that it knows this layer by.
        cache_options: what else it is told.

    Returns:
        (batch, length, heads * head_dim).
    """
    length, axis, pattern = q.shape[1], 1, _LENGTH_FIRST
    if cache is not None:
        own = getattr(cache, "self_attention_cache", cache)
        more = () if cache_options is None else (cache_options,)
        k, v = own.update(k.transpose(1, 2), v.transpose(1, 2), layer, *more)
        axis, pattern = 2, _HEADS_FIRST
    options: dict[str, Any] = {}
    if mask is not None:
        options = mask_options(mask, k.shape[axis])
    elif length > 1 and causal:
        options["causal"] = True
        if k.shape[axis] > length:
            # A cache of fixed size: no query sees what is behind the new keys.
            k, v = k.narrow(axis, 0, length), v.narrow(axis, 0, length)
    found: Tensor = attention_or_zeros(pattern, q, k, v, dropout_p, sequence=("i", "j"), scale=scale, **options)
    return found.flatten(-2)


def refuse(options: dict[str, Any]) -> None:
    """Raise EinsumError if a caller in transformers wants what a module of ours doesn't make."""
    if options.get("output_attentions"):
        raise EinsumError("the weights are never all there: output_attentions can't be True")
    for name in ("encoder_hidden_states", "head_mask"):
        if options.get(name) is not None:
            raise EinsumError(f"{name} isn't supported: it is attention of a sequence to itself")
