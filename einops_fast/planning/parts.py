"""Parts of a contraction that are contracted once, whole: small ones where the rest is cut, and those of constants."""

from __future__ import annotations

from collections.abc import Sequence

from einops_fast.planning.notation import Subscripts
from einops_fast.planning.path import Network, Path
from einops_fast.record import Record


class Part(Record):
    """A part of a contraction, which is contracted once, whole."""

    operands: tuple[int, ...]
    equation: str
    path: Path

    @property
    def alone(self) -> Rest:
        """Return this part as all that is left to do."""
        terms, _, output = self.equation.partition("->")
        return Rest((), self.operands, Subscripts(tuple(terms.split(",")), output, (), self.equation), self.path)


class Rest(Record):
    """What is left to do when the parts are contracted."""

    parts: tuple[Part, ...]
    others: tuple[int, ...]  # the operands that are in no part; they come after the parts' results
    subscripts: Subscripts
    path: Path

    def axes(self, shapes: Sequence[Sequence[int]]) -> list[set[str]]:
        """Return the labels along which each array can be cut, from the shapes of the call's operands."""
        count = len(self.parts)
        found = [set(term) for term in self.subscripts.inputs[:count]]
        for term, at in zip(self.subscripts.inputs[count:], self.others, strict=True):
            found.append({label for label, size in zip(term, shapes[at], strict=True) if size > 1})
        return found


def small_parts(subscripts: Subscripts, sizes: dict[str, int], path: Path, room: int) -> Rest:
    """Return the parts of a path that take little of the room, in elements, and what is left to do."""
    network = Network(subscripts.inputs, subscripts.output, sizes)
    count, most = len(subscripts.inputs), room // 16
    while True:
        terms, small = list[tuple[int, ...]]([(at,) for at in range(count)]), [True] * count
        chosen: dict[tuple[int, ...], int] = {}
        for positions, (_, _, result) in zip(path, network.contractions(path), strict=True):
            taken = [(terms.pop(at), small.pop(at)) for at in reversed(positions)]
            size = network.size(result)
            is_small = size <= most and all(each for _, each in taken)
            members = tuple(sorted([at for term, _ in taken for at in term]))
            if is_small and 1 < len(members) < count:
                for term, _ in taken:
                    chosen.pop(term, None)
                chosen[members] = size
            terms.append(members)
            small.append(is_small)
        if sum(chosen.values()) <= room // 8 or most < 2:
            break
        most //= 4
    return without_parts(subscripts, path, list(chosen))


def without_parts(subscripts: Subscripts, path: Path, groups: Sequence[tuple[int, ...]]) -> Rest:
    """Return how groups of operands are contracted by a path, and what it contracts after them.

    Without a path, ``()``, the groups and the rest have none either.
    """
    inputs, output = subscripts.inputs, subscripts.output
    part_of = {at: number for number, group in enumerate(groups) for at in group}
    others = tuple([at for at in range(len(inputs)) if at not in part_of])
    part_of.update(dict.fromkeys(others, -1))
    # Where each value is now: its members, and the lists of terms that are left in each part, and in the rest.
    terms = [frozenset([at]) for at in range(len(inputs))]
    left: dict[int, list[frozenset[int]]] = {
        number: [frozenset([at]) for at in group] for number, group in enumerate(groups)
    }
    left[-1] = [*map(frozenset, groups), *[frozenset([at]) for at in others]]
    paths: dict[int, list[tuple[int, ...]]] = {number: [] for number in left}
    for positions in path:
        taken = [terms.pop(at) for at in reversed(positions)]
        made = frozenset().union(*taken)
        number = -1 if all(each in left[-1] for each in taken) else part_of[min(made)]
        places = left[number]
        paths[number].append(tuple(sorted([places.index(each) for each in taken])))
        left[number] = [*[each for each in places if each not in taken], made]
        terms.append(made)
    parts, labels = [], []
    for number, group in enumerate(groups):
        needed = set(output).union(*[term for at, term in enumerate(inputs) if part_of[at] != number])
        own = "".join([inputs[at] for at in group])
        # In the order of what it meets with several labels: sums over two arrays in two orders are slow.
        beside = max([inputs[at] for at in others], key=lambda term: len(needed.intersection(term, own)), default="")
        several = len(needed.intersection(beside, own)) > 1
        labels_in_order = dict.fromkeys(beside + own if several else own)
        kept = "".join([label for label in labels_in_order if label in needed and label in own])
        parts.append(Part(group, f"{','.join([inputs[at] for at in group])}->{kept}", tuple(paths[number])))
        labels.append(kept)
    terms_left = (*labels, *[inputs[at] for at in others])
    equation = f"{','.join(terms_left)}->{output}"
    return Rest(tuple(parts), others, Subscripts(terms_left, output, subscripts.names, equation), tuple(paths[-1]))
