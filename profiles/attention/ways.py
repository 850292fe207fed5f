"""Ways to compute a case of the attention study: ours, each implementation alone, torch's own call, plain einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention.pattern import read_layout
from einops_fast.profiles.attention.cases import AttentionCase
from einops_fast.profiles.attention.check import Extras, attend, canonical, seen
from einops_fast.profiles.cases import ITEM_SIZES
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.study import Task
from einops_fast.profiles.ways import Inputs, Way

# Arrays of the size of the scores that plain einsum holds at a time, forward and with backward.
NAIVE_LIVE = {False: 4, True: 8}
NAIVE_MEMORY = {"cpu": 1 << 30, "gpu": 40 << 30}  # Bytes that these may take


def extras(case: AttentionCase, framework: Framework) -> Extras:
    """Return mask and ends of a case, always the same."""
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
    """Return standard normal operands; for backward a cotangent too, and gradients are asked for."""
    case, framework = task.case, task.framework
    shapes = [*case.shapes, *([case.result_shape] if task.backward else [])]
    arrays = framework.normal(shapes, task.dtype, seed)
    cotangents = (arrays.pop(),) if task.backward else ()
    if task.backward:
        for array in arrays:
            framework.track(array)
    return Inputs(tuple(arrays), cotangents, backward=task.backward)


def chosen_by_ours(task: Task, operands: Sequence[Any]) -> str:
    """Return which implementation the automatic choice is for these operands."""
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

    def call(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        return attention(pattern, q, k, v, **(_options(task, *bias) if bias else options))

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
    case, given, torch = task.case, task.shared, task.framework.torch
    if case.softcap:
        raise Unavailable("torch's function has no softcap")
    attend = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=case.heads != case.kv_heads)
    masks: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        if given.mask is None and case.window is None:
            return attend(q, k, v, None if bias is None else bias[None], is_causal=case.causal)
        if not masks:
            masks.append(seen(case, case.q_len, case.kv_len, q) if given.mask is None else given.mask[:, None])
        return attend(q, k, v, masks[0])

    def packed(q: Any, k: Any, v: Any) -> Any:
        nested = partial(
            torch.nested.nested_tensor_from_jagged, offsets=given.ends.long(), min_seqlen=min(case.lengths),
            max_seqlen=max(case.lengths),
        )  # fmt: skip
        views = [nested(each).transpose(1, 2) for each in (q, k, v)]
        return attend(*views, is_causal=case.causal).transpose(1, 2).values()

    return packed if case.lengths else _on_views(case, call)


def _flex(task: Task) -> Callable[..., Any]:
    """Call FlexAttention, with what a case asks for as modifiers and a mask of blocks made once; it compiles first."""
    case, given, torch = task.case, task.shared, task.framework.torch
    if task.backward and case.bias:
        raise Unavailable("FlexAttention adds up the gradient of a bias atomically, in the dtype of the bias")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def flex(*arguments: Any, **options: Any) -> Any:
        return flex_attention(*arguments, **options)

    # The compiler counts how often it compiles a piece of code, and gives up at some time: each case has its own.
    flex.__code__ = flex.__code__.replace()
    compiled = torch.compile(flex, fullgraph=True, dynamic=False)
    before, after = case.window or (case.kv_len, case.kv_len)
    after = 0 if case.causal else after
    sequence = None
    if given.ends is not None:
        # Self-attention: queries and keys of a sequence lie at the same positions.
        positions = torch.arange(case.q_len, device=given.ends.device)
        sequence = torch.searchsorted(given.ends[1:].contiguous(), positions, right=True)

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = (i - j <= before) & (j - i <= after)
        if given.mask is not None:
            found = found & given.mask[b, i, j]
        return found if sequence is None else found & (sequence[i] == sequence[j])

    masked = case.causal or case.window or case.mask or case.lengths
    blocks: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        def modify(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if case.softcap:
                score = case.softcap * torch.tanh(score / case.softcap)
            return score if bias is None else score + bias[h, i, j]

        if masked and not blocks:
            batch = case.batch if case.mask else None
            blocks.append(create_block_mask(visible, batch, None, case.q_len, case.kv_len, str(q.device)))
        modifiers = {"score_mod": modify if case.softcap or case.bias else None, "block_mask": next(iter(blocks), None)}
        return compiled(q, k, v, **modifiers, enable_gqa=case.heads != case.kv_heads)

    return _on_views(case, call)


def _fa4(task: Task) -> Callable[..., Any]:
    """Call FlashAttention-4 by its own package, on views with the heads after the positions; it compiles first."""
    case, given = task.case, task.shared
    if case.bias or case.mask:
        raise Unavailable("FlashAttention-4 has no bias and no mask")
    try:
        library = import_module("flash_attn.cute.interface")
    except ImportError as error:
        raise Unavailable("flash-attn-4 isn't installed") from error
    attend = library.flash_attn_func
    if case.lengths:
        ends, longest = (given.ends, given.ends), (max(case.lengths),) * 2
        names = "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"
        attend = partial(library.flash_attn_varlen_func, **dict(zip(names, (*ends, *longest), strict=True)))
    options = {"causal": case.causal, "window_size": case.window or (None, None), "softcap": case.softcap}

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        views = [each.transpose(1, 2) for each in (q, k, v)]
        result, _ = attend(*(each[0] if case.lengths else each for each in views), **options)
        return (result[None] if case.lengths else result).transpose(1, 2)

    return _on_views(case, call)


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
        bias = None if bias is None else bias.unflatten(0, share)
        return attend(case, q.unflatten(1, share), k, v, bias, (masks[lengths],)).flatten(1, 2)

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
    "triton": _alone("triton"),
    "cudnn": _alone("cudnn"),
    "fa4": _maker(_fa4, "fa4"),
    "flash": _alone("flash"),
    "flex": _maker(_flex, "flex"),
    "efficient": _alone("efficient"),
    "naive": _maker(_naive, "naive"),
    "ours": _maker(_ours, "ours"),
}
