"""Ways to compute a case of the attention study: ours, each implementation alone, torch's own call, plain einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention.pattern import read_layout
from einops_fast.profiles.attention.cases import AttentionCase
from einops_fast.profiles.attention.check import Extras, canonical, seen
from einops_fast.profiles.cases import ITEM_SIZES
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.study import Task
from einops_fast.profiles.ways import Inputs, Way

__all__ = ["MAKERS", "attention_inputs", "chosen_by_ours", "extras"]

# Arrays of the size of the scores that plain einsum holds at a time, forward and with backward.
NAIVE_LIVE = {False: 4, True: 8}
NAIVE_MEMORY = {"cpu": 1 << 30, "gpu": 40 << 30}  # Bytes that these may take


def extras(case: AttentionCase, framework: Framework) -> Extras:
    """Mask and ends of a case, always the same."""
    mask = ends = None
    if case.mask:
        values = framework.normal([(case.batch, case.q_len, case.kv_len)], "float32", 7)[0]
        # Every query sees a key.
        values.diagonal(dim1=1, dim2=2).fill_(1.0)
        mask = values > -1.0
    if case.lengths:
        starts = [sum(case.lengths[:at]) for at in range(len(case.lengths) + 1)]
        ends = framework.array(np.array(starts, "float64"), "int32")
    return Extras(mask, ends)


def attention_inputs(task: Task, seed: int) -> Inputs:
    """Standard normal operands; for backward a cotangent too, and gradients are asked for."""
    case, framework = task.case, task.framework
    shapes = [*case.shapes, *([case.result_shape] if task.backward else [])]
    arrays = framework.normal(shapes, task.dtype, seed)
    cotangents = (arrays.pop(),) if task.backward else ()
    if task.backward:
        for array in arrays:
            framework.track(array)
    return Inputs(tuple(arrays), cotangents, backward=task.backward)


def chosen_by_ours(task: Task, operands: Sequence[Any]) -> str:
    """Which implementation the automatic choice is for these operands."""
    options = _options(task, *operands[3:])
    return explain_attention(read_layout(task.case.layout).pattern, *operands[:3], **options).implementation


def _options(task: Task, bias: Any = None) -> dict[str, Any]:
    case, given = task.case, task.shared
    options: dict[str, Any] = {"causal": case.causal, "window": case.window, "softcap": case.softcap}
    if bias is not None:
        options["bias"] = ("h i j", bias)
    if given.mask is not None:
        options["mask"] = ("b i j", given.mask)
    if given.ends is not None:
        options |= {"cu_seqlens_q": given.ends, "max_seqlen_q": max(case.lengths)}
    return options


def _ours(task: Task) -> Callable[..., Any]:
    pattern, options = read_layout(task.case.layout).pattern, _options(task)

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        if bias is None:
            return attention(pattern, q, k, v, **options)
        return attention(pattern, q, k, v, bias=("h i j", bias), **options)

    return call


def _on_views(case: AttentionCase, attend: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of ``attend`` on transposed views, whose result has its axes in the order that was asked for."""
    letters = "htd" if case.lengths else "bhsd"
    order = [letters.index(letter) for letter in case.layout]

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        result = attend(*(canonical(case, each) for each in (q, k, v)), bias)
        return (result[0] if case.lengths else result).permute(order)

    return call


def _native(task: Task) -> Callable[..., Any]:
    """Call torch's function as its users do: on transposed views, with a mask for what it has no argument for."""
    case, given = task.case, task.shared
    if case.softcap:
        raise Unavailable("torch's function has no softcap")
    attend = task.framework.torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    if case.lengths:
        return _nested(task, options)
    masks: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        if given.mask is None and case.window is None:
            return attend(q, k, v, None if bias is None else bias[None], **options)
        if not masks:
            masks.append(seen(case, case.q_len, case.kv_len, q) if given.mask is None else given.mask[:, None])
        return attend(q, k, v, masks[0], enable_gqa=options["enable_gqa"])

    return _on_views(case, call)


def _flex(task: Task) -> Callable[..., Any]:
    """Call FlexAttention, with what a case asks for as modifiers and a mask of blocks made once; it compiles first."""
    case, given, torch = task.case, task.shared, task.framework.torch
    if task.backward and case.bias:
        raise Unavailable("FlexAttention adds up the gradient of a bias atomically, in the dtype of the bias")
    from torch.nn.attention.flex_attention import flex_attention

    def flex(*arguments: Any, **options: Any) -> Any:
        return flex_attention(*arguments, **options)

    # The compiler counts how often it compiles a piece of code, and gives up at some time: each case has its own.
    flex.__code__ = flex.__code__.replace()
    compiled = torch.compile(flex, fullgraph=True, dynamic=False)
    blocks: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        if not blocks:
            blocks.append(_block_mask(case, given, torch, q))
        scores = _score_modifier(case, torch, bias)
        return compiled(q, k, v, score_mod=scores, block_mask=blocks[0], enable_gqa=case.heads != case.kv_heads)

    return _on_views(case, call)


def _score_modifier(case: AttentionCase, torch: Any, bias: Any) -> Callable[..., Any] | None:
    """Return what changes a score: softcap and bias; ``None`` if there are neither."""
    softcap = case.softcap
    if not softcap and bias is None:
        return None

    def modify(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[h, i, j]

    return modify


def _block_mask(case: AttentionCase, given: Extras, torch: Any, q: Any) -> Any:
    """Return which blocks of keys are seen, by causality, window, mask and packed sequences; ``None`` for all."""
    from torch.nn.attention.flex_attention import create_block_mask

    if not case.causal and case.window is None and given.mask is None and given.ends is None:
        return None
    before, after = case.window or (case.kv_len, case.kv_len)
    after = 0 if case.causal else after
    mask, sequence = given.mask, None
    if given.ends is not None:
        # Self-attention: queries and keys of a sequence lie at the same positions.
        sequence = torch.searchsorted(
            given.ends[1:].contiguous(), torch.arange(case.q_len, device=q.device), right=True
        )

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = (i - j <= before) & (j - i <= after)
        if mask is not None:
            found = found & mask[b, i, j]
        return found if sequence is None else found & (sequence[i] == sequence[j])

    batch = None if mask is None else case.batch
    return create_block_mask(seen, batch, None, case.q_len, case.kv_len, str(q.device))


def _nested(task: Task, options: dict[str, bool]) -> Callable[..., Any]:
    """Call torch's function on packed sequences as jagged nested tensors."""
    case, torch = task.case, task.framework.torch
    ends = task.shared.ends.long()
    lengths = {"min_seqlen": min(case.lengths), "max_seqlen": max(case.lengths)}

    def call(q: Any, k: Any, v: Any) -> Any:
        views = [torch.nested.nested_tensor_from_jagged(each, ends, **lengths).transpose(1, 2) for each in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(*views, **options).transpose(1, 2).values()

    return call


def _naive(task: Task) -> Callable[..., Any]:
    """Call ``einsum``, ``softmax``, ``einsum``; for packed sequences one by one."""
    case, given, torch = task.case, task.shared, task.framework.torch
    if NAIVE_LIVE[task.backward] * case.scores * ITEM_SIZES[task.dtype] > NAIVE_MEMORY[task.framework.device]:
        raise Unavailable("the scores take too much memory")
    share = case.kv_heads, case.heads // case.kv_heads
    masks: dict[tuple[int, int], Any] = {}

    def whole(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        lengths = q.shape[2], k.shape[2]
        if lengths not in masks:
            masks[lengths] = seen(case, *lengths, q) if given.mask is None else given.mask[:, None, None]
        scores = torch.einsum("bgrid,bgjd->bgrij", q.unflatten(1, share), k) * (1 / sqrt(case.head_dim))
        if case.softcap:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        if bias is not None:
            scores = scores + bias.unflatten(0, share)
        if masks[lengths] is not None:
            scores = scores.masked_fill(~masks[lengths], float("-inf"))
        return torch.einsum("bgrij,bgje->bgrie", scores.softmax(-1), v).flatten(1, 2)

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        if not case.lengths:
            return whole(q, k, v, bias)
        pieces = zip(*(each.split(case.lengths, 2) for each in (q, k, v)), strict=True)
        return torch.cat([whole(*piece) for piece in pieces], 2)

    return _on_views(case, call)


def _maker(make: Callable[[Task], Callable[..., Any]], name: str) -> Callable[[Task], Way]:
    return lambda task: Way(name, make(task), task.framework)


def _alone(name: str) -> Callable[[Task], Way]:
    """Return the maker of one implementation by itself; whether it can is known when it's called."""
    return lambda task: Way(name, _ours(task), task.framework, partial(attention_backend, name))


# What makes each way; ours comes last, as its choice measures what is compiled by then.
MAKERS: dict[str, Callable[[Task], Way]] = {
    "native": _maker(_native, "native"),
    **{name: _alone(name) for name in ("triton", "cudnn", "fa4", "flash")},
    "flex": _maker(_flex, "flex"),
    "efficient": _alone("efficient"),
    "naive": _maker(_naive, "naive"),
    "ours": _maker(_ours, "ours"),
}
