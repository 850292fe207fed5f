"""The public cases: the three problems of apache/mxnet#18043, and contractions of many shapes and ratios.

A case is an equation, the shapes of its operands and how they lie in memory; no framework and no array. Its cost
(elements to move, FLOPs of the best order) is what a measured time is held against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

# How to compute a problem: the native einsum, the same with ``optimize=True``, by hand, ours, and the native call with
# our patch in place.
MODES = ("einsum", "einsum_optimize", "no_einsum", "fast_einsum", "patched")

# Bytes of an element, by the dtypes that cases are measured in.
ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
GPU_ELEMENTS = 24e6  # Elements of the largest tensor of a TCCG case on a GPU
CPU_ELEMENTS = 1e6  # The same on a CPU, where two cores have to finish a whole table in minutes
CPU_LARGEST = 4 << 20  # The largest tensor of any other case on a CPU, in elements
CPU_FLOPS = 4e9  # The most work of one call on a CPU

# Names of the cases that models are trained through: their gradients are measured too.
BACKWARD = ("mx0", "mx1", "mx2", "qk-bind", "pv-bind", "proj-out", "linattn-bind")

Shape = tuple[int, ...]


class AnyCase(ABC):
    """A case of any study: what is called, on arrays of which sizes, and how it is measured by default."""

    name: str

    @property
    @abstractmethod
    def called(self) -> str:
        """What every implementation computes, for tables."""

    @property
    @abstractmethod
    def sizes(self) -> str:
        """The sizes of operands and result, for tables."""

    def passes(self, backward: bool = False) -> tuple[tuple[int, int], ...]:
        """Return elements that have to be moved and FLOPs, for each pass over the data; empty where nobody knows."""
        return ()

    def directions(self) -> tuple[bool, ...]:
        """Return which directions are measured: False for forward, True for forward and backward."""
        return (False, True)

    def by_default(self, device: str, dtype: str) -> bool:
        """Return whether it is measured there if nobody asks for it."""
        return True

    def scaled(self, device: str, dtype: str) -> AnyCase | None:
        """Return the case at a size that the device finishes soon, or ``None`` for not at all."""
        return self

    def compiles(self, way: str) -> bool:
        """Return whether a way of it is worth compiling before anything is measured, in other processes."""
        return True


@dataclass(frozen=True)
class Case(AnyCase):
    """An equation in letters with the shapes of its operands."""

    name: str  # what tables call it, and `--only-run` selects
    equation: str  # explicit (with `->`), one letter per axis
    shapes: tuple[Shape, ...]  # one shape per operand
    problem: int | None = None  # its number in apache/mxnet#18043, if it is one of the three
    uniform: bool = False  # every axis has the same extent, chosen to meet a budget of elements (the TCCG suite)
    # for each operand its letters in the order of memory, outermost first; empty where all are contiguous. A letter
    # left out is an axis that was expanded (stride 0); `_` stands for an axis of two of the array that the operand is a
    # slice of.
    memory: tuple[str, ...] = ()
    spelled: str = ""  # the equation as it is called, if that isn't in letters alone
    fixed: bool = False  # it is measured at these shapes on any device

    @property
    def called(self) -> str:
        return self.spelled or self.equation

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.equation.split("->")[0].split(","))

    @property
    def output(self) -> str:
        return self.equation.split("->")[1]

    @property
    def orders(self) -> tuple[str, ...]:
        return self.memory or self.inputs

    @property
    def extents(self) -> dict[str, int]:
        return {
            letter: extent
            for term, shape in zip(self.inputs, self.shapes, strict=True)
            for letter, extent in zip(term, shape, strict=True)
        }

    @property
    def result_shape(self) -> Shape:
        extents = self.extents
        return tuple(extents[letter] for letter in self.output)

    @property
    def sizes(self) -> str:
        """Shapes in words: ``64×8×100×128, 64×8×50×128 -> 64×8×100×50``; what isn't contiguous with its order."""
        *operands, result = ("×".join(map(str, shape)) for shape in (*self.shapes, self.result_shape))
        told = (
            text if order == term else f"{text} ({order})"
            for text, order, term in zip(operands, self.orders, self.inputs, strict=True)
        )
        return f"{', '.join(told)} -> {result or 'scalar'}"

    @property
    def terms(self) -> int:
        """How many products each element of the result adds up."""
        return prod(extent for letter, extent in self.extents.items() if letter not in self.output)

    @property
    def elements(self) -> tuple[int, ...]:
        """Elements that have to be read of each operand (of a diagonal just that), then those of the result."""
        extents = self.extents
        read = (
            prod(extents[letter] for letter in set(term) & set(order))
            for term, order in zip(self.inputs, self.orders, strict=True)
        )
        return *read, prod(self.result_shape)

    @property
    def flops(self) -> int:
        """Floating-point operations in the best pairwise order (a multiplication and an addition are two).

        Axes that are expanded, or summed in one operand alone, cost no multiplications.
        """
        # Imports NumPy, which reads the number of threads then.
        from opt_einsum import contract_path

        extents, inputs = self.extents, self.inputs
        held = [
            "".join(dict.fromkeys(letter for letter in term if letter in order))
            for term, order in zip(inputs, self.orders, strict=True)
        ]
        counts = Counter("".join(held))
        alone = {letter for letter, count in counts.items() if count == 1 and letter not in self.output}
        terms = ["".join(letter for letter in term if letter not in alone) for term in held]
        output = "".join(letter for letter in self.output if any(letter in term for term in terms))
        shapes = [tuple(extents[letter] for letter in term) for term in terms]
        info = contract_path(f"{','.join(terms)}->{output}", *shapes, shapes=True, optimize="optimal")[1]
        return int(info.opt_cost)

    def gradient(self, place: int) -> Case:
        """Return the einsum that is the gradient of one operand: in its place stands the result's cotangent."""
        inputs, shapes = list(self.inputs), list(self.shapes)
        inputs[place], shapes[place] = self.output, self.result_shape
        return Case(f"{self.name}-grad{place}", f"{','.join(inputs)}->{self.inputs[place]}", tuple(shapes))

    def passes(self, backward: bool = False) -> tuple[tuple[int, int], ...]:
        """Return those of forward and, if asked for, of backward, with FLOPs of the best order.

        Backward reads the operands and the cotangent once, and writes every gradient.
        """
        forward = sum(self.elements), self.flops
        if not backward:
            return (forward,)
        flops = sum(self.gradient(place).flops for place in range(len(self.shapes)))
        return forward, (forward[0] + sum(map(prod, self.shapes)), flops)

    def with_extents(self, extents: dict[str, int]) -> Case:
        return replace(self, shapes=tuple(tuple(extents[letter] for letter in term) for term in self.inputs))

    def directions(self) -> tuple[bool, ...]:
        return (False, True) if self.fixed or self.name in BACKWARD else (False,)

    def scaled(self, device: str, dtype: str) -> Case | None:
        """Return it as it is on a GPU, shrunk on a CPU; a point of a curve is left out rather than moved.

        Halving the largest extent again and again shrinks sequences and batches and leaves heads and features,
        whose sizes make the case what it is; odd extents stay odd.
        """
        if device != "cpu" or self.fixed:
            return self
        if self.uniform:
            return _tccg(self.name, CPU_ELEMENTS)
        case = self
        while max(case.elements) > CPU_LARGEST or case.flops > CPU_FLOPS:
            extents = case.extents
            largest = max(extents, key=lambda letter: extents[letter])
            half = extents[largest] // 2 | extents[largest] % 2
            case = case.with_extents({**extents, largest: half})
        return case if case is self or curve(self.name) is None else None


def _problem(number: int, equation: str, *shapes: Shape) -> Case:
    return Case(f"mx{number}", equation, shapes, problem=number, fixed=True)


PROBLEMS: tuple[Case, ...] = (
    _problem(0, "bnid,bnjd->bnij", (64, 8, 100, 128), (64, 8, 50, 128)),
    _problem(1, "bind,bjnd->bnij", (64, 100, 8, 128), (64, 50, 8, 128)),
    _problem(2, "bind,jnd->bnij", (64, 100, 8, 128), (50, 8, 128)),
)

_BIND = (8, 2048, 16, 64)
_LONG = (8, 4096, 16, 64)
_CUBE = (64, 1024, 1024)

_NAMED: tuple[Case, ...] = (
    Case("qk-bind", "bind,bjnd->bnij", (_BIND, _BIND)),
    Case("pv-bind", "bnij,bjnd->bind", ((8, 16, 2048, 2048), _BIND)),
    Case("proj-out", "bnih,nhd->bid", ((8, 16, 2048, 64), (16, 64, 1024))),
    Case("linattn-bind", "bind,bine->bnde", (_LONG, _LONG)),
    Case("rowdot", "bnid,bnid->bni", ((8, 16, 4096, 64), (8, 16, 4096, 64))),
    Case("rowdot-bind", "bind,bind->bni", (_LONG, _LONG)),
    Case("fulldot", "bij,bij->", (_CUBE, _CUBE)),
    Case("batchdot", "bij,bij->b", (_CUBE, _CUBE)),
    Case("scale", "bij,bj->bij", (_CUBE, (64, 1024))),
    Case("outer", "bi,bj->bij", ((64, 1024), (64, 1024))),
    Case("gram", "bik,bjk->ij", ((64, 1024, 256), (64, 1024, 256))),
    Case("bilinear", "bi,oij,bj->bo", ((4096, 128), (128, 128, 128), (4096, 128))),
    Case("chain4", "ai,ij,jk,kb->ab", ((4096, 64), (64, 64), (64, 64), (64, 4096))),
)

# The tensor contraction code generator benchmark (TCCG), written result-left-right.
_TCCG = """
abcde-efbad-cf abcde-efcad-bf abcd-dbea-ec abcde-ecbfa-fd abcd-deca-be abc-bda-dc abcd-ebad-ce
abcdef-dega-gfbc abcdef-dfgb-geac abcdef-degb-gfac abcdef-degc-gfab abc-dca-bd abcd-ea-ebcd abcd-eb-aecd
abcd-ec-abed abc-adec-ebd ab-cad-dcb ab-acd-dbc abc-acd-db abc-adc-bd ab-ac-cb abcd-aebf-fdec abcd-eafd-fbec
abcd-aebf-dfce aqrs-pa-pqrs abrs-qb-aqrs abj-bka-kj ajbc-ckba-jk abjcd-dkbac-jk
""".split()


def _tccg(name: str, elements: float) -> Case:
    """Return the contraction ``result-left-right`` whose largest tensor has about ``elements`` elements."""
    result, left, right = name.split("-")
    root = elements ** (1 / max(len(result), len(left), len(right)))
    # The tolerance keeps an exact root exact: 4096 ** (1 / 3) is a hair below 16.
    extent = max(8, int(root + 1e-9) // 8 * 8)
    shapes = ((extent,) * len(left), (extent,) * len(right))
    return Case(name, f"{left},{right}->{result}", shapes, uniform=True)


CONTRACTIONS: tuple[Case, ...] = (*PROBLEMS, *_NAMED, *(_tccg(name, GPU_ELEMENTS) for name in _TCCG))


Kind = TypeVar("Kind", bound=AnyCase)


def select(cases: Sequence[Kind], only: str) -> tuple[Kind, ...]:
    """Return the cases whose names have any of the parts in ``only``, or all of them."""
    wanted = parts(only)
    return tuple(case for case in cases if not wanted or any(part in case.name for part in wanted))


def parts(only: str) -> list[str]:
    """Return what to look for in the names of cases; a number is one of the problems'."""
    return [f"mx{part}" if part.isdigit() else part for part in map(str.strip, only.split(",")) if part]


def curve(name: str) -> tuple[str, int] | None:
    """Return the curve that a case is a point of, and its size, of ``curve@size``; ``None`` for other cases."""
    of, _, size = name.rpartition("@")
    return (of, int(size)) if of and size.isdigit() else None
