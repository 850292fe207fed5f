"""What an attention computes, apart from the arrays: the one description that every implementation reads.

Axes are in canonical order: batch axes (heads are batch axes too), then positions, then features. An operand that
lacks a batch axis has size 1 there. Batch axes over which ``k`` and ``v`` are both shared come last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, Literal

__all__ = ["Alignment", "AttentionInputs", "AttentionSpec"]

Alignment = Literal["top_left", "bottom_right"]


@dataclass(frozen=True)
class AttentionSpec:
    """One attention: ``softmax(scale * q @ k.T + bias) @ v`` and what is asked for beside it.

    Attributes:
        batch: sizes of the batch axes of the result.
        q_batch: the same of ``q``, with 1 where it lacks an axis.
        k_batch: of ``k``; with pages, its first axis counts them.
        v_batch: of ``v``.
        q_len: queries, or those of the longest sequence.
        kv_len: keys, or those of the longest sequence, or places for them in the cache.
        head_dim: features of ``q`` and ``k``.
        v_head_dim: features of ``v`` and the result.
        dtype: of q, k, v and the result.
        scale: of the products of ``q`` and ``k``.
        causal: whether keys after the query are hidden.
        alignment: which query faces which key: the first the first, or the last the last.
        window: how many keys before and after the facing one are seen; ``None`` for all.
        softcap: scores go through ``softcap * tanh(score / softcap)``; 0 for not.
        dropout_p: probability of a weight being dropped.
        bias: shape of the additive bias, broadcastable to ``(*batch, q_len, kv_len)``.
        mask: shape of the boolean mask, likewise; True where a key is seen.
        alibi: whether there are slopes of a linear bias by distance.
        sinks: whether there are logits that join the denominator only.
        segments: whether queries see keys of their own segment only.
        varlen: whether sequences of several lengths are packed along the positions.
        cache: whether the number of keys differs by sequence (``cache_seqlens``).
        page_size: keys in a page where a block table says where the pages are; else 0.
        lse: whether the log of the denominator is asked for.
        gradients: whether gradients may be asked for.
        bias_gradient: whether one of the bias may be.
        deterministic: whether gradients must have the same bits on every run.
        order: the canonical axes of the result, slowest first, in which its memory is to lie: then it is contiguous
            in the order that was asked for. Empty for canonical order. A library may ignore it.
        strides: of q, k and v as canonical views, in elements; empty where they aren't known.
        framework: name of the backend that the arrays belong to.
        device: where they are; empty where that doesn't matter.
        transforms: whether derivatives are asked for that only calls recorded one by one have: forward mode and
            transforms of functions.
        bias_dtype: of the bias; empty without one.
        sinks_batch: sizes of the batch axes of the sinks, with 1 where they lack an axis; empty without sinks.
    """

    batch: tuple[int, ...]
    q_batch: tuple[int, ...]
    k_batch: tuple[int, ...]
    v_batch: tuple[int, ...]
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    dtype: str
    scale: float
    causal: bool = False
    alignment: Alignment = "top_left"
    window: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    dropout_p: float = 0.0
    bias: tuple[int, ...] | None = None
    mask: tuple[int, ...] | None = None
    alibi: bool = False
    sinks: bool = False
    segments: bool = False
    varlen: bool = False
    cache: bool = False
    page_size: int = 0
    lse: bool = False
    gradients: bool = False
    bias_gradient: bool = False
    deterministic: bool = False
    order: tuple[int, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    framework: str = "torch"
    device: str = ""
    transforms: bool = False
    bias_dtype: str = ""
    sinks_batch: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Plans are looked up by it in each call, and there are many fields.
        return hash(tuple([getattr(self, each.name) for each in fields(self)]))

    def has(self, feature: str) -> bool:
        """Return whether the field of this name asks for something."""
        value = getattr(self, feature)
        return value is not None and value != (None, None) and bool(value)

    @property
    def group(self) -> int:
        """How many heads of queries share one of keys."""
        first = 1 if self.page_size else 0
        return max(1, prod(self.q_batch[first:]) // max(1, prod(self.k_batch[first:])))

    @property
    def flops(self) -> int:
        """Of the two products, as if every query saw every key."""
        return 2 * prod(self.batch) * self.q_len * self.kv_len * (self.head_dim + self.v_head_dim)


@dataclass
class AttentionInputs:
    """The arrays of one attention, as canonical views (see :class:`AttentionSpec`)."""

    q: Any
    k: Any
    v: Any
    bias: Any = None
    mask: Any = None
    alibi_slopes: Any = None
    sinks: Any = None
    q_segments: Any = None
    kv_segments: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_kv: Any = None
    cache_seqlens: Any = None
    block_table: Any = None
    seed: Any = None

    def all(self) -> tuple[Any, ...]:
        """Return the arrays in the order of their names, ``None`` for those that there aren't."""
        return (
            self.q, self.k, self.v, self.bias, self.mask, self.alibi_slopes, self.sinks, self.q_segments,
            self.kv_segments, self.cu_seqlens_q, self.cu_seqlens_kv, self.cache_seqlens, self.block_table, self.seed,
        )  # fmt: skip
