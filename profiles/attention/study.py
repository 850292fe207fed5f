"""Attention: ours, chosen automatically, against each implementation alone, torch's own call and plain einsum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention.pattern import read_layout
from einops_fast.errors import OperandError
from einops_fast.profiles.attention.cases import FAMILIES, AttentionCase
from einops_fast.profiles.attention.check import Extras, attend, canonical, largest_error, reference, seen
from einops_fast.profiles.cases import ITEM_SIZES
from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.reporting.cells import gigabytes, teraflops
from einops_fast.profiles.reporting.charts import Chart, case_chart
from einops_fast.profiles.reporting.records import Ceiling, Row, is_own
from einops_fast.profiles.study import Maker, Study, Task
from einops_fast.profiles.timing.accuracy import rounded
from einops_fast.profiles.timing.measure import Effort, Errors, Timing, check_ways, too_wrong
from einops_fast.profiles.ways import Inputs, Way, answer

# Arrays of the size of the scores that plain einsum holds at a time, forward and with backward.
NAIVE_LIVE = {False: 4, True: 8}
NAIVE_MEMORY = {"cpu": 1 << 30, "gpu": 40 << 30}  # Bytes that these may take


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


def _alone(name: str) -> Maker:
    """Return the maker of one implementation by itself; whether it can is known when it's called."""
    return lambda task: Way(name, _ours(task), task.framework, partial(attention_backend, name))


class AttentionStudy(Study):
    """A row per dtype, case, direction and way; ours with what was chosen."""

    about = "attention in every layout and with every feature, against each implementation alone"
    families = FAMILIES
    # Ours comes last, as its choice measures what is compiled by then.
    makers: Mapping[str, Maker] = {
        "native": _native,
        "triton": _alone("triton"),
        "cudnn": _alone("cudnn"),
        "fa4": _fa4,
        "flash": _alone("flash"),
        "flex": _flex,
        "efficient": _alone("efficient"),
        "naive": _naive,
        "ours": _ours,
    }
    peers = tuple(name for name in makers if not is_own(name))
    guests = peers
    on_cpu = ("ours", "native", "naive")
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16", "float16")}
    efforts: Mapping[str, Effort] = {
        "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
        "gpu": Effort(rounds=15, seconds=0.6, warm_up=0.01, lost=1.5, settling=0.1),
    }
    compiled = ("flex", "triton")

    def shared(self, task: Task) -> Extras:
        """Return mask and ends of a case, always the same."""
        case, framework = task.case, task.framework
        mask = ends = None
        if case.mask:
            values = framework.normal([(case.batch, case.q_len, case.kv_len)], "float32", 7)[0]
            # Every query sees a key.
            values.diagonal(dim1=1, dim2=2).fill_(1.0)
            mask = values > -1.0
        if case.lengths:
            ends = framework.array(np.cumsum([0, *case.lengths], dtype="float64"), "int32")
        return Extras(mask, ends)

    def inputs(self, task: Task, seed: int) -> Inputs:
        """Return standard normal operands; for backward a cotangent too, and gradients are asked for."""
        case, framework = task.case, task.framework
        *arrays, cotangent = framework.normal([*case.shapes, case.result_shape], task.dtype, seed)
        if not task.backward:
            return Inputs(tuple(arrays))
        for array in arrays:
            framework.track(array)
        return Inputs(tuple(arrays), (cotangent,), backward=True)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        case, given = task.case, self.inputs(task, 0)
        expected = reference(case, given.operands, given.cotangents, task.shared)
        limit = rounded(task.dtype, case.kv_len)
        shapes = [case.result_shape, *(case.shapes if task.backward else ())]

        def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
            results, gradients = answer(way, given, shapes, task.dtype)
            error = largest_error(case, (*results, *gradients), expected)
            return (error,), too_wrong(error, limit)

        # An implementation that isn't made for the case has no row: explain_attention says why.
        return check_ways(ways, judge, self.native, OperandError)

    def told(self, task: Task, row: Row, timing: Timing) -> Row:
        if row.what != self.ours:
            return row
        pattern, operands = read_layout(task.case.layout).pattern, timing.operands
        chosen = explain_attention(pattern, *operands[:3], **_options(task, *operands[3:])).implementation
        return replace(row, chosen=chosen)

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.dtype, row.case.partition("-")[0]), []).append(row)
        charts = []
        for (dtype, family), group in groups.items():
            unit, value = ("GB/s", gigabytes) if family == "decode" else ("TFLOP/s", teraflops)
            title, axis = f"attention, {dtype}", f"{unit} (more is better)"
            charts.append(case_chart(f"{dtype}-{family}", title, group, value, axis, ratios=False))
        return [chart for chart in charts if chart is not None]
