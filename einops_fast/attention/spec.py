"""What an attention computes, apart from the arrays: the one description that every implementation reads.

Axes are in canonical order: batch axes (heads are batch axes too), then positions, then features. An operand that
lacks a batch axis has size 1 there. Batch axes over which ``k`` and ``v`` are both shared come last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

from einops_fast.annotations import Alignment


@dataclass(frozen=True)
class AttentionSpec:
    """One attention: ``softmax(scale * q @ k.T + bias) @ v`` and what is asked for beside it."""

    batch: tuple[int, ...]  # sizes of the batch axes of the result
    q_batch: tuple[int, ...]  # the same of `q`, with 1 where it lacks an axis
    k_batch: tuple[int, ...]  # of `k`; with pages, its first axis counts them
    v_batch: tuple[int, ...]  # of `v`
    q_len: int  # queries, or those of the longest sequence
    kv_len: int  # keys, or those of the longest sequence, or places for them in the cache
    head_dim: int  # features of `q` and `k`
    v_head_dim: int  # features of `v` and the result
    dtype: str  # of q, k, v and the result
    scale: float  # of the products of `q` and `k`
    causal: bool = False  # whether keys after the query are hidden
    alignment: Alignment = "top_left"  # which query faces which key: the first the first, or the last the last
    # how many keys before and after the facing one are seen; `None` for all
    window: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0  # scores go through `softcap * tanh(score / softcap)`; 0 for not
    dropout_p: float = 0.0  # probability of a weight being dropped
    bias: tuple[int, ...] | None = None  # shape of the additive bias, broadcastable to `(*batch, q_len, kv_len)`
    mask: tuple[int, ...] | None = None  # shape of the boolean mask, likewise; True where a key is seen
    alibi: bool = False  # whether there are slopes of a linear bias by distance
    sinks: bool = False  # whether there are logits that join the denominator only
    segments: bool = False  # whether queries see keys of their own segment only
    varlen: bool = False  # whether sequences of several lengths are packed along the positions
    cache: bool = False  # whether the number of keys differs by sequence (`cache_seqlens`)
    page_size: int = 0  # keys in a page where a block table says where the pages are; else 0
    lse: bool = False  # whether the log of the denominator is asked for
    gradients: bool = False  # whether gradients may be asked for
    bias_gradient: bool = False  # whether one of the bias may be
    deterministic: bool = False  # whether gradients must have the same bits on every run
    # the canonical axes of the result, slowest first, in which its memory is to lie: then it is contiguous in the
    # order that was asked for. Empty for canonical order. A library may ignore it.
    order: tuple[int, ...] = ()
    # of q, k and v as canonical views, in elements; empty where they aren't known
    strides: tuple[tuple[int, ...], ...] = ()
    framework: str = "torch"  # name of the backend that the arrays belong to
    device: str = ""  # where they are; empty where that doesn't matter
    # whether derivatives are asked for that only calls recorded one by one have: forward mode and transforms of
    # functions
    transforms: bool = False
    bias_dtype: str = ""  # of the bias; empty without one
    # sizes of the batch axes of the sinks, with 1 where they lack an axis; empty without sinks
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
        # Written out: Dynamo can't trace vars().
        return (
            self.q, self.k, self.v, self.bias, self.mask, self.alibi_slopes, self.sinks, self.q_segments,
            self.kv_segments, self.cu_seqlens_q, self.cu_seqlens_kv, self.cache_seqlens, self.block_table, self.seed,
        )  # fmt: skip
