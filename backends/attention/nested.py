"""Attention on nested (jagged) tensors: their values are packed sequences, and so is the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from einops_fast.attention.attend import attend
from einops_fast.attention.pattern import Pattern, checked_sequence, read_pattern
from einops_fast.errors import OperandError, ShapeError, SubscriptsError

__all__ = ["attend_nested", "packed_call"]


def attend_nested(
    text: str,
    sequence: Any,
    arrays: Mapping[str, Any],
    patterns: Mapping[str, str | None],
    options: tuple[Any, ...],
    longest: Any,
) -> Any:
    """The call on the values of q, k and v; the result, and the log of the denominator, are nested like q.

    The batch axis comes first in all of them; the axis that is jagged is that of the positions. In further arrays
    without a pattern, it is the first axis, and positions are counted in each sequence.

    Raises:
        EinsumError: as :func:`packed_call`.
    """
    pattern, packed, names, inner, lengths = packed_call(text, sequence, arrays, patterns, longest)
    found = attend(packed, names, inner, dict(patterns), options, lengths)
    q = arrays["q"]
    jagged = pattern.result.index(pattern.queries)
    if not isinstance(found, tuple):
        return _nested(found, q, jagged)
    without_features = pattern.result.replace(pattern.v_head_dim, "")
    return _nested(found[0], q, jagged), _nested(found[1], q, without_features.index(pattern.queries))


def packed_call(
    text: str, sequence: Any, arrays: Mapping[str, Any], patterns: Mapping[str, str | None], longest: Any
) -> tuple[Pattern, str, tuple[str, str], dict[str, Any], tuple[int, int]]:
    """The call that it is on the values: the pattern, that of the values, its positions, the arrays, their lengths.

    Raises:
        OperandError: not all are nested with layout ``torch.jagged``, or there are gaps between sequences.
        SubscriptsError, ShapeError: axes don't fit.
    """
    if longest is not None or "cache_seqlens" in arrays:
        raise OperandError("nested tensors know their lengths: they take neither cu_seqlens nor cache_seqlens")
    for name in ("q", "k", "v"):
        array = arrays[name]
        if not getattr(array, "is_nested", False) or array.layout is not torch.jagged:
            raise OperandError(f"q, k and v are nested with layout torch.jagged all or none; {name} isn't")
        if array.lengths() is not None:
            raise OperandError(f"{name} has gaps between its sequences: make it contiguous first")
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    hints = tuple([each for each in (patterns.get("bias"), patterns.get("mask")) if each is not None])
    pattern = read_pattern(text, (q.dim(), k.dim(), v.dim()), checked_sequence(sequence), hints)
    _check(pattern, {"q": q, "k": k, "v": v})
    if k.offsets() is not v.offsets() and not torch.equal(k.offsets(), v.offsets()):
        raise ShapeError("the sequences of k and of v have different lengths")
    if q.size(0) != k.size(0):
        raise ShapeError(f"axis 0 has size {q.size(0)} in q, but size {k.size(0)} in k")
    packed, names = _without_batch(pattern)
    inner = {**arrays, "q": q.values(), "k": k.values(), "v": v.values()}
    inner["cu_seqlens_q"], inner["cu_seqlens_kv"] = q.offsets(), k.offsets()
    return pattern, packed, names, inner, (int(q._get_max_seqlen()), int(k._get_max_seqlen()))


def _nested(values: Any, like: Any, jagged: int) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, like.offsets(), jagged_dim=jagged)


def _check(pattern: Pattern, arrays: Mapping[str, Any]) -> None:
    batch = pattern.q[0]
    terms = {"q": (pattern.q, pattern.queries), "k": (pattern.k, pattern.keys), "v": (pattern.v, pattern.keys)}
    for name, (term, positions) in terms.items():
        if term[0] != batch:
            problem = (
                f"axis '{pattern.spelling(batch)}' of nested tensors, which counts them, comes first; not in {name}"
            )
            raise SubscriptsError(problem)
        jagged = term[arrays[name]._ragged_idx]
        if jagged != positions:
            problem = f"the jagged axis of {name} is '{pattern.spelling(jagged)}', which isn't that of its positions"
            raise SubscriptsError(problem)
    if pattern.result[0] != batch:
        raise SubscriptsError(f"the result of nested tensors has axis '{pattern.spelling(batch)}' first")


def _without_batch(pattern: Pattern) -> tuple[str, tuple[str, str]]:
    """The pattern of the values, and its axes of queries and keys."""
    # An axis under an ellipsis has no name that could be written.
    names = {letter: name if name.isidentifier() else f"axis_{at}" for at, (letter, name) in enumerate(pattern.names)}
    terms = [
        " ".join(names[letter] for letter in term[1:]) for term in (pattern.q, pattern.k, pattern.v, pattern.result)
    ]
    return f"{', '.join(terms[:3])} -> {terms[3]}", (names[pattern.queries], names[pattern.keys])
