"""The public cases: the three problems of apache/mxnet#18043, and contractions of many shapes and ratios.

A case is an equation and the shapes of its operands; no framework and no array. Its cost (elements to move,
FLOPs of the best order) is what a measured time is held against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

__all__ = ["CONTRACTIONS", "ITEM_SIZES", "MODES", "PROBLEMS", "Case", "contractions", "scaled", "select"]

MODES = ("einsum", "einsum_optimize", "no_einsum", "th_einsum", "fast_einsum", "patched")
"""How to compute a problem: the native einsum, the same with ``optimize=True``, by hand, torch's einsum,
ours, and the native call with our patch in place."""

ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""Bytes of an element, by the dtypes that cases are measured in."""

GPU_ELEMENTS = 24e6
"""Elements of the largest tensor of a TCCG case on a GPU."""

CPU_ELEMENTS = 1e6
"""The same on a CPU, where two cores have to finish a whole table in minutes."""

CPU_LARGEST = 4 << 20
"""The largest tensor of any other case on a CPU, in elements."""

CPU_FLOPS = 4e9
"""The most work of one call on a CPU."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """An equation in letters with the shapes of its operands.

    Attributes:
        name: what tables call it, and ``--only`` selects.
        equation: explicit (with ``->``), one letter per axis.
        shapes: one shape per operand.
        problem: its number in apache/mxnet#18043, if it is one of the three.
        uniform: every axis has the same extent, chosen to meet a budget of elements (the TCCG suite).
    """

    name: str
    equation: str
    shapes: tuple[Shape, ...]
    problem: int | None = None
    uniform: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The letters of each operand."""
        return tuple(self.equation.split("->")[0].split(","))

    @property
    def output(self) -> str:
        """The letters of the result."""
        return self.equation.split("->")[1]

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every letter, in the order of the equation."""
        return {
            letter: extent
            for term, shape in zip(self.inputs, self.shapes, strict=True)
            for letter, extent in zip(term, shape, strict=True)
        }

    @property
    def result_shape(self) -> Shape:
        """Shape of the result."""
        extents = self.extents
        return tuple(extents[letter] for letter in self.output)

    @property
    def sizes(self) -> str:
        """Shapes in words: ``64×8×100×128, 64×8×50×128 -> 64×8×100×50``."""
        *operands, result = ("×".join(map(str, shape)) for shape in (*self.shapes, self.result_shape))
        return f"{', '.join(operands)} -> {result or 'scalar'}"

    @property
    def terms(self) -> int:
        """How many products each element of the result adds up."""
        return prod(extent for letter, extent in self.extents.items() if letter not in self.output)

    @property
    def elements(self) -> tuple[int, ...]:
        """Elements of each operand, then of the result."""
        return tuple(prod(shape) for shape in (*self.shapes, self.result_shape))

    @property
    def flops(self) -> int:
        """Floating-point operations in the best pairwise order (a multiplication and an addition are two)."""
        # Imports NumPy, which reads the number of threads then.
        from opt_einsum import contract_path

        info = contract_path(self.equation, *self.shapes, shapes=True, optimize="optimal")[1]
        return int(info.opt_cost)

    def with_extents(self, extents: dict[str, int]) -> Case:
        """The same equation at other extents."""
        return replace(self, shapes=tuple(tuple(extents[letter] for letter in term) for term in self.inputs))


def _problem(number: int, equation: str, *shapes: Shape) -> Case:
    return Case(f"mx{number}", equation, shapes, problem=number)


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
    """The contraction ``result-left-right`` whose largest tensor has about ``elements`` elements."""
    result, left, right = name.split("-")
    root = elements ** (1 / max(len(result), len(left), len(right)))
    # The tolerance keeps an exact root exact: 4096 ** (1 / 3) is a hair below 16.
    extent = max(8, int(root + 1e-9) // 8 * 8)
    shapes = ((extent,) * len(left), (extent,) * len(right))
    return Case(name, f"{left},{right}->{result}", shapes, uniform=True)


def contractions(elements: float = GPU_ELEMENTS) -> tuple[Case, ...]:
    """All cases, with the TCCG ones at a budget of ``elements`` for the largest tensor."""
    return (*PROBLEMS, *_NAMED, *(_tccg(name, elements) for name in _TCCG))


CONTRACTIONS: tuple[Case, ...] = contractions()


def scaled(case: Case, device: str) -> Case:
    """The case at a size that ``device`` finishes soon: as it is on a GPU, shrunk on a CPU.

    Halving the largest extent again and again shrinks sequences and batches and leaves heads and features,
    whose sizes make the case what it is. The three problems fit a CPU as they are.
    """
    if device != "cpu" or case.problem is not None:
        return case
    if case.uniform:
        return _tccg(case.name, CPU_ELEMENTS)
    while max(case.elements) > CPU_LARGEST or case.flops > CPU_FLOPS:
        extents = case.extents
        largest = max(extents, key=lambda letter: extents[letter])
        case = case.with_extents({**extents, largest: extents[largest] // 2})
    return case


def select(cases: tuple[Case, ...], only: str) -> tuple[Case, ...]:
    """The cases named in ``only`` (separated by commas; a problem also by its number), or all of them."""
    if not only:
        return cases
    wanted = {f"mx{name}" if name.isdigit() else name for name in only.split(",")}
    chosen = tuple(case for case in cases if case.name in wanted)
    unknown = wanted - {case.name for case in chosen}
    if unknown:
        known = ", ".join(case.name for case in cases)
        raise ValueError(f"no such case: {', '.join(sorted(unknown))} (there are {known})")
    return chosen
