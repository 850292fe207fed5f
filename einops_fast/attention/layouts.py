"""Attention without a pattern: a layout such as ``'bshd'`` names the axes of q, k and v alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from einops_fast.errors import SubscriptsError

__all__ = ["Layout", "read_layout"]

_USUAL = "'bhsd', 'bshd', 'sbhd', 'thd', and with q, k and v in one array 'bs3hd', 'sb3hd' or 't3hd'"


@dataclass(frozen=True)
class Layout:
    """A layout as a pattern.

    Attributes:
        pattern: the same as a pattern.
        sequence: its axes of queries and keys.
        packed: axis along which one array holds q, k and v; ``None`` for three arrays.
        varlen: whether sequences of several lengths lie one after the other.
    """

    pattern: str
    sequence: tuple[str, str]
    packed: int | None
    varlen: bool


def read_layout(layout: str, paged: bool = False) -> Layout:
    """Turn a layout into a pattern.

    Args:
        layout: one letter per axis, in any order: ``b`` batch, ``h`` heads, ``s`` positions, or ``t`` positions of
            all sequences one after the other, ``d`` features, ``3`` for q, k and v in one array.
        paged: whether k and v have pages in place of the batch.

    Raises:
        SubscriptsError: it isn't such a layout.

    Example:
        >>> from einops_fast.attention.layouts import read_layout
        >>> read_layout('bshd').pattern
        'b i h d, b j g d, b j g e -> b i h e'
    """
    if not isinstance(layout, str):
        raise SubscriptsError(f"layout is a text with a letter for each axis, not {layout!r}")
    return _read_layout(layout, paged)


# torch.compile calls it while tracing, and takes what it returns as it is.
read_layout._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _read_layout(layout: str, paged: bool) -> Layout:
    letters = sorted(layout) if isinstance(layout, str) else []
    positions = [letter for letter in letters if letter in "st"]
    if len(set(letters)) < len(letters) or not set(letters) <= set("bhstd3") or len(positions) != 1:
        raise SubscriptsError(f"layout {layout!r} is none; the usual ones are {_USUAL}")
    if "d" not in letters or (positions == ["t"] and "b" in letters):
        raise SubscriptsError(f"layout {layout!r} is none; the usual ones are {_USUAL}")
    packed = layout.index("3") if "3" in layout else None
    terms = [
        " ".join(names[letter] for letter in layout if letter != "3")
        for names in (
            {"b": "b", "h": "h", "s": "i", "t": "i", "d": "d"},
            {"b": "p" if paged else "b", "h": "g", "s": "j", "t": "j", "d": "d"},
            {"b": "p" if paged else "b", "h": "g", "s": "j", "t": "j", "d": "e"},
            {"b": "b", "h": "h", "s": "i", "t": "i", "d": "e"},
        )
    ]
    return Layout(f"{', '.join(terms[:3])} -> {terms[3]}", ("i", "j"), packed, positions == ["t"])
