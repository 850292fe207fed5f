"""Attention on nested (jagged) tensors: their values are packed sequences, and so is the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from einops_fast.attention.attend import attend
from einops_fast.attention.options import Request
from einops_fast.attention.pattern import PACKED, Pattern, checked_sequence, letters_of, read_pattern, spelled
from einops_fast.attention.torch_state import hides_values, refuse_without_sizes
from einops_fast.errors import OperandError, ShapeError, SubscriptsError
from einops_fast.runtime.tracing import is_tracing

_UNLIKE = "the sequences of k and of v have different lengths"


def attend_nested(request: Request, arrays: Mapping[str, Any]) -> Any:
    """Do the call on the values of q, k and v; the result, and the log of the denominator, are nested like q.

    The batch axis comes first in all of them; the axis that is jagged is that of the positions. In further arrays
    positions are counted in each sequence; without a pattern, the batch axis is the first one.
    """
    pattern, packed, inner = packed_call(request, arrays)
    found = attend(packed, inner)
    q = arrays["q"]
    jagged = pattern.result.index(pattern.queries)
    if not isinstance(found, tuple):
        return _nested(found, q, jagged)
    without_features = pattern.result.replace(pattern.v_head_dim, "")
    return _nested(found[0], q, jagged), _nested(found[1], q, without_features.index(pattern.queries))


def packed_call(request: Request, arrays: Mapping[str, Any]) -> tuple[Pattern, Request, dict[str, Any]]:
    """Return the pattern of a call on nested tensors, and the call that it is on their values."""
    if request.longest is not None or "cache_seqlens" in arrays:
        raise OperandError("nested tensors know their lengths: they take neither cu_seqlens nor cache_seqlens")
    for name in ("q", "k", "v"):
        array = arrays[name]
        refuse_without_sizes(array, name)
        if not getattr(array, "is_nested", False):
            raise OperandError(f"q, k and v are nested with layout torch.jagged all or none; {name} isn't")
        if array.lengths() is not None:
            raise OperandError(f"{name} has gaps between its sequences: make it contiguous first")
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    patterns = dict(request.patterns)
    hints = tuple([each for each in (patterns.get("bias"), patterns.get("mask")) if each is not None])
    pattern = read_pattern(request.pattern, (q.dim(), k.dim(), v.dim()), checked_sequence(request.sequence), hints)
    _check(pattern, {"q": q, "k": k, "v": v})
    _check_lengths(k, v)
    if q.size(0) != k.size(0):
        raise ShapeError(f"axis 0 has size {q.size(0)} in q, but size {k.size(0)} in k")
    names = _names(pattern)
    packed, positions = _without_batch(pattern, names)
    inner = {**arrays, "q": _values(q), "k": _values(k), "v": _values(v)}
    inner["cu_seqlens_q"], inner["cu_seqlens_kv"] = q.offsets(), k.offsets()
    renamed = [
        (name, None if own is None else _renamed(pattern, names, name, own, len(arrays[name].shape)))
        for name, own in request.patterns
    ]
    lengths = _longest(q), _longest(k)
    return pattern, Request(packed, positions, request.options, tuple(renamed), lengths), inner


def _check_lengths(k: Any, v: Any) -> None:
    """Raise ShapeError if the sequences of k and v have different lengths; where values can't be read, when it runs."""
    ends, others = k.offsets(), v.offsets()
    if ends is others:
        return
    same = k.size(0) == v.size(0)
    if same and (is_tracing() or hides_values(ends)):
        torch._assert_async((ends == others).all(), _UNLIKE)
    elif not (same and torch.equal(ends, others)):
        raise ShapeError(_UNLIKE)


def _longest(array: Any) -> int:
    """Return the length of the longest sequence; while torch.compile traces, where it isn't known, of all."""
    if torch.compiler.is_compiling() and array._maybe_max_seqlen is None:
        return int(array.values().shape[array._ragged_idx - 1])
    return int(array._get_max_seqlen()) if array.size(0) else 0


def parts(array: Any, axis: int) -> tuple[Any, ...]:
    """Return a nested tensor's parts along an axis, without that axis: nested alike, and known to fit."""
    if array.layout is not torch.jagged or array.lengths() is not None or array._ragged_idx == axis or axis < 1:
        raise OperandError(
            "a nested tensor of q, k and v is jagged along its positions, without gaps between sequences"
        )
    jagged = array._ragged_idx - (array._ragged_idx > axis)
    return tuple([_nested(part, array, jagged) for part in array.values().unbind(axis - 1)])


class _Values(torch.autograd.Function):
    """The values of a jagged tensor, as its method gives them, but with gradients that have gradients."""

    @staticmethod
    def forward(ctx: Any, nested: Any, jagged: int) -> Any:
        ctx.offsets, ctx.jagged = nested.offsets(), jagged
        return nested.values()

    @staticmethod
    def backward(ctx: Any, d_values: Any) -> Any:
        return _Jagged.apply(d_values, ctx.offsets, ctx.jagged), None  # type: ignore[no-untyped-call]


class _Jagged(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, values: Any, offsets: Any, jagged: int) -> Any:
        ctx.jagged = jagged
        return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=jagged)

    @staticmethod
    def backward(ctx: Any, d_nested: Any) -> Any:
        return _Values.apply(d_nested, ctx.jagged), None, None  # type: ignore[no-untyped-call]


def _values(nested: Any) -> Any:
    if is_tracing() or not (torch.is_grad_enabled() and nested.requires_grad):
        return nested.values()
    return _Values.apply(nested, nested._ragged_idx)  # type: ignore[no-untyped-call]


def _nested(values: Any, like: Any, jagged: int) -> Any:
    if is_tracing() or not (torch.is_grad_enabled() and values.requires_grad):
        return torch.nested.nested_tensor_from_jagged(values, like.offsets(), jagged_dim=jagged)
    return _Jagged.apply(values, like.offsets(), jagged)  # type: ignore[no-untyped-call]


def _check(pattern: Pattern, arrays: Mapping[str, Any]) -> None:
    batch = pattern.q[0]
    terms = {"q": (pattern.q, pattern.queries), "k": (pattern.k, pattern.keys), "v": (pattern.v, pattern.keys)}
    for name, (term, positions) in terms.items():
        if term[0] != batch:
            problem = (
                f"axis '{spelled(pattern, batch)}' of nested tensors, which counts them, comes first; not in {name}"
            )
            raise SubscriptsError(problem)
        jagged = term[arrays[name]._ragged_idx]
        if jagged != positions:
            problem = f"the jagged axis of {name} is '{spelled(pattern, jagged)}', which isn't that of its positions"
            raise SubscriptsError(problem)
    if pattern.result[0] != batch:
        raise SubscriptsError(f"the result of nested tensors has axis '{spelled(pattern, batch)}' first")


def _names(pattern: Pattern) -> dict[str, str]:
    """Return the axes of the values, by letter; the batch has gone and counts the packed sequences."""
    # An axis under an ellipsis has no name that could be written.
    names = {letter: name if name.isidentifier() else f"axis_{at}" for at, (letter, name) in enumerate(pattern.names)}
    if PACKED in names.values():
        raise SubscriptsError(f"axis {PACKED!r} of nested tensors can't be called that")
    return names | {pattern.q[0]: PACKED}


def _without_batch(pattern: Pattern, names: Mapping[str, str]) -> tuple[str, tuple[str, str]]:
    """Return the pattern of the values, and its axes of queries and keys."""
    terms = [
        " ".join(names[letter] for letter in term[1:]) for term in (pattern.q, pattern.k, pattern.v, pattern.result)
    ]
    return f"{', '.join(terms[:3])} -> {terms[3]}", (names[pattern.queries], names[pattern.keys])


def _renamed(pattern: Pattern, names: Mapping[str, str], what: str, text: str, rank: int) -> str:
    """Return the pattern of a further array with the names that axes have among the values."""
    return " ".join(names[letter] for letter in letters_of(pattern.names, pattern.text, text, rank, what))
