"""What attention modules with the weights of transformers share: masks, caches, and attention on split features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from einops_fast.attention.options import count
from einops_fast.attention.packed import apart
from einops_fast.attention.torch_state import plain_mask
from einops_fast.errors import EinsumError, ShapeError
from einops_fast.ops.self_attention import attention_or_zeros

_LENGTH_FIRST = "b i h d, b j g d, b j g e -> b i h e"
_HEADS_FIRST = "b i h d, b g j d, b g j e -> b i h e"


def head_dim_of(features: int, heads: int, names: tuple[str, str] = ("hidden_size", "num_attention_heads")) -> int:
    """Features of a head."""
    of_features, of_heads = names
    features = count(of_features, features, "a number of features, 1 or more")
    heads = count(of_heads, heads, "a number of heads, 1 or more")
    if features % heads:
        swapped = "" if heads % features else "; are they in each other's place?"
        raise ShapeError(f"{of_features} {features} isn't a multiple of {of_heads} {heads}{swapped}")
    return features // heads


def check_features(name: str, tensor: Tensor, size: int) -> None:
    """Raise ShapeError unless the last axis of a tensor has the size that a module is for."""
    shape = tuple(tensor.shape)
    if shape[-1:] != (size,):
        found = f"{name} has no axis"
        if shape:
            found = f"axis {len(shape) - 1} of {name} of shape {shape} has size {shape[-1]}"
        raise ShapeError(f"{found}, but the module is for {size} features")


class Parts(NamedTuple):
    """What the parts of an attention module are called; it has ``scaling`` and ``layer_idx``, too."""

    projections: tuple[str, ...]  # of queries, keys and values, or one for all of them
    head_dim: str
    dropout: str  # of weights: a module, or a probability
    output: str = ""  # the projection of the result, if it has one
    packed: int = -3  # where the axis of queries, keys and values is in the result of one projection, before head_dim


BERT = Parts(("query", "key", "value"), "attention_head_size", "dropout")
GPT = Parts(("c_attn",), "head_dim", "attn_dropout", "c_proj")
LLAMA = Parts(("q_proj", "k_proj", "v_proj"), "head_dim", "attention_dropout", "o_proj")
GPTJ = Parts(("q_proj", "k_proj", "v_proj"), "head_dim", "attn_dropout", "out_proj")  # and GPT-Neo
BLOOM = Parts(("query_key_value",), "head_dim", "attention_dropout", "dense", -2)
T5 = Parts(("q", "k", "v"), "key_value_proj_dim", "dropout", "o")


def attend_by_parts(
    module: Any,
    parts: Parts,
    hidden_states: Tensor,
    mask: Tensor | None,
    cache: Any,
    causal: bool,
    cache_options: Any = None,
    rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the attention of (batch, length, features) to itself, and to keys and values of a cache, by a module.

    Mask and bias are those of :func:`what_is_seen`. ``cache_options`` is what else the cache is told; ``rotate`` turns
    queries and keys, (batch, length, heads, head_dim), by their positions.
    """
    head_dim: int = getattr(module, parts.head_dim)
    dropout: Any = getattr(module, parts.dropout)
    projected = [getattr(module, name)(hidden_states) for name in parts.projections]
    if len(projected) == 1:
        sizes = (3, -1, head_dim) if parts.packed == -3 else (-1, 3, head_dim)
        q, k, v = apart(projected[0].unflatten(-1, sizes), parts.packed)
    else:
        q, k, v = [each.unflatten(-1, (-1, head_dim)) for each in projected]
    if rotate is not None:
        q, k = rotate(q, k)
    length, axis, pattern = q.shape[1], 1, _LENGTH_FIRST
    if cache is not None:
        own = getattr(cache, "self_attention_cache", cache)
        more = () if cache_options is None else (cache_options,)
        k, v = own.update(k.transpose(1, 2), v.transpose(1, 2), module.layer_idx, *more)
        axis, pattern = 2, _HEADS_FIRST
    k, v, options = what_is_seen(k, v, axis, length, mask, causal, bias)
    p: Any = getattr(dropout, "p", dropout) if module.training else 0.0
    found: Tensor = attention_or_zeros(pattern, q, k, v, p, sequence=("i", "j"), scale=module.scaling, **options)
    found = found.flatten(-2)
    return getattr(module, parts.output)(found) if parts.output else found


def what_is_seen(
    k: Tensor, v: Tensor, axis: int, length: int, mask: Tensor | None, causal: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return keys and values, with the keys along ``axis``, and options for a mask of transformers.

    A mask has four axes, (batch, heads, queries, keys). No value of it is read: kernels find out themselves which
    blocks of keys it hides, and a decision by values would wait for a GPU, and be wrong in a traced graph. Without a
    mask, several queries (``length``) that are ``causal`` see no keys after them, the first facing the first. A bias
    of four axes is added.
    """
    seen: dict[str, Any] = {}
    if mask is not None:
        plain = plain_mask(mask, k)
        mask = mask if plain is mask else plain[None, None]
        if mask.dim() != 4:
            raise ShapeError(f"a mask has four axes (batch, heads, queries, keys), not shape {tuple(mask.shape)}")
        # Older versions of transformers make masks for the keys of the whole cache.
        seen["mask" if mask.dtype == torch.bool else "bias"] = mask[..., : k.shape[axis]]
    elif length > 1 and causal:
        if k.shape[axis] > length:  # a cache of fixed size: no query sees what is behind the new keys
            k, v = k.narrow(axis, 0, length), v.narrow(axis, 0, length)
        seen["causal"] = True
    if bias is not None:
        bias = bias[..., : k.shape[axis]]
        seen["bias"] = seen["bias"] + bias if "bias" in seen else bias
    return k, v, seen


def refuse(options: dict[str, Any]) -> None:
    """Raise EinsumError if a caller in transformers wants what a module of ours doesn't make."""
    if options.get("output_attentions"):
        raise EinsumError("the weights are never all there: output_attentions can't be True")
    for name in ("encoder_hidden_states", "head_mask"):
        if options.get(name) is not None:
            raise EinsumError(f"{name} isn't supported: it is attention of a sequence to itself")
