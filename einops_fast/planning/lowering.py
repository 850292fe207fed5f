"""From subscripts, sizes and strides to steps: what is a view, what is a GEMM, what has to move.

Works on :class:`~einops_fast.planning.layout.Term` values, which stand for arrays: each operand first loses repeated,
expanded and one-sided axes, then the path's pairs are contracted one after the other, and at the end the axes
are put in the order asked for. How one pair becomes a step is in :mod:`einops_fast.planning.pairs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from math import prod

from einops_fast.planning.alike import alike
from einops_fast.planning.chains import chain_of, chain_order, right_operands, with_factor
from einops_fast.planning.cost import ITEM_SIZES, is_complex
from einops_fast.planning.layout import Term, arranged, compact_strides, contiguous_strides, padded_strides
from einops_fast.planning.notation import Subscripts
from einops_fast.planning.pairs import contract_pair, native_step
from einops_fast.planning.remaining import Remaining, axis_order, kernel_order, row_of
from einops_fast.planning.small_pairs import small_step
from einops_fast.planning.steps import (
    Cast,
    Contraction,
    Diagonal,
    Fused,
    Gemm,
    Loop,
    Native,
    Select,
    Step,
    Sum,
    View,
)
from einops_fast.planning.target import Numerics, Operand, Target

Path = Sequence[tuple[int, ...]]

_FEW = 8
"""Operands up to which each pair is priced, however small it is."""


class Lowering:
    """The steps so far that compute an equation for labels of these sizes, and how to add to them."""

    def __init__(self, subscripts: Subscripts, sizes: dict[str, int], target: Target, numerics: Numerics) -> None:
        self.subscripts = subscripts
        self.sizes = sizes
        self.target = target
        self.numerics = numerics
        self.steps: list[Step] = []
        self.first = len(subscripts.inputs)
        self.any_order = not target.in_order
        # Nobody wants an intermediate in any order but the next step.
        ordered = target.in_order or target.memory
        self.between = target.replace(in_order=False, memory="") if ordered else target
        if self.first > 2:
            self.alike = alike(self.between, numerics)
        self.fuses = numerics.compute in target.kernels and not numerics.native and 0 not in sizes.values()
        self.many = self.first > _FEW and target.ceilings.native > 0 and numerics.gemm and not numerics.native

    def run(self, operands: Sequence[Operand], path: Path, otherwise: Path = ()) -> tuple[Step, ...]:
        """Return the steps, pair by pair along a path, for operands of these shapes and strides.

        ``otherwise`` is the path that the library's calls follow in a step of more than two operands, and that is
        followed where no kernel takes that many.
        """
        otherwise = otherwise or path
        inputs, output = self.subscripts.inputs, self.subscripts.output
        if self.numerics.native and (len(operands) <= 2 or self.numerics.whole):
            found = self.equation(self.in_compute_dtype(operands), output)
            if self.numerics.widens:
                self.add(Cast((found,), output, self.shape(output), self.numerics.result))
            return tuple(self.steps)
        if self.target.any_size:
            self.equations(self.in_compute_dtype(operands), path)
            return tuple(self.steps)
        if len(operands) == 1 and operands[0].dtype == self.numerics.result and set(inputs[0]) == set(output):
            # Nothing is computed: a view needs no other dtype.
            self.numerics = self.numerics.replace(compute=self.numerics.result)
        terms = [self.start(slot, inputs[slot], operand) for slot, operand in enumerate(operands)]
        if self.target.drops_expanded and any(0 in operand.strides for operand in operands):
            self.drop_expanded(terms)
        if self.fuses and len(terms) > 2 and all(isinstance(step, Cast) for step in self.steps):
            together = self.together(terms, path)
            if together is None:
                path = otherwise
            else:
                library = self.library(together, terms, [self.converted(each) for each in operands], otherwise)
                self.finish(self.fused(together, output, library, self.any_order))
                return tuple(self.steps)
        every = "".join([output, *[term.labels for term in terms]])
        if not self.many and 1 in map(every.count, every):
            terms = [self.sum_alone(term, every, len(terms) == 1) for term in terms]
        if len(terms) <= 2:
            self.finish(self.pair(terms[0], terms[1]) if len(terms) == 2 else terms[0])
            return tuple(self.steps)
        left = Remaining(terms, output)
        for positions in path:
            group = left.take(positions)
            if len(group) == 1:
                left.put(*group)
            else:
                left.put(self.pair(group[0], group[1], left) if len(group) == 2 else self.nest(group, left))
        self.finish(*left.take([0]))
        return tuple(self.steps)

    def in_compute_dtype(self, operands: Sequence[Operand]) -> list[tuple[int, str]]:
        """Slot and labels of each operand, converted unless the framework's own einsum gets all operands at once."""
        compute, inputs = self.numerics.compute, self.subscripts.inputs
        return [
            (slot, inputs[slot])
            if self.numerics.whole or operand.dtype == compute
            else (self.add(Cast((slot,), inputs[slot], operand.shape, compute)), inputs[slot])
            for slot, operand in enumerate(operands)
        ]

    def equation(self, terms: Sequence[tuple[int, str]], output: str) -> int:
        """Contract these in one step, which knows nothing but the equation; returns its slot."""
        slots, inputs = tuple([slot for slot, _ in terms]), [labels for _, labels in terms]
        shape, full = self.shape(output), prod([self.sizes[label] for label in set("".join(inputs))])
        if self.numerics.native:
            return self.add(Native.of(slots, inputs, output, shape, self.numerics.native, full))
        return self.add(Contraction.of(slots, inputs, output, shape, full))

    def equations(self, terms: list[tuple[int, str]], path: Path) -> None:
        """Contract one pair after the other by its equation."""
        output = self.subscripts.output
        if len(terms) == 1:
            terms, path = [(self.equation(terms, output), output)], ()
        for positions in path:
            if len(positions) < 2:
                continue
            group = [terms.pop(at) for at in sorted(positions, reverse=True)][::-1]
            while len(group) > 1:
                pair, group = group[:2], group[2:]
                rest = group + terms
                needed = set(output).union(*(labels for _, labels in rest))
                labels = dict.fromkeys("".join([labels for _, labels in pair]))
                # Axes that a later step sums go last.
                kept = sorted([label for label in labels if label in needed], key=lambda label: label not in output)
                wanted = "".join(kept) if rest else output
                group.insert(0, (self.equation(pair, wanted), wanted))
            terms += group
        if self.numerics.result != self.numerics.compute:
            self.add(Cast((terms[0][0],), output, self.shape(output), self.numerics.result))

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return self.first + len(self.steps) - 1

    def shape(self, labels: str) -> tuple[int, ...]:
        return tuple([self.sizes[label] for label in labels])

    def start(self, slot: int, labels: str, operand: Operand) -> Term:
        """An operand in the compute dtype, each label once; axes to be broadcast lose their label."""
        shape, strides = operand.shape, operand.strides
        # First: of a large matrix that has to be converted, only the diagonal is.
        if len(set(labels)) < len(labels):
            unique = "".join(dict.fromkeys(labels))
            groups = tuple(tuple(at for at, other in enumerate(labels) if other == label) for label in unique)
            shape = tuple(operand.shape[group[0]] for group in groups)
            strides = tuple(sum(strides[at] for at in group) for group in groups)
            slot = self.add(Diagonal((slot,), unique, shape, groups))
            labels = unique
        if operand.dtype != self.numerics.compute:
            slot = self.add(Cast((slot,), labels, shape, self.numerics.compute, self.fuses))
            strides = self.converted(Operand(shape, strides, operand.dtype)).strides
        if 1 in shape:
            sizes = self.sizes
            named = ["" if size == 1 != sizes[label] else label for label, size in zip(labels, shape, strict=True)]
            return Term(slot, named, shape, strides)
        return Term(slot, labels, shape, None if strides == contiguous_strides(shape) else strides)

    def converted(self, operand: Operand) -> Operand:
        """An operand in the compute dtype."""
        shape, strides, compute = operand.shape, operand.strides, self.numerics.compute
        if operand.dtype == compute:
            return operand
        # A kernel relies on strides; frameworks don't agree about those of a converted array with gaps.
        return Operand(shape, contiguous_strides(shape) if self.fuses else compact_strides(shape, strides), compute)

    def drop_expanded(self, terms: list[Term]) -> None:
        """Drop axes of stride 0 from operands, as long as another operand still has the label."""
        users = Counter("".join([term.labels for term in terms]))
        for at, term in enumerate(terms):
            expanded = [label for label, stride in term.strides.items() if stride == 0 and self.sizes[label] > 1]
            dropped = [label for label in expanded if users[label] > 1]
            if dropped:
                users.subtract(dropped)
                terms[at] = self.without(term, tuple([term.places[label] for label in dropped]), Select)

    def sum_alone(self, term: Term, every: str, alone: bool) -> Term:
        """Sum over the labels that only this operand has, of ``every`` one; ``alone``: there is no other operand."""
        summed = tuple([at for label, at in term.places.items() if every.count(label) == 1])
        if not summed:
            return term
        if self.fuses:
            kept = "".join([label for label, at in term.places.items() if at not in summed])
            unnamed = tuple([at for at in term.unnamed if at not in summed])
            total = Sum((0,), kept, self.shape(kept), (*summed, *unnamed))
            wanted, any_order = (self.subscripts.output, self.any_order) if alone else (kept, False)
            return self.fused([term], wanted, self.in_order(total, wanted, any_order), any_order)
        return self.without(term, summed, Sum)

    def together(self, terms: Sequence[Term], path: Path) -> Sequence[Term] | None:
        """The terms in the order in which one kernel takes all of them, if it is to."""
        labels = set("".join(term.labels for term in terms))
        if labels in (set(self.subscripts.output), *(set(term.labels) for term in terms)):
            return terms  # nothing is summed, or each is read once: there's nothing to compute beyond that
        if len(path) > 1 or not self.numerics.gemm or is_complex(self.numerics.compute):
            return None
        inputs, output = [term.labels for term in terms], self.subscripts.output
        order = chain_order(inputs, output)
        if order is not None:
            ordered = [terms[at] for at in order]
            chain = chain_of(self.loops(ordered, output))
            if chain is not None and chain.fits(ITEM_SIZES[self.numerics.compute]):
                return ordered
        rights = right_operands(inputs, output)
        if not rights or ITEM_SIZES[self.numerics.compute] > 2:
            return None
        return max((with_factor(terms, right) for right in rights), key=lambda ordered: ordered[0].size)

    def library(
        self, terms: Sequence[Term], given: Sequence[Term], operands: Sequence[Operand], path: Path
    ) -> tuple[Step, ...]:
        """The whole contraction by library calls, which read what is ``given`` in the order of these terms."""
        plain = self.target.replace(kernels=frozenset())
        steps = Lowering(self.subscripts, self.sizes, plain, self.numerics).run(operands, path)
        order = [term.slot for term in terms]
        places = {at: order.index(term.slot) for at, term in enumerate(given)}
        return tuple(step.replace(reads=tuple(places.get(slot, slot) for slot in step.reads)) for step in steps)

    def fused(
        self, terms: Sequence[Term], wanted: str, library: tuple[Step, ...], any_order: bool, row: int = 0
    ) -> Term:
        """The product of the terms, summed over all labels but ``wanted``, in one kernel.

        ``library`` is the same by the library's calls. With ``any_order`` the result's axes may lie in any order.
        The last ``row`` axes are a row, each of which begins where a thread can load at once.
        """
        shape, loops = self.shape(wanted), self.loops(terms, wanted)
        strides = contiguous = contiguous_strides(shape)
        if row:
            strides = padded_strides(shape, row, ITEM_SIZES[self.numerics.compute])
        step = Fused(tuple(term.slot for term in terms), wanted, shape, loops, any_order, library)
        slot = self.add(step if strides == contiguous else step.replace(strides=strides))
        return Term(slot, wanted, shape, strides)

    def loops(self, terms: Sequence[Term], wanted: str) -> tuple[Loop, ...]:
        """All axes of the terms, those that are wanted first."""
        every = dict.fromkeys("".join([term.labels for term in terms]))
        labels = wanted + "".join([label for label in every if label not in wanted])
        strides = [term.strides for term in terms]
        return tuple(
            [
                Loop(label, self.sizes[label], tuple([each.get(label, 0) for each in strides]), label in wanted)
                for label in labels
            ]
        )

    def without(self, term: Term, positions: tuple[int, ...], kind: type[Select] | type[Sum]) -> Term:
        names, own = [""] * len(term.shape), [0] * len(term.shape)
        for label, at in term.places.items():
            names[at], own[at] = label, term.strides[label]
        rest = [at for at in range(len(term.shape)) if at not in positions]
        labels, shape = [names[at] for at in rest], tuple([term.shape[at] for at in rest])
        strides = tuple([own[at] for at in rest]) if kind is Select else None
        return Term(self.add(kind((term.slot,), "".join(labels), shape, positions)), labels, shape, strides)

    def pair(self, left: Term, right: Term, rest: Remaining | None = None) -> Term:
        """Contract two terms. The result is one of many terms that are left, or the answer if there is no ``rest``."""
        wanted = self.subscripts.output
        if rest:
            keep = rest.needed(left.labels + right.labels)
            small = small_step(left, right, keep, self.subscripts.output, self.sizes) if self.many else None
            if small is not None:
                return Term(self.add(small), small.labels, small.shape)
            if not set(keep).issuperset(set(left.labels) ^ set(right.labels)):
                left, right = self.only_shared(left, right, keep), self.only_shared(right, left, keep)
            partner = rest.partner(keep)
            orders = axis_order(keep, partner, rest, self.subscripts.output)
            wanted = kernel_order(orders, left, right, self.sizes) if self.fuses else orders[0]
            step = self.alike.step(left, right, wanted, self.sizes)
        else:
            if self.many:
                left, right = self.only_shared(left, right, wanted), self.only_shared(right, left, wanted)
            step = contract_pair(left, right, wanted, self.sizes, self.target, self.numerics)
        if self.fuses:
            # In a library of its own, a step reads the operands as slots 0 and 1.
            reads = tuple([int(slot == right.slot) for slot in step.reads])
            any_order = self.any_order and not rest
            own = step if step.reads == reads else step.replace(reads=reads)
            library = self.in_order(own, wanted, any_order)
            row = row_of(wanted, partner, self.subscripts.output) if rest else 0
            return self.fused([left, right], wanted, library, any_order, row)
        return Term(self.add(step), step.labels, step.shape)

    def only_shared(self, term: Term, other: Term, keep: Collection[str]) -> Term:
        """Sum over the labels that neither the other term of a pair has nor a later one needs."""
        summed = [label for label in term.labels if label not in other.labels and label not in keep]
        return self.without(term, tuple([term.places[label] for label in summed]), Sum) if summed else term

    def in_order(self, step: Step, wanted: str, any_order: bool) -> tuple[Step, ...]:
        """A library's step with its axes as wanted and, unless any order will do, in C order."""
        shape, moves = self.shape(wanted), "" if any_order else "whoever reads it relies on the order"
        how = arranged(tuple(map(step.labels.index, wanted)), step.shape, shape, moves)
        # An elementwise product, or a sum, lies in memory like its operands.
        if how.perm is None and (any_order or isinstance(step, Gemm)):
            return (step,)
        return step, View((len(step.reads),), wanted, shape, how)

    def nest(self, terms: Sequence[Term], rest: Remaining) -> Term:
        """Any number of terms in the loops of the framework's own einsum, which make no intermediate."""
        held = set(chain(*(term.labels for term in terms)))
        labels = [*self.subscripts.output, *(label for term in terms for label in term.labels)]
        wanted = "".join(rest.needed([label for label in labels if label in held]))
        full = prod([self.sizes[label] for label in held])
        shape = self.shape(wanted)
        slot = self.add(native_step(terms, wanted, shape, "no order of pairs keeps to the limit", full))
        return Term(slot, wanted, shape)

    def finish(self, term: Term) -> None:
        """Put the axes in the order of the output; the answer never *is* an operand."""
        output = self.subscripts.output
        shape, moves = self.shape(output), "" if self.target.strided else "arrays have no strides"
        how = term.seen(output, shape, moves)
        if how.perm is not None or not any(map(self.makes_new, self.steps)):
            self.add(View((term.slot,), output, shape, how))
        if self.numerics.result != self.numerics.compute or self.numerics.widens:
            slot = self.first + len(self.steps) - 1
            self.add(Cast((slot,), output, self.shape(output), self.numerics.result))

    def makes_new(self, step: Step) -> bool:
        """Whether the result of a step is an array of its own."""
        others = Fused if self.target.strided else Diagonal
        return len(step.reads) == 2 or isinstance(step, (Sum, Native, Cast, others))
