"""Attention in NumPy, in float64: what all implementations are tested against.

It is written from the definition alone and takes nothing from the package.
"""

import numpy as np


def naive(
    q,
    k,
    v,
    *,
    scale=None,
    causal=False,
    alignment="top_left",
    window=(None, None),
    mask=None,
    bias=None,
    slopes=None,
    softcap=0.0,
    sinks=None,
    q_segments=None,
    kv_segments=None,
    lengths=None,
):
    """The result and the log of the denominator.

    q: (b, h, i, d), k: (b, g, j, d), v: (b, g, j, e) with g dividing h; mask and bias broadcast to (b, h, i, j);
    slopes and sinks to (b, h); segments to (b, i) and (b, j); lengths: keys that exist, per b.
    """
    q, k, v = (np.asarray(each, dtype=np.float64) for each in (q, k, v))
    batch, heads, q_len, features = q.shape
    kv_len = k.shape[2]
    k, v = (each.repeat(heads // each.shape[1], axis=1) for each in (k, v))
    scores = (features**-0.5 if scale is None else scale) * (q @ k.swapaxes(2, 3))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    exist = np.array([kv_len] * batch if lengths is None else lengths).reshape(batch, 1, 1, 1)
    facing = np.arange(q_len)[:, None] + (exist - q_len if alignment == "bottom_right" else 0)
    j = np.arange(kv_len)
    seen = np.broadcast_to(True if mask is None else mask, scores.shape) & (j < exist)
    if causal:
        seen = seen & (j <= facing)
    if window[0] is not None:
        seen = seen & (j >= facing - window[0])
    if window[1] is not None:
        seen = seen & (j <= facing + window[1])
    if q_segments is not None:
        q_ids, kv_ids = np.broadcast_to(q_segments, (batch, q_len)), np.broadcast_to(kv_segments, (batch, kv_len))
        seen = seen & (q_ids[:, None, :, None] == kv_ids[:, None, None, :])
    if slopes is not None:
        scores = scores - np.broadcast_to(slopes, (batch, heads))[..., None, None] * abs(facing - j)
    scores = np.where(seen, scores if bias is None else scores + bias, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    if sinks is not None:
        lse = np.logaddexp(lse, np.broadcast_to(sinks, (batch, heads))[..., None])
    return np.exp(scores - np.where(lse == -np.inf, 0.0, lse)[..., None]) @ v, lse
