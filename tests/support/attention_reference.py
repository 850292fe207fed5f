"""Attention as a loop over queries, in float64: what all implementations are tested against.

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
    share = heads // k.shape[1]
    scale = features**-0.5 if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, (batch, heads, q_len, kv_len))
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, np.float64), (batch, heads, q_len, kv_len))
    slopes = np.broadcast_to(0.0 if slopes is None else np.asarray(slopes, np.float64), (batch, heads))
    result = np.zeros((batch, heads, q_len, v.shape[3]))
    lse = np.full((batch, heads, q_len), -np.inf)
    for b in range(batch):
        exist = kv_len if lengths is None else int(lengths[b])
        shift = exist - q_len if alignment == "bottom_right" else 0
        for h in range(heads):
            for i in range(q_len):
                keys, scores = [], []
                for j in range(exist):
                    facing = i + shift
                    if causal and j > facing:
                        continue
                    if window[0] is not None and j < facing - window[0]:
                        continue
                    if window[1] is not None and j > facing + window[1]:
                        continue
                    if not mask[b, h, i, j]:
                        continue
                    if q_segments is not None:
                        q_ids = np.broadcast_to(q_segments, (batch, q_len))
                        kv_ids = np.broadcast_to(kv_segments, (batch, kv_len))
                        if q_ids[b, i] != kv_ids[b, j]:
                            continue
                    score = scale * float(q[b, h, i] @ k[b, h // share, j])
                    if softcap:
                        score = softcap * np.tanh(score / softcap)
                    keys.append(j)
                    scores.append(score + bias[b, h, i, j] - slopes[b, h] * abs(facing - j))
                terms = list(scores)
                if sinks is not None:
                    terms.append(np.broadcast_to(np.asarray(sinks, np.float64), (batch, heads))[b, h])
                if not terms:
                    continue
                lse[b, h, i] = np.logaddexp.reduce(terms)
                for j, score in zip(keys, scores, strict=True):
                    result[b, h, i] += np.exp(score - lse[b, h, i]) * v[b, h // share, j]
    return result, lse
