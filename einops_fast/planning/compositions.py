"""Axes that several of the equation make up, ``'b i (h d), b j (h d) -> b h i j'``, and ``1``: pure text and shapes.

An operand is reshaped to the axes of the equation, which makes a view, and the result to those that it is to have. As
in einops, names stand between blanks, the last one in parentheses is the fastest, and ``1`` is an axis of size 1 that
has no name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple, NoReturn

from einops_fast.errors import ShapeError, SubscriptsError, point_at
from einops_fast.planning.refusals import count_axes, new_axis
from einops_fast.planning.terms import is_name

_ONE = re.compile(r"(?<![^\s,>(])1(?![^\s,)-])")
_AXIS = re.compile(r"\(([^()]*)\)|\.\.\.|[^\s()]+|[()]")

_Axes = tuple[str, ...]
"""Per axis of an array the letters that make it up: none for ``1``; or an ellipsis.

In a result, an ellipsis may be among letters, or in parentheses.
"""


class Composition(NamedTuple):
    """An equation in which some axes are made up of several."""

    text: str  # as it was written
    letters: str  # the equation of the axes that it names, in letters
    inputs: tuple[_Axes, ...]  # the axes of each operand
    output: _Axes  # those of the result
    named: tuple[tuple[str, str], ...]  # pairs of a letter and the name that it stands for

    @property
    def names(self) -> dict[str, str]:
        """By letter."""
        return dict(self.named)

    def shapes(self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]) -> list[tuple[int, ...]]:
        """The shapes of the operands with one axis for each letter, where some sizes are given by name."""
        if len(shapes) != len(self.inputs):
            problem = f"the equation has {len(self.inputs)} terms, but there are {len(shapes)} operands"
            raise SubscriptsError(point_at(problem, self.text))
        parts = [self._parts(*each) for each in zip(range(len(shapes)), self.inputs, shapes, strict=True)]
        letters = {name: letter for letter, name in self.names.items()}
        sizes = {letters[name]: size for name, size in given.items()}
        said, known = dict.fromkeys(sizes, "as given"), -1
        every = [part for part in chain(*parts) if part.letters != "..."]
        while known < len(sizes):
            known = len(sizes)
            for part in every:
                self._learn(part, sizes, said)
        for part in every:
            unknown = [self.names[letter] for letter in part.letters if letter not in sizes]
            if unknown and part.size != 1:
                problem = f"{self._place(part)} tells no size of {' and '.join(unknown)}: give one"
                raise ShapeError(point_at(problem, self.text))
        for name, size in given.items():
            if all(part.size == 1 for part in every if letters[name] in part.letters) and size != 1:
                raise ShapeError(point_at(f"axis {name!r} has size 1, not {size} as given", self.text))
        return [tuple(chain(*[part.sizes(sizes) for part in each])) for each in parts]

    def fixed(self, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]) -> list[list[list[int | None]]]:
        """Per axis of each operand what holds for operands of any size: the sizes given for its parts, or ``None``."""
        parts = [self._parts(*each) for each in zip(range(len(shapes)), self.inputs, shapes, strict=True)]
        sizes = {letter: given.get(name) for letter, name in self.named}
        return [[self._fixed(part, sizes) for part in each] for each in parts]

    def _fixed(self, part: _Part, sizes: Mapping[str, int | None]) -> list[int | None]:
        if part.letters == "...":
            return [None]
        if len(part.letters) == 1:  # a single axis of size 1 broadcasts
            given = sizes.get(part.letters)
            return [given if given == part.size else None]
        left = [self.names[letter] for letter in part.letters if sizes.get(letter) is None]
        if len(left) > 1 and part.size != 1:
            problem = (
                f"{self._place(part)} is split into {' and '.join(left)} without a size given, but what is traced here "
                f"has to hold for arrays of any size: give all but one of them, as in {left[0]}=8"
            )
            raise ShapeError(point_at(problem, self.text))
        return [1 if part.size == 1 else sizes.get(letter) for letter in part.letters]

    def groups(self, rank: int) -> list[int]:
        """For each axis of the result, how many it is made of, if there are so many with one for each letter."""
        named = [len(axis.strip("()").replace("...", "")) for axis in self.output]
        spread = rank - sum(named)
        counts = zip(self.output, named, strict=True)
        return [
            *chain(*[[1] * spread if axis == "..." else [count + spread * ("..." in axis)] for axis, count in counts])
        ]

    def regrouped(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result, of that with one axis for each letter."""
        sizes = iter(shape)
        return tuple([prod([next(sizes) for _ in range(count)]) for count in self.groups(len(shape))])

    def _parts(self, operand: int, axes: _Axes, shape: tuple[int, ...]) -> list[_Part]:
        spread = len(shape) - len(axes) + 1 if "..." in axes else 1
        if spread < 0 or (len(shape) != len(axes) and "..." not in axes):
            problem = (
                f"operand {operand} has {count_axes(len(shape))}, but its term names {len(axes) - ('...' in axes)}"
            )
            raise ShapeError(point_at(problem, self.text))
        every = chain(*[["..."] * spread if axis == "..." else [axis] for axis in axes])
        return [_Part(operand, at, letters, size) for at, (letters, size) in enumerate(zip(every, shape, strict=True))]

    def _learn(self, part: _Part, sizes: dict[str, int], said: dict[str, str]) -> None:
        """Take from one axis of an operand what it tells; an axis of size 1 broadcasts."""
        unknown = [letter for letter in part.letters if letter not in sizes]
        if len(unknown) > 1 or part.size == 1:
            return
        known = prod([sizes[letter] for letter in part.letters if letter in sizes])
        if unknown and known and part.size % known == 0:
            sizes[unknown[0]], said[unknown[0]] = part.size // known, f"from axis {part.axis} of operand {part.operand}"
        elif unknown or known != part.size:
            made = " ".join([f"{self.names[each]}={sizes[each]}" for each in part.letters if each in sizes])
            sources = dict.fromkeys([said[each] for each in part.letters if each in sizes])
            problem = (
                f"{self._place(part)} has size {part.size}, which {made or 1} doesn't {'divide' if unknown else 'make'}"
            )
            raise ShapeError(point_at(" ".join([problem, *[f"({each})" for each in sources]]), self.text))

    def _place(self, part: _Part) -> str:
        named = " ".join([self.names[letter] for letter in part.letters]) or "1"
        return f"axis {part.axis} of operand {part.operand}, {f'({named})' if ' ' in named else repr(named)},"


class _Part(NamedTuple):
    """An axis of an operand, and the letters that make it up."""

    operand: int
    axis: int
    letters: str
    size: int

    def sizes(self, sizes: Mapping[str, int]) -> list[int]:
        """Of the axes that it becomes."""
        if len(self.letters) == 1 or self.letters == "...":
            return [self.size]  # the array's own: traced with size 1, it stays free to be another
        return [1 if self.size == 1 else sizes[letter] for letter in self.letters]


def composition(equation: Any) -> Composition | None:
    """Read an equation with parentheses, or with ``1``; ``None`` for any other.

    >>> found = composition("b i (h d), b j (h d) -> b h i j")
    >>> found.letters, found.inputs[0], found.shapes([(2, 5, 12), (2, 6, 12)], {"h": 3})
    ('bihd,bjhd->bhij', ('b', 'i', 'hd'), [(2, 5, 3, 4), (2, 6, 3, 4)])
    """
    found = _read_once(equation)
    return None if found is None else Composition(*found)


def composed(equation: str) -> Composition:
    """Read any equation with names between blanks, ``'->'`` and parentheses or none."""
    return Composition(*_read(equation))


def _read_once(equation: Any) -> tuple[Any, ...] | None:
    composed = isinstance(equation, str) and ("(" in equation or ")" in equation or _ONE.search(equation))
    return _read(equation) if composed else None


# It's called while torch.compile traces, since text is constant, and gives what counts as a constant there.
_read_once._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=4096)
def _read(equation: str) -> tuple[Any, ...]:
    left, arrow, _ = equation.partition("->")
    if not arrow:
        raise SubscriptsError(
            point_at("axes can't be grouped, or be 1, without '->' and the axes of the result", equation)
        )
    ends = [*accumulate([len(term) + 1 for term in left.split(",")], initial=0)]
    spans = [(start, end - 1) for start, end in pairwise(ends)]
    *inputs, output = [_names(equation, *span) for span in [*spans, (len(left) + len(arrow), len(equation))]]
    names = dict.fromkeys([name for axes in inputs for axis in axes for name in axis if "..." not in name])
    spare = iter([letter for letter in ascii_letters if letter not in names])
    letters = {name: name if len(name) == 1 and name.isascii() else next(spare, "") for name in names}
    letters |= {"...": "...", "(...)": "(...)"}
    if "" in letters.values():
        raise SubscriptsError(
            point_at(f"at most {len(ascii_letters)} axes can be named beside others in parentheses", equation)
        )
    produced = [name for axis in output for name in axis]
    for name in produced:
        if "..." not in name and (name not in names or produced.count(name) > 1):
            problem = f"the output has axis {name!r} twice" if name in names else new_axis(name, len(inputs))
            raise SubscriptsError(point_at(problem, equation))
    terms = [tuple(["".join([letters[name] for name in axis]) for axis in axes]) for axes in (*inputs, output)]
    plain = f"{','.join(map(''.join, terms[:-1]))}->{''.join(terms[-1]).replace('(...)', '...')}"
    named = tuple([(letter, name) for name, letter in letters.items() if name in names])
    return equation, plain, tuple(terms[:-1]), terms[-1], named


def _names(equation: str, start: int, end: int) -> list[list[str]]:
    """The names that make up each axis of a term."""
    axes = []
    for match in _AXIS.finditer(equation, start, end):
        whole = match[0]
        names = whole.split() if match[1] is None else match[1].split()
        if whole in ("(", ")"):
            _reject("parentheses are closed, and hold no others", equation, match.span())
        if match[1] is not None and "..." in names and "->" in equation[end:]:
            _reject("an ellipsis can be part of an axis of the result only", equation, match.span())
        wrong = [name for name in names if name not in ("1", "...") and not is_name(name)]
        if wrong:
            _reject(f"{wrong[0]!r} is no name of an axis", equation, match.span())
        names = [name for name in names if name != "1"]
        axes.append(["(...)"] if match[1] is not None and names == ["..."] else names)
    if sum(["..." in name for axis in axes for name in axis]) > 1:
        _reject("a term has one ellipsis", equation, (start, end))
    return axes


def _reject(problem: str, equation: str, span: tuple[int, int]) -> NoReturn:
    raise SubscriptsError(point_at(problem, equation, span))


def check_sizes(sizes: Mapping[str, int], equation: str) -> None:
    """Raise ShapeError if one of the sizes that are given can't be one."""
    for name, size in sizes.items():
        with suppress(TypeError, ValueError, RuntimeError):  # of an array of several elements, or of texts
            # Of a size that torch.compile traces, it can't tell attributes.
            if (isinstance(size, int) or (not isinstance(size, str) and hasattr(size, "__index__"))) and size >= 0:
                continue
        raise ShapeError(point_at(f"the size of axis {name!r} is no number that it can have: {size!r}", equation))
