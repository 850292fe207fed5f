"""Loops over axes that are cut: each runs only the steps that depend on its axis, and adds up what they give.

A loop over an axis that is summed ends at the step that sums it: its result is added up there, and what follows is
computed once. Steps beneath that lack the axis run before the loop. A loop over an axis of the result is around all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from itertools import chain
from typing import Any, TypeAlias

from einops_fast.record import Record

Item: TypeAlias = "int | Loop"
"""A step, by its number, or a loop."""


class Loop(Record):
    """A loop over the pieces of one axis."""

    label: str
    body: tuple[Item, ...]
    slot: int  # of the value whose pieces are added up; -1: they are put side by side in the result
    reads: tuple[int, ...]  # the slots that the body reads and doesn't make


Needs = tuple[Sequence[int], Set[str], Set[str]]
"""The slots that a step reads, the cut labels that it depends on, and those of them that it sums, all at once.

Each value is read once. Of two that a step reads, that one is made first which comes first.
"""

_Needing = tuple[Set[str], Item, Sequence[int], int]
"""The cut labels that an item depends on, the item, the slots that it reads, and the one that it makes."""


def needs_of(
    terms: Sequence[Collection[str]], nodes: Sequence[tuple[Sequence[int], str]], output: str, cuts: Collection[str],
    late: bool = False,
) -> list[Needs]:  # fmt: skip
    """Return the needs of steps; each reads slots and makes labels.

    ``terms`` are, of each operand, the labels that it can be cut along. With ``late``, all labels are summed by the
    last step: more is made anew, and less is held, as no large intermediates are added up.
    """
    under: list[dict[str, int]] = [{label: 1 for label in cuts if label in term} for term in terms]
    users = Counter(chain(*under))
    found: list[Needs] = []
    for at, (reads, labels) in enumerate(nodes, 1):
        counts: dict[str, int] = {}
        for read in reads:
            for label, number in under[read].items():
                counts[label] = counts.get(label, 0) + number
        ended = {each for each in counts if counts[each] == users[each] and each not in output and each not in labels}
        ended = set() if late and at < len(nodes) else ended
        under.append({label: number for label, number in counts.items() if label not in ended})
        found.append((sorted(reads), {*counts}, ended))
    return found


def nested(count: int, steps: Sequence[Needs]) -> list[Item]:
    """Return steps in loops over the labels that are cut; ``count``: of operands."""
    makers: list[list[_Needing]] = [[]] * count  # by slot
    for slot, (reads, needs, ended) in enumerate(steps, count):
        items = [*chain(*[makers[read] for read in reads]), (needs, slot - count, reads, slot)]
        makers.append(_looped(items, ended, slot) if ended else items)
    _, needs, ended = steps[-1]
    return [item for _, item, *_ in _looped(makers[-1], needs - ended, -1)]


def _looped(items: list[_Needing], labels: Collection[str], slot: int) -> list[_Needing]:
    """Return the items with those that depend on a label in a loop over it, the longest loop outermost."""
    if len(labels) > 1:
        users = Counter(chain(*[needs for needs, *_ in items]))
        labels = sorted(labels, key=lambda label: (users[label], label))
    for label in labels:
        inside = [each for each in items if label in each[0]]
        needs = set(chain(*[needs for needs, *_ in inside])) - {label}
        made = {each[3] for each in inside}
        reads = tuple([read for _, _, read_there, _ in inside for read in read_there if read not in made])
        loop = Loop(label, tuple([item for _, item, *_ in inside]), slot, reads)
        items = [*[each for each in items if label not in each[0]], (needs, loop, reads, slot)]
    return items


def at_each_step(
    items: Sequence[Item], nodes: Sequence[Sequence[Any]], memory: Sequence[int], sums: Callable[[int], int],
    owners: Sequence[int],
) -> list[tuple[int, int, tuple[str, ...]]]:  # fmt: skip
    """Return for each step, in order, its number, how much is held when it has run, and the loops that it's in.

    Args:
        items: steps and loops.
        nodes: the steps: of each, first the slots that it reads.
        memory: what each slot takes; a view takes none.
        sums: what it takes to add up pieces of a slot.
        owners: the slot whose memory each slot is in.
    """
    first, found = len(memory) - len(nodes), list[tuple[int, int, tuple[str, ...]]]()

    def walk(items: Sequence[Item], held: int, loops: tuple[str, ...]) -> None:
        made = set[int]()
        for item in items:
            if isinstance(item, Loop):
                slot, reads = item.slot, item.reads
                walk(item.body, held + (sums(slot) if slot >= 0 else 0), (*loops, item.label))
            else:
                slot, reads = first + item, nodes[item][0]
                found.append((item, held + memory[slot], loops))
            if slot >= 0:
                held += memory[slot]
                made.add(slot)
            for read in reads:
                # What is seen by a view is read when the view is.
                if owners[read] in made and (slot < 0 or owners[slot] == slot):
                    held -= memory[owners[read]]

    walk(items, 0, ())
    return found
