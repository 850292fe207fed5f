"""The arguments of a call of `attention`, read and sorted, whichever way they were given."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from einops_fast.attention import torch_state
from einops_fast.attention.options import Options, Request, count, plain_options
from einops_fast.attention.packed import apart
from einops_fast.attention.pattern import read_layout
from einops_fast.attention.prepare import INTEGERS
from einops_fast.dtypes import dtype_name
from einops_fast.errors import EinsumError, OperandError, SubscriptsError
from einops_fast.foreign import refuse_stand_in
from einops_fast.runtime.tracing import is_tracing

FURTHER = "bias", "mask", "alibi_slopes", "sinks", "cache_seqlens", "block_table"
"""Arrays, each perhaps with its own pattern."""


def read_call(
    operands: tuple[Any, ...], layout: str | None, sequence: Any, options: Options, rest: Mapping[str, Any]
) -> tuple[Request, dict[str, Any]]:
    """Return what the arguments of :func:`einops_fast.attention` ask for, and the arrays by name.

    ``rest`` has all of its arguments that aren't among the others, by name; those that are ``None`` may be missing.
    """
    _, _, window, softcap, scale, dropout_p, with_lse, deterministic = options
    usual = window is None and (scale is None or type(scale) is float) and type(softcap) is type(dropout_p) is float
    if not usual or softcap == inf or not type(with_lse) is type(deterministic) is bool:
        options = plain_options(options)
    starts = rest.get("cu_seqlens_q"), rest.get("cu_seqlens_kv")
    packed = starts[0] is not None or starts[1] is not None
    paged = rest.get("block_table") is not None
    pattern, sequence, q, k, v, varlen = _read_operands(operands, layout, sequence, paged)
    if varlen and not packed:
        raise EinsumError(f"layout {layout!r} is of packed sequences: it needs cu_seqlens_q")
    arrays: dict[str, Any] = {"q": q, "k": k, "v": v}
    patterns: dict[str, str | None] = {}
    for name, value in rest.items():
        if value is not None and name in FURTHER:
            array, axes = _named(value)
            if name == "mask":
                array = torch_state.plain_mask(array, q)
            elif type(array).__name__ == "CausalBias":
                raise OperandError(f"{name} is a CausalBias: give it as mask, or causal='top_left' or 'bottom_right'")
            arrays[name], patterns[name] = array, axes
    if rest.get("segment_ids") is not None:
        _read_segments(rest["segment_ids"], arrays, patterns)
    most = rest.get("max_seqlen_q"), rest.get("max_seqlen_kv")
    if not packed and not most[0] is most[1] is None:
        name = "max_seqlen_kv" if most[0] is None else "max_seqlen_q"
        raise EinsumError(f"{name} is of packed sequences: it needs cu_seqlens_q")
    longest = _read_lengths(arrays, *starts, *most) if packed else None
    return Request(pattern, sequence, options, tuple(patterns.items()), longest), arrays


def _read_operands(
    operands: tuple[Any, ...], layout: str | None, sequence: Any, paged: bool
) -> tuple[str, Any, Any, Any, Any, bool]:
    """Return the pattern, the axes of positions, q, k and v, and whether the layout is of packed sequences."""
    if operands and isinstance(operands[0], str):
        if layout is not None:
            raise EinsumError("a pattern and a layout can't be given together")
        if len(operands) != 4:
            raise OperandError(f"attention takes a pattern and three arrays, q, k and v; not {len(operands) - 1}")
        return (operands[0], sequence, *operands[1:], False)
    if layout is None:
        if operands and isinstance(operands[-1], str):
            raise SubscriptsError(f"the pattern comes before the arrays: attention({operands[-1]!r}, q, k, v)")
        raise SubscriptsError(
            "attention takes a pattern first, as in 'b i h d, b j h d, b j h e -> b i h e', or a layout"
        )
    read = read_layout(layout, paged)
    if read.packed is None:
        if len(operands) != 3:
            raise OperandError(f"attention with layout {layout!r} takes three arrays, q, k and v; not {len(operands)}")
        return (read.pattern, ("i", "j"), *operands, read.varlen)
    if len(operands) != 1:
        raise OperandError(f"attention with layout {layout!r} takes one array; not {len(operands)}")
    packed, axis = operands[0], read.packed
    if not is_tracing():
        refuse_stand_in(packed, "the array")
    if not hasattr(packed, "shape"):
        raise OperandError(f"layout {layout!r} is of an array, not of a {type(packed).__name__}")
    if len(packed.shape) != len(layout) or packed.shape[axis] != 3:
        raise OperandError(
            f"layout {layout!r} is of an array of {len(layout)} axes with size 3 in axis {axis}, not of shape "
            f"{tuple(packed.shape)}"
        )
    return (read.pattern, ("i", "j"), *apart(packed, axis), read.varlen)


def _named(value: Any) -> tuple[Any, str | None]:
    """Return an array and its pattern, if it comes with one."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value[1], value[0]
    return value, None


def _read_segments(value: Any, arrays: dict[str, Any], patterns: dict[str, str | None]) -> None:
    both = isinstance(value, (tuple, list)) and len(value) == 2 and not isinstance(value[0], str)
    for name, own in zip(("q_segments", "kv_segments"), value if both else (value, value), strict=True):
        arrays[name], patterns[name] = _named(own)
        if not both and patterns[name] is not None:
            raise EinsumError("segment_ids with a pattern are two, for queries and keys: (('b i', ids), ('b j', ids))")


def _read_lengths(
    arrays: dict[str, Any], cu_seqlens_q: Any, cu_seqlens_kv: Any, max_q: int | None, max_kv: int | None
) -> tuple[int, int]:
    if cu_seqlens_q is None:
        raise EinsumError("cu_seqlens_kv needs cu_seqlens_q")
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv)):
        if not is_tracing():
            refuse_stand_in(ends, name)
        if ends is not None and not hasattr(ends, "shape"):
            raise OperandError(
                f"{name} is of type {type(ends).__name__}; it is an array of where sequences begin, as q is"
            )
        if ends is not None and dtype_name(ends.dtype) not in INTEGERS:
            raise OperandError(f"{name} has dtype {dtype_name(ends.dtype)}, not {' or '.join(INTEGERS)}")
    same = cu_seqlens_kv is None or cu_seqlens_kv is cu_seqlens_q
    arrays["cu_seqlens_q"] = cu_seqlens_q
    arrays["cu_seqlens_kv"] = cu_seqlens_q if same else cu_seqlens_kv
    if max_q is None:
        max_q = _longest("q", cu_seqlens_q)
    if max_kv is None:
        max_kv = max_q if same else _longest("kv", cu_seqlens_kv)
    what = "a number of positions"
    return count("max_seqlen_q", max_q, what, None), count("max_seqlen_kv", max_kv, what, None)


def _longest(name: str, ends: Any) -> int:
    if not is_tracing() and torch_state.hides_values(ends):  # torch.compile itself sees to other values
        where = "on meta" if ends.is_meta else "traced, transformed or captured"
        raise OperandError(f"cu_seqlens_{name} is {where}, where nothing can be read: give max_seqlen_{name}")
    return int((ends[1:] - ends[:-1]).max()) if len(ends.shape) == 1 and ends.shape[0] > 1 else 0
