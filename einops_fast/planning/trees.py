"""Trees for contractions that are cut, by simulated annealing: what is below a step is regrouped, then a label is cut.

The moves of a tree are those of Kalachev, Panteleev and Yung: of three subtrees, another two are contracted first.
Costs are those of all pieces as if each contracted all. Loops save some of that: what a tree really takes is seen when
it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from math import exp, log, log1p
from random import Random
from typing import Any

from einops_fast.planning.path import Network, Path

_WRITTEN = 2
"""Multiply-adds that take as long as to write an element of a result."""

_COLD, _WARM, _TEPID = 20.0, 2.0, 6.0
"""Of annealing at the end, at first, and after a cut: a move that costs e times as much has a chance of exp(-this)."""

_SWEEPS = 600
"""Times that each step is regrouped at most before labels are cut; fewer times after each label."""

_FEWEST = 200
"""Times that it is at least."""

_MOVE = 2e-6
"""Seconds that it takes to regroup a step."""

_STARTS = 32
"""Greedy trees that are drawn at random, at most."""

_KEPT = 4
"""How many of the cheapest of them are annealed."""

_BEST = 2
"""How many of these are planned."""

_HEAT = 0.1
"""Of the noise in what a label is worth, in logarithms."""


class Tree:
    """A contraction by pairs. A set of labels is an integer with their bits."""

    def __init__(self, network: Network, path: Path, trained: bool) -> None:
        """Take a path by pairs; with ``trained``, all intermediates are kept, and their gradients."""
        self.trained, self.sweeps, self.seed = trained, 0, 0
        self.cut_trees = dict[float, Tree]()
        bits = {label: 1 << at for at, label in enumerate(sorted(network.sizes))}
        self.sizes = {bit: network.sizes[label] for label, bit in bits.items()}
        self.names = {bit: label for label, bit in bits.items()}
        self.legs = [sum([bits[each] for each in term]) for term in network.inputs]
        self.kids: dict[int, tuple[int, int]] = {}
        self.count, self.cuts, self.pieces = len(self.legs), 0, 1
        slots = list(range(self.count))
        for positions, (_, _, result) in zip(path, network.contractions(path), strict=True):
            if len(positions) == 1:
                slots.append(slots.pop(positions[0]))
                continue
            right, left = slots.pop(positions[1]), slots.pop(positions[0])
            slots.append(len(self.legs))
            self.kids[slots[-1]] = left, right
            self.legs.append(sum([bits[each] for each in result]))
        self.root = slots[-1]

    def size(self) -> Callable[[int], float]:
        """Return what tells how many elements of a piece have these labels."""
        groups = dict[int, int]()
        for bit, size in self.sizes.items():
            if size > 1 and not bit & self.cuts:
                groups[size] = groups.get(size, 0) | bit
        powers = [
            (group, [exp(min(at * log(size), 200)) for at in range(group.bit_count() + 1)])
            for size, group in groups.items()
        ]
        if len(powers) == 1:
            [(group, power)] = powers
            return lambda labels: power[(labels & group).bit_count()]

        def size_of(labels: int) -> float:
            found = 1.0
            for group, power in powers:
                found *= power[(labels & group).bit_count()]
            return found

        return size_of

    def costs(self) -> list[tuple[float, int]]:
        """Return what each step costs, and all its labels."""
        size, legs, found = self.size(), self.legs, []
        for node, (left, right) in self.kids.items():
            labels = legs[left] | legs[right]
            found.append((size(labels) + _WRITTEN * size(legs[node]), labels))
        return found

    def total(self) -> float:
        """Return what all pieces cost."""
        return self.pieces * sum([cost for cost, _ in self.costs()])

    def anneal(self, noise: Random, sweeps: int, warm: float) -> None:
        """Regroup steps, with ever fewer that cost more than before."""
        kids, legs, size, random = self.kids, self.legs, self.size(), noise.random
        order = self.top_down()[::-1]
        for sweep in range(sweeps):
            beta = warm * (_COLD / warm) ** (sweep / max(sweeps - 1, 1))
            for node in order:
                inner, other = kids[node]
                if inner not in kids or (other in kids and random() < 0.5):
                    inner, other = other, inner
                if inner not in kids:
                    continue
                left, right = kids[inner]
                if random() < 0.5:
                    left, right = right, left
                a, b, c, made = legs[left], legs[right], legs[other], legs[inner]
                new = (a | c) & (b | legs[node])
                before = size(a | b) + size(made | c) + _WRITTEN * size(made)
                after = size(a | c) + size(new | b) + _WRITTEN * size(new)
                if after <= before or random() < (before / after) ** beta:
                    kids[inner], kids[node], legs[inner] = (left, other), (inner, right), new

    def top_down(self) -> list[int]:
        """Return the steps, each before those that it reads."""
        found, waiting = list[int](), [self.root]
        while waiting:
            node = waiting.pop()
            if node in self.kids:
                found.append(node)
                waiting += self.kids[node]
        return found

    def held(self) -> list[tuple[float, int]]:
        """Return for each step how many elements are held when it has run, and the labels of these."""
        order, size, legs = self.top_down(), self.size(), self.legs
        if self.trained:
            return [(2 * sum([size(legs[node]) for node in order]), legs[node]) for node in order]
        most, left = [0.0] * len(legs), [0.0] * len(legs)
        for node in reversed(order):
            a, b = self.kids[node]
            if most[a] - left[a] < most[b] - left[b]:
                a, b = self.kids[node] = b, a
            left[node] = size(legs[node])
            most[node] = max(most[a], left[a] + most[b], left[a] + left[b] + left[node])
        beside, found = {self.root: (0.0, 0)}, []
        for node in order:
            (a, b), (elements, labels) = self.kids[node], beside[node]
            beside[a] = beside[node]
            beside[b] = elements + left[a], labels | (legs[a] if left[a] else 0)
            found.append((elements + left[a] + left[b] + left[node], labels | legs[a] | legs[b]))
        return found

    def cut(self, room: float, noise: Random) -> bool:
        """Cut the label that costs least for what it takes off what is too much; return whether there was too much."""
        costs, shares, gains = self.costs(), dict[int, float](), dict[int, float]()
        for cost, labels in costs:
            for bit in self._long(labels):
                shares[bit] = shares.get(bit, 0) + cost
        for held, labels in self.held():
            if held > room:
                for bit in self._long(labels):
                    gains[bit] = gains.get(bit, 0) + log(held / room)
        total = sum([cost for cost, _ in costs])

        def worth(bit: int) -> float:
            size = self.sizes[bit]
            more = log(max(size - (size - 1) * shares.get(bit, 0) / total, 1)) / log(size)
            return log(gains[bit]) - log(more + 0.02) + _HEAT * noise.gauss(0, 1)

        if not gains:
            return False
        bit = max(gains, key=worth)
        self.cuts |= bit
        self.pieces *= self.sizes[bit]
        return True

    def _long(self, labels: int) -> Iterator[int]:
        labels &= ~self.cuts
        while labels:
            bit = labels & -labels
            if self.sizes[bit] > 1:
                yield bit
            labels ^= bit

    def path(self) -> Path:
        places, found = list(range(self.count)), []
        for node in reversed(self.top_down()):
            found.append(tuple(sorted([places.index(each) for each in self.kids[node]])))
            places = [*[each for each in places if each not in self.kids[node]], node]
        return tuple(found)

    def within(self, room: float) -> Tree:
        """Return a tree of which pieces hold no more elements at a time, if there are pieces so small."""
        if room in self.cut_trees:
            return self.cut_trees[room]
        found, noise = copy(self), Random(self.seed)
        found.kids, found.legs = dict(self.kids), list(self.legs)
        while found.cut(room, noise):
            found.anneal(noise, self.sweeps // (8 + found.cuts.bit_count()), _TEPID)
        if self.sweeps:
            self.cut_trees[room] = found
        return found

    def cut_labels(self) -> frozenset[str]:
        return frozenset([name for bit, name in self.names.items() if bit & self.cuts])


def depth_first(network: Network, path: Path) -> Path:
    """Return a path with the same pairs in the order in which the fewest elements are held at a time, nearly."""
    tree = Tree(network, path, False)
    tree.held()  # puts first, of two subtrees, the one whose making takes more beyond what is left of it
    return tree.path()


def annealed_trees(network: Network, paths: Sequence[Path], trained: bool, room: float, rate: float) -> list[Tree]:
    """Return trees that take few multiply-adds within some room, in elements, beginning with these paths and others.

    They are searched for no longer than they may save at this rate of multiply-adds in a second.
    """
    pairs = [path for path in [*paths, *_random_paths(network)] if all(len(positions) == 2 for positions in path)]
    if not pairs:
        return []
    trees = [Tree(network, path, trained) for path in pairs]
    trees = sorted(trees, key=Tree.total)[:_KEPT]
    seconds = min([tree.within(room).total() for tree in trees]) / min(rate, 1e9)
    for seed, tree in enumerate(trees):
        tree.seed, tree.sweeps = seed, int(min(max(seconds / (_MOVE * len(tree.kids) * _KEPT), _FEWEST), _SWEEPS))
        tree.anneal(Random(seed), tree.sweeps, _WARM)
    return sorted(trees, key=lambda tree: tree.within(room).total())[:_BEST]


def _random_paths(network: Network) -> Iterator[Path]:
    """Yield paths that take the pair that seems best, with more or less noise.

    Sets of numbers are gone through in one order in all processes; sets of texts aren't.
    """
    from opt_einsum.paths import greedy

    numbers: Any = {label: at for at, label in enumerate(sorted(network.sizes))}
    terms = *network.inputs, network.output
    *inputs, output = [frozenset(sorted([numbers[label] for label in term])) for term in terms]
    sizes: Any = {numbers[label]: size for label, size in network.sizes.items()}
    for seed in range(min(2 * len(network.inputs), _STARTS)):
        noise = Random(seed)
        heat, weight = exp(noise.uniform(-4, 0)), noise.uniform(0.2, 1.2)

        def worth(
            size: int, left: int, right: int, *_: Any, noise: Random = noise, heat: float = heat, weight: float = weight
        ) -> float:
            more = size - weight * (left + right)
            return (log1p(more) if more > 0 else -log1p(-more)) - heat * log(noise.expovariate(1) + 1e-9)

        found = greedy(inputs, output, sizes, None, cost_fn=worth)
        yield tuple([tuple(sorted(pair)) for pair in found])
