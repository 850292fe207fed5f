"""The axes of one attention with their sizes, and the views that bring every array into canonical order.

Canonical order is batch axes, positions, features. Where heads of q share heads of k and v, the axis of q's heads is
seen as two, groups and the heads of a group. A batch axis that an array lacks has size 1 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from einops_fast.attention.pattern import PACKED, Pattern, letters_of, spelled
from einops_fast.errors import ShapeError, SubscriptsError

# Axes that nobody named: of packed sequences, and of the only query.
_SEQUENCES, _ONE_QUERY = "#", "?"


def seen(
    array: Any,
    permute: Callable[[Any, tuple[int, ...]], Any],
    split: tuple[int, ...] | None,
    perm: tuple[int, ...] | None,
    shape: tuple[int, ...] | None,
) -> Any:
    """Return an array by the :class:`View` of these fields."""
    if split is not None:
        array = array.reshape(split)
    if perm is not None:
        array = permute(array, perm)
    return array if shape is None else array.reshape(shape)


@dataclass(frozen=True)
class View:
    """How an array is seen: first with the axes split, then permuted, then with axes of size 1 put in or taken out."""

    split: tuple[int, ...] | None = None
    perm: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    def __call__(self, array: Any, permute: Callable[[Any, tuple[int, ...]], Any]) -> Any:
        return seen(array, permute, self.split, self.perm, self.shape)

    def layout(self, shape: Sequence[int], strides: Sequence[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape of what is seen, and the strides where those of the array are given, without an array."""
        sizes, steps = list(shape), list(strides)
        if self.split is not None:
            steps, at = [], 0
            for size, stride in zip(sizes, strides, strict=False):
                if self.split[at] == size:
                    steps.append(stride)
                    at += 1
                else:
                    steps += [stride * self.split[at + 1], stride]
                    at += 2
            sizes = list(self.split)
        if self.perm is not None:
            sizes = [sizes[axis] for axis in self.perm]
            steps = [steps[axis] for axis in self.perm] if steps else []
        if self.shape is not None and steps:
            rest = list(zip(sizes, steps, strict=True))
            # Axes of size 1 that are put in can't be told from those there were, and needn't be.
            steps = [rest.pop(0)[1] if rest and rest[0][0] == size else 0 for size in self.shape]
        return self.shape or tuple(sizes), tuple(steps)

    def back(self, array: Any, shape: Sequence[int], permute: Callable[[Any, tuple[int, ...]], Any]) -> Any:
        """Return what is seen so as an array of ``shape``."""
        sizes = tuple(shape) if self.split is None else self.split
        if self.perm is not None:
            if self.shape is not None:
                array = array.reshape([sizes[axis] for axis in self.perm])
            array = permute(array, tuple(map(self.perm.index, range(len(self.perm)))))
        return array if self.split is None and self.shape is None else array.reshape(tuple(shape))


@dataclass(frozen=True)
class Axes:
    """What is known of the axes of one attention."""

    pattern: Pattern  # the pattern
    sizes: dict[str, int]  # of every canonical axis, by letter; of packed sequences, the longest counts
    batch: str  # the canonical batch axes
    asked: str  # the batch axes in the order of the result; heads are one axis here
    groups: tuple[str, str] | None  # axes of q's heads and of k's and v's, where the first is to be split
    merged: tuple[str, str] | None  # axis of k's and v's heads, and the axis of q that it stands for, where it isn't
    # sizes of the batch axes of each
    q_batch: tuple[int, ...] = ()
    k_batch: tuple[int, ...] = ()
    v_batch: tuple[int, ...] = ()
    total: int = 0  # queries in the result; of packed sequences, those of all

    @property
    def queries(self) -> str:
        return self.pattern.queries or _ONE_QUERY

    @property
    def keys(self) -> str:
        return self.pattern.keys

    def size(self, letters: str) -> tuple[int, ...]:
        return tuple([self.sizes[letter] for letter in letters])

    def view(self, term: str, shape: Sequence[int], wanted: str) -> View:
        """Return how an array with axes ``term`` becomes one with the canonical axes ``wanted`` that it has."""
        letters, sizes = self._apart(term, shape)
        split = tuple(sizes) if len(letters) > len(term) else None
        present = [letters.index(letter) for letter in wanted if letter in letters]
        perm = tuple(present) if present != sorted(present) else None
        final = tuple([sizes[letters.index(letter)] if letter in letters else 1 for letter in wanted])
        return View(split, perm, final if len(final) > len(letters) else None)

    def _apart(self, term: str, shape: Sequence[int]) -> tuple[str, list[int]]:
        """Return the axes of an array after heads are split, and their sizes."""
        letters, sizes = "", []
        for letter, size in zip(term, shape, strict=True):
            if self.merged and letter == self.merged[0]:
                letter = self.merged[1]
            if self.groups and letter == self.groups[0]:
                heads, groups = self.groups
                letters += groups + heads
                sizes += [self.sizes[groups], self.sizes[heads]] if size != 1 else [1, 1]
            else:
                letters += letter
                sizes.append(size)
        return letters, sizes

    def further(self, what: str, text: str | None, shape: Sequence[int], tail: str, leading: bool = False) -> View:
        """Return how a further array is seen with all batch axes and the axes ``tail``.

        Without a pattern of its own (``text``), its axes are the last ones of ``(*batch, *tail)``, the batch axes being
        those of the result in its order; if ``leading``, they are the first of the batch axes.
        """
        if text is None:
            everything = self.asked + tail
            if len(shape) > len(everything):
                spelled = " ".join(map(self._spelling, everything))
                raise ShapeError(f"{what} of shape {tuple(shape)} has more axes than it may have: {spelled}")
            if leading:
                last = min(len(shape), len(tail))
                term = self.asked[: len(shape) - last] + tail[len(tail) - last :]
            else:
                term = everything[len(everything) - len(shape) :]
        else:
            names = self.pattern.names
            if _SEQUENCES in self.asked:
                names = (_SEQUENCES, PACKED), *names  # an axis of that name in the pattern counts before it
            term = letters_of(names, self.pattern.text, text, len(shape), what)
        for axis, (letter, size) in enumerate(zip(term, shape, strict=True)):
            expected = self._expected(letter, tail, what)
            if size != 1 and size != expected:
                raise ShapeError(
                    f"axis {axis} ('{self._spelling(letter)}') of {what} of shape {tuple(shape)} has size {size}, "
                    f"but '{self._spelling(letter)}' has size {expected}"
                )
        wanted = self.batch + tail
        if self.groups and self.groups[1] in term and self.groups[0] in term:
            heads, groups = map(self._spelling, self.groups)
            raise SubscriptsError(f"{what} has both '{heads}' and '{groups}', which are the same heads; name one")
        return self.view(term, shape, wanted)

    def _expected(self, letter: str, tail: str, what: str) -> int:
        if self.merged and letter == self.merged[0]:
            return self.sizes[self.merged[1]]
        if self.groups and letter == self.groups[0]:
            return self.sizes[self.groups[0]] * self.sizes[self.groups[1]]
        if letter not in self.batch + tail:
            raise SubscriptsError(f"{what} can't have axis '{self._spelling(letter)}'")
        return self.sizes[letter]

    def _spelling(self, letter: str) -> str:
        if letter == _SEQUENCES:
            return PACKED
        return "query" if letter == _ONE_QUERY else spelled(self.pattern, letter)

    def result(self, tail: str = "") -> tuple[tuple[int, ...], View]:
        """Return the order of the canonical result's axes in memory, ``tail`` being last, and the view asked for."""
        canonical = self.batch + self.queries + tail
        kept = [letter for letter in self.pattern.result if letter in self.asked + self.queries + tail]
        apart = ""
        shape = []
        for letter in kept:
            if self.groups and letter == self.groups[0]:
                apart += self.groups[1] + letter
                shape.append(self.sizes[letter] * self.sizes[self.groups[1]])
            else:
                apart += letter
                shape.append(self.total if letter == self.queries else self.sizes[letter])
        inserted = [at for at, letter in enumerate(canonical) if letter not in apart]
        order = (*inserted, *[canonical.index(letter) for letter in apart])
        perm = None if order == tuple(range(len(order))) else order
        return order, View(None, perm, tuple(shape) if len(shape) < len(canonical) else None)


def bind_axes(
    pattern: Pattern,
    shapes: Sequence[Sequence[int]],
    sequences: int | None = None,
    longest: tuple[int, int] = (0, 0),
    pages: int | None = None,
    first: str | None = None,
    with_cache: bool = False,
) -> Axes:
    """Find the size of every axis of q, k and v of these shapes.

    Args:
        sequences: how many sequences are packed along the positions, if any.
        longest: queries and keys of the longest of them.
        pages: how many pages a sequence can have, if there are pages.
        first: the batch axis that has to be the first; ``None`` for the first one of the result.
        with_cache: whether one has to be the first.
    """
    terms = (pattern.q, pattern.k, pattern.v)
    found = _sizes(pattern, terms, shapes)
    sizes = {letter: size for letter, (size, _) in found.items()}
    asked = "".join(letter for letter in pattern.result if letter not in (pattern.queries, pattern.v_head_dim))
    groups = merged = None
    if pattern.heads is not None:
        heads, kv_heads = pattern.heads
        if sizes[kv_heads] == 1 or sizes[kv_heads] == sizes[heads]:  # torch.compile finds no symbol in a tuple
            merged = kv_heads, heads
        elif sizes[kv_heads] == 0 or sizes[heads] % sizes[kv_heads]:
            theirs = _place(kv_heads, *found[kv_heads], terms, shapes)
            raise ShapeError(
                f"axis '{spelled(pattern, heads)}' has {_place(heads, sizes[heads], 0, terms, shapes)}, which isn't a "
                f"multiple of axis '{spelled(pattern, kv_heads)}', of {theirs}"
            )
        else:
            groups = heads, kv_heads
            sizes[heads] = sizes[heads] // sizes[kv_heads]
    batch = asked if groups is None else asked.replace(groups[0], groups[1] + groups[0])
    sizes[_ONE_QUERY] = 1
    total = sizes[pattern.queries] if pattern.queries else 1
    if sequences is not None:
        asked, batch = _SEQUENCES + asked, _SEQUENCES + batch
        sizes[_SEQUENCES] = sequences
        sizes[pattern.queries], sizes[pattern.keys] = longest
    elif with_cache and not batch:
        asked = batch = _SEQUENCES
        sizes[_SEQUENCES] = 1
    if first is not None:
        batch = first + batch.replace(first, "")
    if pages is not None:
        sizes[pattern.keys] = sizes[pattern.keys] * pages  # not in place: a traced size is a tensor that others hold
    axes = Axes(pattern, sizes, batch, asked, groups, merged, total=total)

    def batches(batch: str) -> list[tuple[int, ...]]:
        found = []
        for term, shape in zip(terms, shapes, strict=True):
            letters, own = axes._apart(term, shape)
            found.append(tuple([own[letters.index(letter)] if letter in letters else 1 for letter in batch]))
        return found

    q_batch, k_batch, v_batch = batches(batch)
    # Those over which k and v are shared come last.
    fixed_first = with_cache or sequences is not None
    shared = [
        letter
        for at, letter in enumerate(batch)
        if k_batch[at] == v_batch[at] == 1 != q_batch[at] and not (at == 0 and fixed_first)
    ]
    if shared:
        batch = "".join([letter for letter in batch if letter not in shared] + shared)
        q_batch, k_batch, v_batch = batches(batch)
    if pattern.pages:
        k_batch, v_batch = ((sizes[pattern.pages], *each[1:]) for each in (k_batch, v_batch))
    return Axes(pattern, sizes, batch, asked, groups, merged, q_batch, k_batch, v_batch, total)


def _sizes(pattern: Pattern, terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, tuple[int, int]]:
    """Return the size of each axis, and which operand has it; where one is expanded, that of the other."""
    found: dict[str, tuple[int, int]] = {}
    for at, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        for letter, size in zip(term, shape, strict=True):
            if letter not in found:
                found[letter] = size, at
                continue
            known, other = found[letter]
            if known == size:
                continue
            fixed = letter in (pattern.head_dim, pattern.keys, pattern.pages)
            if fixed or (known != 1 and size != 1):
                raise ShapeError(
                    f"axis '{spelled(pattern, letter)}' has {_place(letter, size, at, terms, shapes)} "
                    f"but {_place(letter, known, other, terms, shapes)}"
                )
            if known == 1:
                found[letter] = size, at
    return found


def _place(letter: str, size: int, at: int, terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> str:
    return f"size {size} in {'qkv'[at]} (axis {terms[at].index(letter)} of shape {tuple(shapes[at])})"
