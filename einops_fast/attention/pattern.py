"""An attention pattern, read: which axis is batch, head, position or feature.

A pattern is an equation of q, k, v and the result, in letters or words: ``'b i h d, b j h d, b j h e -> b i h e'``.
What an axis is follows from where it occurs:

* in q and k alone: the features that are multiplied (``head_dim``);
* in v and the result alone: the features of v (``v_head_dim``); of several axes the one that comes last in v, or else
  in the result, and the others are batch;
* in q and the result alone: the queries, or heads that share their keys;
* in k and v alone: the keys, or heads that several heads of q share;
* anywhere else where the result has it: batch.

Which of several axes is the queries or the keys is said by ``sequence``, else by the names, else by the bias or mask.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from einops_fast.errors import EinsumError, ShapeError, SubscriptsError, point_at
from einops_fast.planning.notation import parse

PACKED = "packed"
"""What patterns of further arrays call the axis that counts packed sequences, which the pattern doesn't have."""

_OPERANDS = ("q", "k", "v")

_USUAL = "'bhsd', 'bshd', 'sbhd', 'thd', and with q, k and v in one array 'bs3hd', 'sb3hd' or 't3hd'"

_HEADS = frozenset(
    "g h n r head heads group groups kv_head kv_heads key_heads n_head n_heads num_heads nheads q_head q_heads "
    "query_heads n_kv_heads num_kv_heads n_groups num_groups repeat".split()
)
_SEQUENCES = frozenset(
    "i j k l m q s t x y src tgt length seq seq_len seqlen sequence position positions pos time token tokens query "
    "queries key keys q_len kv_len k_len l_q l_k q_seq kv_seq k_seq query_len key_len source target from_len to_len "
    "src_len tgt_len context ctx".split()
)
_PAGES = frozenset("p page pages n_pages num_pages block blocks n_blocks num_blocks".split())


@dataclass(frozen=True)
class Pattern:
    """A pattern with one letter per axis, and what each axis is. Sizes don't matter here."""

    # the axes of each, as letters
    q: str
    k: str
    v: str
    result: str
    head_dim: str  # axis that q and k are multiplied along
    v_head_dim: str  # axis of features of v
    queries: str  # axis of the queries; empty where there is one query only, without an axis
    keys: str  # axis of the keys
    heads: tuple[str, str] | None  # axes of q's and of k's and v's heads, where the former are a multiple of the latter
    pages: str  # axis of k and v that counts pages
    names: tuple[tuple[str, str], ...]  # what each letter stands for
    text: str  # the pattern as it was written


def spelled(pattern: Pattern, letter: str) -> str:
    """Return the name of an axis as it was written. (torch.compile couldn't follow a method.)"""
    return dict(pattern.names)[letter]


def read_pattern(
    text: str,
    ranks: tuple[int, int, int],
    sequence: tuple[str, str] | None = None,
    others: tuple[str, ...] = (),
    paged: bool = False,
) -> Pattern:
    """Read a pattern for operands of these ranks."""
    return _read_pattern(text, ranks, sequence, others, paged)


def letters_of(names_of_pattern: tuple[tuple[str, str], ...], written: str, text: str, rank: int, what: str) -> str:
    """Return the axes of a further operand as letters; ``text`` names them in words or letters."""
    words = text.split()
    known = {name: letter for letter, name in names_of_pattern}
    as_words = len(words) == rank and all(word in known for word in words)
    names = words if as_words else list("".join(words))
    for name in names:
        if name not in known:
            problem = f"the pattern {text!r} of {what} has axis {name!r}, which none of q, k and v has"
            raise SubscriptsError(point_at(problem, written))
    if len(names) != rank:
        raise ShapeError(f"{what} has {rank} axes, but its pattern {text!r} names {len(names)}")
    if len(set(names)) < len(names):
        raise SubscriptsError(f"the pattern {text!r} of {what} has an axis twice")
    return "".join([known[name] for name in names])


# torch.compile calls these while tracing, and takes what they return as it is.
letters_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
read_pattern._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)
def _read_pattern(
    text: str, ranks: tuple[int, int, int], sequence: tuple[str, str] | None, others: tuple[str, ...], paged: bool
) -> Pattern:
    if "->" not in text or text.partition("->")[0].count(",") != 2:
        problem = "an attention pattern has three terms and a result: '<q>, <k>, <v> -> <result>'"
        raise SubscriptsError(point_at(problem, text))
    try:
        subscripts = parse(text, ranks)
    except (ShapeError, SubscriptsError) as error:
        raise type(error)(re.sub("operand ([012])", lambda found: _OPERANDS[int(found[1])], str(error))) from None
    q, k, v = subscripts.inputs
    result = subscripts.output
    names = {letter: str(name) for letter, name in subscripts.names}
    for operand, term in zip(_OPERANDS, subscripts.inputs, strict=True):
        for letter in term:
            if term.count(letter) > 1:
                raise SubscriptsError(point_at(f"axis '{names[letter]}' is twice in the term of {operand}", text))
    by_place: dict[str, list[str]] = {}
    for letter in names:
        place = "".join(operand for operand, term in zip("qkvo", (q, k, v, result), strict=True) if letter in term)
        lone_heads = place in ("k", "v") and names[letter].lower() in _HEADS
        if place in ("q", "k", "v", "qv", "qkv") and not lone_heads:
            _reject_summed(names[letter], place, text)
        by_place.setdefault(place, []).append(letter)
    head_dim = _only(by_place.get("qk", []), "head_dim", names, text)
    # Any of several gives the same result: the others are batch axes that q and k lack.
    of_values = by_place.get("vo", [])
    last = [letter for letter in (v[-1:], result[-1:], *of_values) if letter in of_values]
    v_head_dim = _only(last[:1], "v_head_dim", names, text)
    # In the order of their own terms, so that the first of two is what is written first.
    queries = [letter for letter in q if letter in by_place.get("qo", [])]
    keys = [letter for letter in k if letter in by_place.get("kv", [])]
    hinted = _hinted(others, names)
    if not keys:
        raise SubscriptsError(point_at("no axis is in k and v alone: there are no keys to sum over", text))
    pages = ""
    if paged:
        pages = _find_pages(keys, names, text, sequence)
        keys.remove(pages)
    key_axis = _find(keys, "keys", 1, sequence, names, hinted, text)
    # An axis of heads may be missing in k or in v.
    kv_heads = [letter for letter in keys if letter != key_axis] + by_place.get("k", []) + by_place.get("v", [])
    if len(kv_heads) > 1:
        spelled = " and ".join(repr(names[letter]) for letter in kv_heads)
        raise SubscriptsError(
            point_at(f"axes {spelled} are in k and v only: only one can be heads that queries share", text)
        )
    query_axis = ""
    alone = len(queries) == 1 and sequence is None and kv_heads and names[queries[0]].lower() in _HEADS
    if queries and not alone:
        query_axis = _find(queries, "queries", 0, sequence, names, hinted, text)
    q_heads = [letter for letter in queries if letter != query_axis]
    heads = None
    if kv_heads:
        if len(q_heads) > 1:
            q_heads = [letter for letter in q_heads if names[letter].lower() in ("h", "n", "head", "heads")]
        if len(q_heads) != 1:
            problem = f"axis '{names[kv_heads[0]]}' of k and v has no axis of heads of q that it could divide"
            raise SubscriptsError(point_at(problem, text))
        heads = q_heads[0], kv_heads[0]
    return Pattern(
        q, k, v, result, head_dim, v_head_dim, query_axis, key_axis, heads, pages, tuple(names.items()), text
    )


def _only(letters: Sequence[str], what: str, names: dict[str, str], text: str) -> str:
    if len(letters) == 1:
        return letters[0]
    where = "q and k" if what == "head_dim" else "v and the result"
    if not letters:
        problem = (
            f"no axis is in {where} alone, which is what makes it {what}; an axis that is in all of q, k, v and the "
            "result is a batch axis, so give the features of v and the result a name of their own"
        )
    else:
        spelled = ", ".join(repr(names[letter]) for letter in letters)
        problem = f"axes {spelled} are in {where} alone; only one axis can be {what}"
    raise SubscriptsError(point_at(problem, text))


def _reject_summed(name: str, place: str, text: str) -> None:
    where = " and ".join(place)
    problem = f"axis '{name}' is in {where}, but not in the result: an attention sums over keys and features only"
    raise SubscriptsError(point_at(problem, text))


def _hinted(others: Sequence[str], names: dict[str, str]) -> frozenset[str]:
    """Return the axes that bias or mask have, by letter."""
    known = {name: letter for letter, name in names.items()}
    found: set[str] = set()
    for text in others:
        words = text.split()
        named = words if known.keys() | {PACKED} >= set(words) else chain.from_iterable(words)
        found.update(known[name] for name in named if name in known)
    return frozenset(found)


def _find_pages(keys: Sequence[str], names: dict[str, str], text: str, sequence: tuple[str, str] | None) -> str:
    if len(keys) > 1:
        for letter in keys:
            if names[letter].lower() in _PAGES:
                return letter
        rest = [letter for letter in keys if sequence is None or names[letter] != sequence[1]]
        rest = [letter for letter in rest if names[letter].lower() not in _HEADS | _SEQUENCES]
        if len(rest) == 1:
            return rest[0]
    problem = "with a block_table, k and v have an axis of their own that counts pages; call it 'page'"
    raise SubscriptsError(point_at(problem, text))


def _find(
    letters: Sequence[str],
    what: str,
    place: int,
    sequence: tuple[str, str] | None,
    names: dict[str, str],
    hinted: frozenset[str],
    text: str,
) -> str:
    if sequence is not None:
        for letter in letters:
            if names[letter] == sequence[place]:
                return letter
        spelled = ", ".join(repr(names[letter]) for letter in letters)
        problem = f"sequence names axis {sequence[place]!r} as the {what}, but that can only be one of {spelled}"
        raise SubscriptsError(point_at(problem, text))
    if len(letters) == 1:
        return letters[0]
    lower = {letter: names[letter].lower() for letter in letters}
    usual = [letter for letter in letters if lower[letter] in _SEQUENCES]
    unusual = [letter for letter in letters if lower[letter] not in _HEADS]
    for found in (usual, unusual, [letter for letter in letters if letter in hinted]):
        if len(found) == 1:
            return found[0]
    spelled = " and ".join(repr(names[letter]) for letter in letters)
    problem = (
        f"any of {spelled} could be the axis of the {what}; "
        "say which with sequence=(axis of the queries, axis of the keys)"
    )
    raise SubscriptsError(point_at(problem, text))


def checked_sequence(sequence: object) -> tuple[str, str] | None:
    """Return ``sequence`` as a pair of names, if it is one."""
    if sequence is None:
        return None
    if isinstance(sequence, (list, tuple)) and len(sequence) == 2 and all(isinstance(name, str) for name in sequence):
        return sequence[0], sequence[1]
    raise EinsumError(f"sequence is the names of two axes, of the queries and of the keys, not {sequence!r}")


@dataclass(frozen=True)
class Layout:
    """A layout as a pattern."""

    pattern: str  # the same as a pattern, whose axes of queries and keys are i and j
    packed: int | None  # axis along which one array holds q, k and v; `None` for three arrays
    varlen: bool  # whether sequences of several lengths lie one after the other


def read_layout(layout: str, paged: bool = False) -> Layout:
    """Turn a layout into a pattern; if ``paged``, k and v have pages in place of the batch.

    It has a letter per axis, in any order: ``b`` batch, ``h`` heads, ``s`` positions, or ``t`` positions of all
    sequences one after the other, ``d`` features, ``3`` for q, k and v in one array.
    """
    if not isinstance(layout, str):
        raise SubscriptsError(f"layout is a text with a letter for each axis, not {layout!r}")
    return _read_layout(layout, paged)


# torch.compile calls it while tracing, and takes what it returns as it is.
read_layout._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _read_layout(layout: str, paged: bool) -> Layout:
    letters = set(layout)
    positions = letters & {"s", "t"}
    known = len(letters) == len(layout) and letters <= set("bhstd3")
    if not known or len(positions) != 1 or "d" not in letters or {"t", "b"} <= letters:
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
    return Layout(f"{', '.join(terms[:3])} -> {terms[3]}", packed, positions == {"t"})
