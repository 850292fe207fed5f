"""Whether heads that share keys have gradients of k and v of their own, which are summed up afterwards."""

from __future__ import annotations

from math import prod

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.problem import shared_axes

_TILE = 128
"""Keys that a program owns."""

_RATE = 4.5e12
"""FLOPs per second that a multiprocessor makes of a program's products."""

_BANDWIDTH = 3.5e12
"""Bytes per second of memory."""

_MORE = 1e-5
"""Seconds that two launches more take."""


def pays_apart(spec: AttentionSpec, units: int) -> bool:
    """Return whether that takes less time than having a program go through all the heads that share its keys.

    A tile of keys is one program's: one head of keys of 4096 positions keeps 32 multiprocessors busy, each for as long
    as all queries take, and so much longer if many heads ask. Apart, there are as many times more tiles; but their
    gradients, of the size of q and of v for each head, are written and read once more.
    """
    shared = shared_axes(spec)
    share = prod(spec.batch[at] for at in shared)
    if share == 1 or spec.varlen or spec.cache or spec.page_size or not (spec.q_len and spec.kv_len):
        return False
    features = spec.head_dim + spec.v_head_dim
    tiles = prod(spec.batch) // share * -(-spec.kv_len // _TILE)
    one = 4 * _TILE * spec.q_len * features / _RATE

    def seconds(tiles: int, each: int) -> float:
        """Of so many tiles that each take so many times as long as one head's queries, of which half may be seen."""
        # Where each program has one tile, it's the longest that counts.
        seen = 0.5 if spec.causal and tiles > units else 1.0
        return -(-tiles // units) * each * one * seen

    summed = 4 * prod(spec.batch) * spec.kv_len * features / _BANDWIDTH + _MORE
    return seconds(tiles * share, 1) + summed < seconds(tiles, share)
