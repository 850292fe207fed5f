"""What einops_fast calls of flash-attn-4, by torch on any device: its conventions, and memory full of NaN."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from attention_oracle import oracle

from einops_fast.attention.spec import AttentionInputs, AttentionSpec


def _oracle(
    q: Any, k: Any, v: Any, sinks: Any, starts: Any, kv_starts: Any, used: Any, table: Any, *options: Any
) -> tuple[Any, Any]:
    """Return the result and the logarithms in float64, of packed sequences up to the end of the last one."""
    scale, causal, softcap, window, longest = options
    packed, share = starts is not None, q.shape[-2] // k.shape[-2]

    def canonical(array: Any, share: int) -> Any:
        array = array[None] if packed else array
        return array.unflatten(2, (-1, share)).permute(0, 2, 3, 1, 4)

    inputs = AttentionInputs(
        canonical(q, share), canonical(k, 1), canonical(v, 1),
        sinks=None if sinks is None else sinks.reshape(1, -1, share),
        cu_seqlens_q=starts, cu_seqlens_kv=kv_starts, cache_seqlens=used, block_table=table,
    )  # fmt: skip
    lengths = longest if packed else (q.shape[1], k.shape[1] * (1 if table is None else table.shape[1]))
    batch = (len(starts) - 1 if packed else q.shape[0], *inputs.q.shape[1:3])
    spec = AttentionSpec(
        batch, batch, batch, batch, *lengths, q.shape[-1], v.shape[-1], "float64", scale, causal, "bottom_right",
        window, softcap, sinks=sinks is not None, varlen=packed, cache=used is not None,
        page_size=0 if table is None else k.shape[1],
    )  # fmt: skip
    out, lse = oracle(spec, inputs)
    out, lse = out.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.flatten(1, 2)
    return (out[0], lse[0]) if packed else (out, lse)


def _flash_attn_fwd(
    q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, softcap: float, window_size_left: Any,
    window_size_right: Any, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_k: Any = None,
    page_table: Any = None, learnable_sink: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
    return_lse: bool = False, out: Any = None, lse: Any = None,
) -> Any:  # fmt: skip
    packed = cu_seqlens_q is not None
    assert q.dim() == k.dim() == v.dim() == (3 if packed else 4)
    assert q.shape[-2] % k.shape[-2] == 0
    assert (max_seqlen_q is not None) is packed
    for each in (q, k, v):
        assert each.stride(-1) == 1
        assert all(stride % 8 == 0 for stride in each.stride()[:-1])
    numbers = cu_seqlens_q, cu_seqlens_k, seqused_k, page_table
    assert all(each is None or (each.dtype == torch.int32 and each.is_contiguous()) for each in numbers)
    if learnable_sink is not None:
        assert learnable_sink.shape == (q.shape[-2],)
        assert learnable_sink.is_contiguous()
    nan, shape = float("nan"), (*q.shape[:-3], q.shape[-2], q.shape[-3])
    out = q.new_full((*q.shape[:-1], v.shape[-1]), nan) if out is None else out
    lse = q.new_full(shape, nan, dtype=torch.float32) if lse is None else lse
    window, longest = (window_size_left, window_size_right), (max_seqlen_q, max_seqlen_k)
    own, logs = _oracle(q, k, v, learnable_sink, *numbers, softmax_scale, causal, softcap, window, longest)
    out[: len(own)] = own.to(out.dtype)
    lse[..., : logs.shape[-1]] = logs.to(lse.dtype)
    return out, lse, None, None, None


def _gradients(leaves: list[Any], further: tuple[Any, ...], d_out: Any, d_lse: Any) -> list[Any]:
    with torch.enable_grad():
        out, lse = _oracle(*leaves, *further)
        total = (out * d_out[: len(out)].double()).sum()
        if d_lse is not None:
            total = total + torch.where(lse == -torch.inf, 0.0, lse * d_lse[..., : lse.shape[-1]].double()).sum()
    found = torch.autograd.grad(total, [each for each in leaves if each is not None], allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=False)]


def _flash_attn_bwd(
    q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, *, softmax_scale: float, causal: bool, softcap: float,
    window_size_left: Any, window_size_right: Any, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None, dlse: Any = None, learnable_sink: Any = None,
    dq: Any = None, dk: Any = None, dv: Any = None,
) -> Any:  # fmt: skip
    given = zip((dq, dk, dv), (q, k, v), strict=True)
    found = [torch.full_like(like, float("nan")) if one is None else one for one, like in given]
    window, longest = (window_size_left, window_size_right), (max_seqlen_q, max_seqlen_k)
    further = cu_seqlens_q, cu_seqlens_k, None, None, softmax_scale, causal, softcap, window, longest
    leaves = [None if each is None else each.detach().double().requires_grad_() for each in (q, k, v, learnable_sink)]
    # In an operator of torch nothing is recorded, but in threads of one's own.
    with ThreadPoolExecutor(1) as thread:
        gradients = thread.submit(_gradients, leaves, further, dout, dlse).result()
    for whole, gradient in zip(found, gradients, strict=False):
        # Places of no sequence are left as they are.
        reached = slice(None) if cu_seqlens_q is None else gradient.flatten(1).any(1)
        whole[reached] = gradient[reached].to(whole.dtype)
    return tuple(found) if learnable_sink is None else (*found, gradients[3].to(learnable_sink.dtype))
