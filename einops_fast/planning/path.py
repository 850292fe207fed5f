"""The order in which pairs are contracted: searched by opt_einsum, kept within a memory limit here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from math import inf, prod
from operator import attrgetter, index
from typing import Any, SupportsIndex

from einops_fast.errors import EinsumError
from einops_fast.planning.notation import Subscripts
from einops_fast.record import Record

Path = tuple[tuple[int, ...], ...]

MOST_TIMES = 4
"""A path that writes less than opt_einsum's has at most this many times its FLOPs and its largest intermediate."""

_EQUAL = 1.05
"""Times the fewest FLOPs that count as equally few."""

FEW = 8
"""Operands up to which a search may be exponential in their number: it takes milliseconds."""

_MOST_BRANCHED = 48
"""Operands up to which opt_einsum gets a memory limit at once: with one, its time is cubic in their number."""

_MOST_LIMITED = 128
"""Operands up to which it gets one at all: that takes a second."""

_OVER = 1e30
"""Makes each pair over the limit cost more than any within it."""


class _Candidate(Record):
    """A path and what it takes."""

    path: Path
    flops: int  # multiply-adds
    written: int  # elements of all intermediates
    largest: int  # elements of the largest intermediate; the result isn't one
    paired: bool  # every step contracts two terms at most

    def fits(self, limit: float) -> bool:
        return self.paired and self.largest <= limit


class Network:
    """Operands as sets of labels, and how to search for the order in which to contract them."""

    def __init__(self, inputs: Sequence[str], output: str, sizes: dict[str, int]) -> None:
        self.inputs = [frozenset(term) for term in inputs]
        self.output = frozenset(output)
        self.sizes = sizes

    def size(self, labels: frozenset[str]) -> int:
        return prod(map(self.sizes.__getitem__, labels))

    def contractions(self, path: Path) -> Iterator[tuple[list[frozenset[str]], frozenset[str], frozenset[str]]]:
        """The terms that each step contracts, all of their labels, and those of its result."""
        terms = list(self.inputs)
        users = Counter(chain(self.output, *terms))
        alone = frozenset([label for label, count in users.items() if count == 1])
        for positions in path:
            group = [terms.pop(at) for at in reversed(positions)][::-1]
            every, summed = group[0], list[str]()
            for term in group[1:]:
                for label in every & term:
                    users[label] -= 1
                    if users[label] == 1:
                        summed.append(label)
                every |= term
            if alone:
                summed += alone & every
            terms.append(every.difference(summed) if summed else every)
            yield group, every, terms[-1]

    def candidate(self, path: Path) -> _Candidate:
        """Price a path; a step of many terms counts as one loop nest."""
        flops, written = 0, [0]
        for _, every, result in self.contractions(path):
            full = self.size(every)
            flops += full
            written.append(full if result is every else self.size(result))
        written.pop()  # the result
        paired = max(map(len, path), default=0) <= 2
        return _Candidate(path, flops, sum(written), max(written, default=0), paired)

    def left_to_right(self) -> _Candidate:
        """Price the path that contracts the first two terms, then their result and the third, and so on."""
        return self.candidate(((0, 1), *((0, left) for left in range(len(self.inputs) - 2, 0, -1))))

    def of_three(self) -> list[_Candidate]:
        """Price each order in which three terms are contracted by pairs."""
        return [self.candidate((pair, (0, 1))) for pair in combinations(range(3), 2)]

    def search(self, optimize: Any, limit: float = inf) -> _Candidate:
        """The path that an opt_einsum optimizer, or the one of this name, finds."""
        try:
            optimizer = _named(optimize, optimize) if isinstance(optimize, str) else optimize
            if hasattr(optimizer, "search"):  # cotengra's
                inputs, output = [tuple(sorted(term)) for term in self.inputs], tuple(sorted(self.output))
                return self.candidate(
                    _checked(optimizer.search(inputs, output, self.sizes).get_path(), len(inputs), optimize)
                )
            # Some optimizers change the list that they get.
            found = optimizer(list(self.inputs), self.output, self.sizes, None if limit == inf else int(limit))
            return self.candidate(_checked(found, len(self.inputs), optimize))
        except EinsumError:
            raise
        except RuntimeError as error:
            problem = f"no path that keeps each intermediate within {limit:g} elements"
            raise EinsumError(f"optimize={optimize!r} finds {problem}: 'greedy' may find one") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EinsumError(f"optimize={optimize!r} is no optimizer that opt_einsum has: {error}") from error

    def by_write(self, best: _Candidate) -> list[_Candidate]:
        """A path that writes less than ``best``, if there is one: fewest FLOPs isn't least time beside slow memory."""
        if len(self.inputs) == 3:
            found = self.of_three()
        else:
            from opt_einsum.paths import DynamicProgramming

            found = [self.search(DynamicProgramming(minimize="write"))]
        least = min(found, key=attrgetter("written", "flops"))
        near = least.flops <= MOST_TIMES * best.flops and least.largest <= MOST_TIMES * max(best.largest, 1)
        others = [least] if least.written < best.written and near else []
        # Of orders of three operands with about as many FLOPs, copies and shapes decide.
        equal = len(self.inputs) == 3 and [each for each in found if each.flops <= _EQUAL * best.flops]
        return others + [each for each in equal or () if each.largest <= best.largest]

    def by_size(self, limit: float) -> Iterator[_Candidate]:
        """Paths whose intermediates are small, those first that are found soonest."""
        from opt_einsum.paths import DynamicProgramming, greedy

        def within(size: int, left: int, right: int, *_: Any) -> float:
            return size - left - right if size <= limit else _OVER * size

        yield self.search(partial(greedy, cost_fn=within))
        yield self.search(partial(greedy, cost_fn=lambda size, *_: size))
        yield self.search("auto")
        count = len(self.inputs)
        if count <= FEW:
            yield self.search(DynamicProgramming(minimize="size", cost_cap=False, search_outer=True))
        if count <= _MOST_LIMITED:
            yield self.search("greedy", limit)


def candidate_paths(
    subscripts: Subscripts, sizes: dict[str, int], optimize: Any, room: int | None, loops: bool = False
) -> list[Path]:
    """Paths worth pricing, best by FLOPs first; a single one where the caller chose by ``optimize``.

    ``room`` is how many elements the largest intermediate may have, if that is known. A path that needs more, or more
    than the caller's limit, is returned only if no other is found; then it's the one that needs least. With ``loops``,
    one step may contract any number of terms without an intermediate, where no order of pairs keeps to the limit.
    """
    inputs = subscripts.inputs
    count = len(inputs)
    if count < 3:
        return [(tuple(range(count)),)]
    network = Network(inputs, subscripts.output, sizes)
    fits = inf if room is None else room
    explicit = explicit_path(optimize, count)
    if explicit is not None:
        return [_by_pairs(network, explicit, fits)]
    optimize, limit = _with_limit(optimize)
    if limit == "max_input":
        limit = max(map(network.size, [*network.inputs, network.output]))
    fits = min(fits, limit)
    if optimize is False or 0 in sizes.values():
        # Without elements there is nothing to search for, and opt_einsum refuses to.
        left_to_right = network.left_to_right()
        if left_to_right.fits(fits) or 0 in sizes.values():
            return [left_to_right.path]
        optimize = "auto"
    best = _within(network, optimize, limit, fits)
    if not best.fits(fits) and loops and limit < inf:
        nest = network.search(optimize, limit)
        return [(nest if nest.largest <= limit else network.candidate((tuple(range(count)),))).path]
    found = [best]
    if optimize == "auto" and count <= FEW:
        found += [each for each in network.by_write(best) if each.fits(fits)]
    return list(dict.fromkeys([each.path for each in found]))


def _within(network: Network, optimize: Any, limit: float, fits: float) -> _Candidate:
    """A path by pairs whose intermediates fit, else one whose largest is small."""
    count = len(network.inputs)
    if optimize == "auto" and count == 3 and limit == inf:
        found = network.of_three()
    else:
        found = [network.search(optimize, limit if count <= _MOST_BRANCHED else inf)]
    fitting = [each for each in found if each.fits(fits)]
    if not fitting:
        sizes = network.by_size(fits)
        found += [each for each in sizes if each.paired]
        fitting = [each for each in found if each.fits(fits)]
    if fitting:
        return min(fitting, key=attrgetter("flops"))
    return min([each for each in found if each.paired], key=attrgetter("largest", "flops"))


def _by_pairs(network: Network, path: Path, fits: float) -> Path:
    """The path with each step of many terms as pairs: from left to right if these fit."""
    if all(len(positions) <= 2 for positions in path):
        return path
    steps: list[tuple[int, ...]] = []
    count = len(network.inputs)
    for positions, (group, _, result) in zip(path, network.contractions(path), strict=True):
        if len(positions) <= 2:
            steps.append(positions)
            count -= len(positions) - 1
            continue
        inside = Network(["".join(term) for term in group], "".join(result), network.sizes)
        order = inside.left_to_right()
        if not order.fits(fits):
            order = _within(inside, "auto", inf, fits)
        # Where the terms of the group, and then the results of its pairs, are among all terms.
        places = list(positions)
        for pair in order.path:
            chosen = sorted([places[at] for at in pair])
            steps.append(tuple(chosen))
            places = [place - sum(gone < place for gone in chosen) for place in places if place not in chosen]
            count -= len(pair) - 1
            places.append(count - 1)
    return tuple(steps)


def check_optimize(optimize: Any, count: int) -> None:
    """Raise EinsumError unless this chooses a path for so many operands, which need none if they are one or two."""
    if (isinstance(optimize, str) and optimize == "auto") or explicit_path(optimize, count) is not None:
        return
    chosen = _with_limit(optimize)[0]
    if isinstance(chosen, str):
        _named(chosen, optimize)


# It is called while torch.compile traces, so that what it raises is told.
check_optimize._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _named(name: str, optimize: Any) -> Any:
    """The optimizer of opt_einsum that has this name."""
    from opt_einsum.paths import get_path_fn

    try:
        return get_path_fn(name)
    except KeyError as error:
        raise EinsumError(f"optimize={optimize!r} is no optimizer that opt_einsum has: {error}") from error


def _with_limit(optimize: Any) -> tuple[Any, Any]:
    """The optimizer, and the caller's memory limit: elements, or ``'max_input'``."""
    chosen, limit = optimize, None
    number = isinstance(optimize, Hashable) and getattr(optimize, "shape", ()) == ()
    if number and optimize in (True, False):  # NumPy's, and 1: they find each other's plans
        chosen = bool(optimize)
    elif isinstance(optimize, (list, tuple)):
        if len(optimize) != 2:
            raise EinsumError(_unknown(optimize))
        chosen, limit = optimize
    if chosen is None or chosen is True:
        chosen = "auto"
    if not (chosen is False or isinstance(chosen, str) or callable(chosen) or hasattr(chosen, "search")):
        raise EinsumError(_unknown(optimize))
    if limit is None or limit == -1:
        return chosen, inf
    if isinstance(limit, str) and limit == "max_input":
        return chosen, limit
    if isinstance(limit, str) or not hasattr(limit, "__float__") or not float(limit) >= 1:
        raise EinsumError(
            f"optimize={optimize!r}: the memory limit is a number of elements from 1 on, 'max_input', or -1 or None "
            f"for none, not {limit!r}"
        )
    return chosen, float(limit)


def _unknown(optimize: Any) -> str:
    return f"optimize={optimize!r} is neither a bool nor an optimizer, a path, or an optimizer and a memory limit"


def explicit_path(optimize: Any, count: int) -> Path | None:
    """A path given as such, or as a tree of cotengra's, checked; ``None`` if ``optimize`` is something else."""
    if _is_tree(optimize):
        return _checked(optimize.get_path(), count, optimize)
    if not isinstance(optimize, (list, tuple)):
        return None
    steps = list(optimize)
    if steps and isinstance(steps[0], str) and steps[0] == "einsum_path":
        steps = steps[1:]
    if not all(isinstance(step, (list, tuple)) for step in steps):
        return None
    return _checked(steps, count, optimize)


def with_slices(optimize: Any, subscripts: Subscripts, sizes: dict[str, int]) -> tuple[Any, frozenset[str]]:
    """Return ``optimize``, or the tree that an optimizer of cotengra's finds if it slices, and the labels it slices."""
    if not is_sliced(optimize):
        return optimize, frozenset()
    if not _is_tree(optimize):
        optimize = optimize.search([*map(tuple, subscripts.inputs)], tuple(subscripts.output), sizes)
        return optimize, frozenset(optimize.sliced_inds)
    letters = {label: letter for letter, label in subscripts.names}
    if all(isinstance(term, (tuple, list, str)) for term in optimize.inputs):  # where labels have an order
        for own, term in zip(subscripts.inputs, optimize.inputs, strict=False):
            letters.update(zip(term, own, strict=False))
    if not letters.keys() >= optimize.sliced_inds.keys():
        raise EinsumError(f"optimize={optimize!r} slices {[*optimize.sliced_inds]}, which {subscripts.text!r} hasn't")
    return optimize, frozenset([letters[label] for label in optimize.sliced_inds])


def is_sliced(optimize: Any) -> bool:
    """Return whether this is a tree of cotengra's that is sliced, or an optimizer that slices."""
    names = ("sliced_inds", "slicing_opts", "slicing_reconf_opts")
    return not isinstance(optimize, str) and any(getattr(optimize, name, None) for name in names)


def _is_tree(optimize: Any) -> bool:
    return hasattr(optimize, "get_path") and hasattr(optimize, "sliced_inds")


def _checked(steps: Sequence[Sequence[Any]], count: int, optimize: Any) -> Path:
    """A path whose steps name terms that are there, and leave one."""
    left = count
    path: list[tuple[int, ...]] = []
    for step in steps:
        if len(step) == 2 and type(step[0]) is type(step[1]) is int and 0 <= step[0] < step[1] < left:
            path.append((step[0], step[1]))  # as nearly all are
            left -= 1
            continue
        positions = tuple(sorted({index(at) for at in step if isinstance(at, SupportsIndex)}))
        if len(positions) != len(step) or not positions or positions[0] < 0 or positions[-1] >= left:
            raise EinsumError(
                f"optimize={optimize!r}: {tuple(step)} doesn't name distinct terms of the {left} that are left"
            )
        left -= len(positions) - 1
        path.append(positions)
    if left > 1:
        raise EinsumError(f"optimize={optimize!r} leaves {left} of {count} terms: the steps of a path leave one")
    return tuple(path)
