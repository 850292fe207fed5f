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
from einops_fast.profiles.attention.flex import flex_way
from einops_fast.profiles.cases import ITEM_SIZES
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.ways import Inputs, Way

__all__ = ["ALONE", "NAIVE", "NATIVE", "OURS", "WAYS", "attention_inputs", "attention_ways", "chosen_by_ours", "extras"]

OURS, NATIVE, FLEX, NAIVE = "ours", "native", "flex", "naive"

ALONE = ("triton", "cudnn", "fa4", "flash", "efficient")
"""Implementations that are also measured by themselves."""

WAYS = (OURS, NATIVE, *ALONE[:4], FLEX, *ALONE[4:], NAIVE)
"""All, in the order of columns; the native call is what others are as fast as."""

NAIVE_LIVE = {False: 4, True: 8}
"""Arrays of the size of the scores that plain einsum holds at a time, forward and with backward."""

NAIVE_MEMORY = {"cpu": 1 << 30, "gpu": 40 << 30}
"""Bytes that these may take."""


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


def attention_inputs(
    case: AttentionCase, framework: Framework, dtype: str, seed: int, backward: bool = False
) -> Inputs:
    """Standard normal operands; with ``backward`` a cotangent too, and gradients are asked for."""
    shapes = [*case.shapes, *([case.result_shape] if backward else [])]
    arrays = framework.normal(shapes, dtype, seed)
    cotangents = (arrays.pop(),) if backward else ()
    if backward:
        for array in arrays:
            framework.track(array)
    return Inputs(tuple(arrays), cotangents, backward=backward)


def attention_ways(
    case: AttentionCase, framework: Framework, given: Extras, names: Sequence[str], dtype: str, backward: bool
) -> list[Way]:
    """The ways of these names that are made for the case; whether an implementation can is known when it's called.

    Args:
        case: what to compute.
        framework: torch.
        given: the case's mask and ends.
        names: of :data:`WAYS`.
        dtype: of the operands.
        backward: gradients are wanted.
    """
    made = []
    for name in names:
        try:
            if name in ALONE:
                around = partial(attention_backend, name)
                made.append(Way(name, _ours(case, given), framework, around=around))
            elif name == OURS:
                made.append(Way(name, _ours(case, given), framework))
            elif name == NATIVE:
                made.append(Way(name, _native(case, given, framework), framework))
            elif name == FLEX:
                made.append(Way(name, _flex(case, given, framework, backward), framework))
            else:
                made.append(Way(name, _naive(case, given, framework, dtype, backward), framework))
        except Unavailable:
            continue
    return made


def chosen_by_ours(case: AttentionCase, given: Extras, operands: Sequence[Any]) -> str:
    """Which implementation the automatic choice is for these operands."""
    *operands, bias = operands if case.bias else (*operands, None)
    return explain_attention(_pattern(case), *operands, **_options(case, given, bias)).implementation


def _pattern(case: AttentionCase) -> str:
    return read_layout(case.layout).pattern


def _options(case: AttentionCase, given: Extras, bias: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"causal": case.causal, "window": case.window, "softcap": case.softcap}
    if bias is not None:
        options["bias"] = ("h i j", bias)
    if given.mask is not None:
        options["mask"] = ("b i j", given.mask)
    if given.ends is not None:
        options |= {"cu_seqlens_q": given.ends, "max_seqlen_q": max(case.lengths)}
    return options


def _ours(case: AttentionCase, given: Extras) -> Callable[..., Any]:
    pattern, options = _pattern(case), _options(case, given, None)

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        if bias is None:
            return attention(pattern, q, k, v, **options)
        return attention(pattern, q, k, v, bias=("h i j", bias), **options)

    return call


def _in_layout(case: AttentionCase, result: Any) -> Any:
    """A result with the axes of :func:`canonical` in the order that was asked for."""
    letters = "htd" if case.lengths else "bhsd"
    if case.lengths:
        result = result[0]
    return result.permute([letters.index(letter) for letter in case.layout])


def _native(case: AttentionCase, given: Extras, framework: Any) -> Callable[..., Any]:
    """torch's function as its users call it: transposed views, and what it has no argument for as a mask.

    Raises:
        Unavailable: it has no softcap.
    """
    if case.softcap:
        raise Unavailable("torch's function has no softcap")
    functional = framework.torch.nn.functional
    options = {"is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    if case.lengths:
        return _nested(case, given, framework, options)
    hidden: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        q, k, v = (canonical(case, each) for each in (q, k, v))
        mask, causal = None if bias is None else bias[None], options["is_causal"]
        if given.mask is not None:
            mask = given.mask[:, None]
        elif case.window is not None:
            if not hidden:
                hidden.append(seen(case, case.q_len, case.kv_len, q))
            mask, causal = hidden[0], False
        result = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=options["enable_gqa"]
        )
        return _in_layout(case, result)

    return call


def _flex(case: AttentionCase, given: Extras, framework: Any, backward: bool) -> Callable[..., Any]:
    """FlexAttention.

    Raises:
        Unavailable: it has no such gradient.
    """
    call = flex_way(case, given, framework.torch, backward)
    return lambda *operands: _in_layout(case, call(*operands))


def _nested(case: AttentionCase, given: Extras, framework: Any, options: dict[str, bool]) -> Callable[..., Any]:
    """Packed sequences as a jagged nested tensor."""
    torch = framework.torch
    ends = given.ends.long()
    lengths = {"min_seqlen": min(case.lengths), "max_seqlen": max(case.lengths)}

    def call(q: Any, k: Any, v: Any) -> Any:
        views = [torch.nested.nested_tensor_from_jagged(each, ends, **lengths).transpose(1, 2) for each in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(*views, **options).transpose(1, 2).values()

    return call


def _naive(case: AttentionCase, given: Extras, framework: Any, dtype: str, backward: bool) -> Callable[..., Any]:
    """``einsum``, ``softmax``, ``einsum``; packed sequences one by one.

    Raises:
        Unavailable: the scores take more memory than they may.
    """
    if NAIVE_LIVE[backward] * case.scores * ITEM_SIZES[dtype] > NAIVE_MEMORY[framework.device]:
        raise Unavailable("the scores take too much memory")
    torch = framework.torch
    share = case.kv_heads, case.heads // case.kv_heads
    hidden: dict[tuple[int, int], Any] = {}

    def whole(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        lengths = q.shape[2], k.shape[2]
        if lengths not in hidden:
            hidden[lengths] = _hidden(case, given, *lengths, q)
        scores = torch.einsum("bgrid,bgjd->bgrij", q.unflatten(1, share), k) * (1 / sqrt(case.head_dim))
        if case.softcap:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        if bias is not None:
            scores = scores + bias.unflatten(0, share)
        if hidden[lengths] is not None:
            scores = scores.masked_fill(hidden[lengths], float("-inf"))
        return torch.einsum("bgrij,bgje->bgrie", scores.softmax(-1), v).flatten(1, 2)

    def call(q: Any, k: Any, v: Any, *bias: Any) -> Any:
        views = [canonical(case, each) for each in (q, k, v)]
        if not case.lengths:
            return _in_layout(case, whole(*views, *bias))
        pieces = zip(*(each.split(case.lengths, 2) for each in views), strict=True)
        return _in_layout(case, torch.cat([whole(*piece) for piece in pieces], 2))

    return call


def _hidden(case: AttentionCase, given: Extras, q_len: int, kv_len: int, like: Any) -> Any:
    """Which keys aren't seen, for scores of five axes; ``None`` if all are."""
    if given.mask is not None:
        return ~given.mask[:, None, None]
    band = seen(case, q_len, kv_len, like)
    return None if band is None else ~band
