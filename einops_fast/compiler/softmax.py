"""A softmax: torch's by name, or written out with exponentials, which may be normalized late; and its log-sum-exp."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch.fx import Node

from einops_fast.compiler.contractions import Product, is_contraction, product_of
from einops_fast.compiler.match import Miss
from einops_fast.compiler.nest import Dims, expanded
from einops_fast.compiler.nodes import argument, axis_of, name_of, shape_of, source_of
from einops_fast.compiler.views import broadcast, followed, is_cast

LAST_STEPS = ("softmax", "_softmax", "softmin", "div", "mul", "exp")
"""Functions that a softmax may end with."""


_EXPONENTIALS = {"exp": 1.0, "exp2": math.log(2)}
"""Functions, and what each multiplies its argument by to be a power of e."""


class Softmax(NamedTuple):
    """A softmax as it was found."""

    scores: Node  # the tensor that it is taken of
    axis: Any  # along which
    inner: tuple[Node, ...] = ()  # nodes between the scores and the result, without the latter
    # the sum of exponentials, and `largest` what was subtracted from the scores before, where it is written out
    total: Node | None = None
    largest: tuple[Node, ...] = ()
    log: Node | None = None  # the log-sum-exp by which it is written out
    factor: float = 1.0  # what the scores are multiplied by


def softmax_of(node: Node) -> Softmax | None:
    """Return the softmax that a node is; ``None`` if it is none."""
    name = name_of(node)
    if name in ("softmax", "_softmax"):
        return Softmax(source_of(node), argument(node, 1, "dim"))
    if name == "softmin":
        return Softmax(source_of(node), argument(node, 1, "dim"), factor=-1.0)
    if name == "exp":
        return _by_logs(source_of(node))
    inverse = _inverse_of(node)
    if inverse is None:
        return None
    weights, divisor, inner = inverse
    total, between = _reduced(divisor)
    if name_of(total) != "sum" or source_of(total) is not weights:
        return None
    return _exponential_of(weights, axis_of(total), total, (*between, *inner))


def _reduced(node: Any) -> tuple[Any, tuple[Node, ...]]:
    """Return the reduction along an axis that a node is, and the nodes between; ``None`` unless it has that axis.

    The axis is kept, with one element, or put back by a view.
    """
    found, between, place = node, list[Node](), _axis_put_back(node)
    if place is not None:
        between.append(found)
        found = source_of(found)
    if name_of(found) in ("getattr", "getitem") and argument(found, 1, "") in ("values", 0):  # of `max`
        between.append(found)
        found = source_of(found)
    axis = axis_of(found) if isinstance(found, Node) else None
    keeps = isinstance(axis, int) and argument(found, 2, "keepdim", False)
    if place is not None and isinstance(axis, int):
        keeps = keeps is False and axis % len(shape_of(node) or ()) == place
    return (found if keeps is True else None), tuple(between)


def _axis_put_back(node: Any) -> int | None:
    """Return where a view adds its one axis of one element, if that is all it does."""
    rank, index = len(shape_of(node) or ()), argument(node, 1, "dim") if isinstance(node, Node) else None
    if name_of(node) == "unsqueeze" and isinstance(index, int):
        return index % rank
    index = index if isinstance(index, tuple) else (index,)
    plain = all(each is None or each is ... or each == slice(None) for each in index)
    if name_of(node) != "getitem" or not plain or index.count(None) != 1:
        return None
    place = index.index(None)
    return rank - len(index) + place if ... in index[:place] else place


def _by_logs(difference: Any) -> Softmax | None:
    """Return the softmax of which a node is the logarithm."""
    if name_of(difference) == "log_softmax":
        return Softmax(source_of(difference), argument(difference, 1, "dim"), (difference,))
    if name_of(difference) != "sub" or argument(difference, 2, "alpha", 1) != 1:
        return None
    log, between = _reduced(argument(difference, 1, "other"))
    if name_of(log) != "logsumexp" or source_of(log) is not source_of(difference):
        return None
    return Softmax(source_of(log), axis_of(log), (difference, *between, log), log=log)


def _inverse_of(node: Node) -> tuple[Node, Node, tuple[Node, ...]] | None:
    """Return what a node divides, by what, and the nodes between."""
    one, other = source_of(node) if node.args else None, argument(node, 1, "other")
    if name_of(node) == "div" and argument(node, 2, "rounding_mode") is None:
        return (one, other, ()) if isinstance(one, Node) and isinstance(other, Node) else None
    if name_of(node) == "mul":
        for product, inverse in ((one, other), (other, one)):
            total = _inverted(inverse)
            if isinstance(product, Node) and isinstance(inverse, Node) and isinstance(total, Node):
                return product, total, (inverse,)
    return None


def _inverted(node: Any) -> Any:
    """Return what a node is the reciprocal of, if it is one."""
    if name_of(node) == "reciprocal":
        return source_of(node)
    plain = name_of(node) == "div" and argument(node, 2, "rounding_mode") is None
    return argument(node, 1, "other") if plain and source_of(node) == 1 else None


def _exponential_of(weights: Any, axis: Any, total: Node, inner: tuple[Node, ...] = ()) -> Softmax | None:
    """Return the softmax that exponentials become when they are divided by their sum along an axis."""
    factor = _EXPONENTIALS.get(name_of(weights))
    if factor is None or not isinstance(axis, int):
        return None
    scores = source_of(weights)
    inner = (weights, total, *inner)
    if name_of(scores) == "sub" and argument(scores, 2, "alpha", 1) == 1:
        taken = largest_of(argument(scores, 1, "other"), source_of(scores), axis)
        if taken:
            return Softmax(source_of(scores), axis, (*inner, scores, *taken), total, taken, factor=factor)
    return Softmax(scores, axis, inner, total, factor=factor) if isinstance(scores, Node) else None


def largest_of(node: Any, scores: Any, axis: int) -> tuple[Node, ...]:
    """Return the nodes that make up the largest of the scores along an axis, the last of them first, or none."""
    inner = []
    if name_of(node) == "detach":
        inner.append(node)
        node = source_of(node)
    found, between = _reduced(node)
    rank = len(shape_of(scores) or ())
    if name_of(found) not in ("amax", "max") or source_of(found) is not scores or not rank:
        return ()
    own = axis_of(found)
    return (*inner, *between, found) if isinstance(own, int) and own % rank == axis % rank else ()


def beside_sinks(node: Any, dims: Dims, axis: int) -> tuple[Node, tuple[Node, Dims], list[Node]]:
    """Return scores that one column is joined to along the axis of keys, that column, and the nodes up to a softmax.

    The softmax is taken of ``node``; ``dims`` index the scores.
    """
    inner = []
    while is_cast(node) or name_of(node) == "sub":
        inner.append(node)
        if not is_cast(node):
            taken = largest_of(argument(node, 1, "other"), source_of(node), axis)
            if not taken or argument(node, 2, "alpha", 1) != 1:
                raise Miss("different offset", node)
            inner += taken
        node = source_of(node)
    joined: Any = source_of(node) if name_of(node) == "cat" else ()
    rows = (*dims[:axis], (), *dims[axis + 1 :])
    if len(joined) == 2 and argument(node, 1, "dim", 0) % len(dims) == axis and broadcast(dims, joined[0]) == dims:
        column = broadcast(rows, joined[1])
        if column is not None:
            return joined[0], (joined[1], column), [*inner, node]
    raise Miss("different offset", node)


class Quotient(NamedTuple):
    """A product of exponentials with values, divided by the sum of the exponentials."""

    product: Product  # the contraction
    softmax: Softmax  # what the exponentials become when they are divided
    exponentials: Node  # the node
    inner: tuple[Node, ...]  # nodes from the contraction to the quotient, and those of the sum


def quotient_of(node: Node, dims: Dims, right: bool) -> Quotient | None:
    """Return how a node is such a quotient, if its result is indexed by ``dims``; ``None`` if it is none.

    ``right`` is whether the exponentials are the second operand of the contraction.
    """
    inverse = _inverse_of(node)
    if inverse is None or broadcast(dims, inverse[0]) != dims:
        return None
    divided = followed(inverse[0], dims, is_contraction)
    sums = broadcast(dims, inverse[1])
    total = None if sums is None else followed(inverse[1], sums, lambda each: name_of(each) == "sum")
    product = None if divided is None else product_of(divided[0], divided[1])
    if divided is None or total is None or product is None or not product.summed:
        return None
    exponentials = followed(*product.operands[1 if right else 0], lambda each: name_of(each) in _EXPONENTIALS)
    axis = axis_of(total[0])
    if exponentials is None or not isinstance(axis, int):
        return None
    rows = list(total[1])
    axis %= len(exponentials[1])
    if argument(total[0], 2, "keepdim", False) is True:
        rows.pop(axis)
    rows.insert(axis, product.summed)
    summed = followed(source_of(total[0]), tuple(rows), lambda each: each is exponentials[0])
    softmax = _exponential_of(exponentials[0], axis, total[0])
    if summed is None or softmax is None or list(map(expanded, summed[1])) != list(map(expanded, exponentials[1])):
        return None
    inner = (node, *inverse[2], *divided[2], divided[0], *total[2], *summed[2])
    return Quotient(product, softmax, exponentials[0], inner)


def logs_of(softmax: Softmax, dims: Dims) -> tuple[list[tuple[Node, Dims, bool]], list[Node]]:
    """Return log-sum-exps of the scores that a program uses, and the nodes between these and the softmax.

    Each has what indexes it, if ``dims`` index the scores, and whether it is NaN where all scores are ``-inf``.
    """
    if softmax.factor != 1:
        return [], []
    axis = softmax.axis % len(dims)
    dropped = (*dims[:axis], *dims[axis + 1 :])
    kept = (*dims[:axis], (), *dims[axis + 1 :])

    def rows(node: Node) -> Dims | None:
        rank = len(shape_of(node) or ())
        found = kept if rank == len(dims) else dropped
        return found if rank == len(found) and broadcast(found, node) == found else None

    found = []
    for user in softmax.scores.users:
        if name_of(user) == "logsumexp" and source_of(user) is softmax.scores and isinstance(axis_of(user), int):
            own = rows(user)
            if own is not None and axis_of(user) % len(dims) == axis:
                found.append((user, own, False))
    inner: list[Node] = []
    for log in [] if softmax.total is None else _reached(softmax.total, "log"):
        ends = [log] if not softmax.largest else _reached(log, "add")
        for end in ends:
            own = rows(end)
            between = None if own is None else _parts_of(softmax, end, own, (kept, dropped))
            if own is not None and between is not None:
                found.append((end, own, bool(softmax.largest)))
                inner += [node for node in between if node is not end]
    used = [each for each in found if any(user not in softmax.inner for user in each[0].users)]
    return used, inner if used else []


def _reached(node: Node, name: str) -> list[Node]:
    """Return the calls of a function that take a node, or a view of it with another count of axes."""
    found, rest = [], [node]
    while rest:
        for user in rest.pop().users:
            if name_of(user) == name:
                found.append(user)
            elif name_of(user) in ("squeeze", "unsqueeze", "getitem", "reshape"):
                rest.append(user)
    return found


def _parts_of(softmax: Softmax, end: Node, dims: Dims, rows: tuple[Dims, Dims]) -> list[Node] | None:
    """Return the nodes from the softmax to the log-sum-exp that a node is; ``None`` if it is none."""
    logs = [end]
    inner: list[Node] = []
    if softmax.largest:
        logs = [source_of(end), argument(end, 1, "other")]
        if argument(end, 2, "alpha", 1) != 1 or not all(isinstance(each, Node) for each in logs):
            return None
        ways = [followed(each, dims, softmax.largest.__contains__) for each in logs]
        ways = [way if way is not None and way[1] in rows else None for way in ways]
        of_largest = next((way for way in ways if way is not None), None)
        if of_largest is None or any(broadcast(dims, each) != dims for each in logs):
            return None
        inner += of_largest[2]
        logs = [each for each, way in zip(logs, ways, strict=True) if way is not of_largest]
    of_log = followed(logs[0], dims, lambda node: name_of(node) == "log")
    of_total = None if of_log is None else followed(source_of(of_log[0]), of_log[1], lambda node: node is softmax.total)
    if of_log is None or of_total is None or of_total[1] not in rows:
        return None
    return [*inner, *of_log[2], of_log[0], *of_total[2]]
