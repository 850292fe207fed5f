"""A pair of terms as a batched matrix product: the ways to read the operands, and what each costs.

A GEMM wants the row axes as one axis of extent ``m``, the column axes as ``n`` and the contracted ones as
``k``. Where the strides don't allow that as a view, an axis that is in the way can become a batch axis which
the other operand lacks (its stride there is 0), or the operand can be copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from einops_fast.planning import cost
from einops_fast.planning.layout import (
    Axis,
    Term,
    arranged,
    as_one,
    axes_of,
    by_stride,
    contiguous_strides,
    readable_by_gemm,
)
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import Arrange, Gemm
from einops_fast.planning.target import Target

__all__ = ["GemmChoice", "cheapest_gemm"]

_CACHED = 1 << 16
"""Multiply-adds up to which the operands of a matrix times a vector stay in the cache."""

_SHORT_LOOP = 16
"""Elements of a loop that take no longer than to begin it."""

_LONG_ROW = 512
"""Elements from which on it makes no difference to BLAS how far a row is from the next one."""


class Side(NamedTuple):
    """One operand of a GEMM.

    Attributes:
        term: the operand.
        free: its own axes that form the rows (or columns) of the matrix.
        demoted: its own axes that became batch axes, which the other operand lacks.
        strides: by label, of the operand as the GEMM gets it.
        moves: why it is copied; empty if it isn't.
        in_runs: the copy keeps the axis that is fastest in memory the fastest.
        inner: length of the innermost loop of the copy.
        free_last: which of the free and the contracted axes come last in memory, where the arrangement has
            to follow that order and the GEMM transposes; ``None`` where strides make it irrelevant.
    """

    term: Term
    free: str
    demoted: str
    strides: dict[str, int]
    moves: str = ""
    in_runs: bool = False
    inner: int = 0
    free_last: bool | None = None

    def copy_seconds(self, dtype: str, on: cost.Ceilings) -> float:
        """Predict the seconds of the copy."""
        return cost.copy_seconds(self.term.size, self.in_runs, dtype, on, self.inner)


class GemmChoice(NamedTuple):
    """A priced way to do a pair as a GEMM. ``groups`` are the batch axes, each a run of merged labels."""

    seconds: float
    left: Side
    right: Side
    groups: tuple[str, ...]
    contracted: str
    looped: bool

    def step(self, roles: Roles, target: Target) -> tuple[Gemm, tuple[int, ...]]:
        """The step, and the strides of its result."""
        if self.left.term is not roles.left:
            roles = roles.swapped()
        if target.folds_batch and self._plain():
            groups = tuple("".join(self.groups))
            split = self._replace(groups=groups)._step(roles, target)
            # Written in place, each of several batch axes but one would be looped over.
            if split[0].buffer is None or len(groups) == 1:
                return split
        return self._step(roles, target)

    def _plain(self) -> bool:
        """Whether each role but the batch has one axis, so that nothing need be reshaped."""
        left, right = self.left, self.right
        moved = left.moves or right.moves or left.demoted or right.demoted or self.looped
        return not moved and len(left.free) == len(right.free) == len(self.contracted) == 1

    def _step(self, roles: Roles, target: Target) -> tuple[Gemm, tuple[int, ...]]:
        rows, columns = self.left.free, self.right.free
        labels = "".join(self.groups) + rows + columns
        buffer = None
        if target.writes and (labels != roles.wanted or self.looped):
            if target.writes_strided:
                buffer = self._buffer(roles.wanted, roles)
            if buffer is not None:
                labels = roles.wanted
            elif self.looped:
                buffer = self._buffer(labels, roles)
        step = Gemm(
            roles.slots,
            labels,
            roles.sizes(labels),
            self._arrange(self.left, roles, self.left.free_last is True),
            self._arrange(self.right, roles, self.right.free_last is not False),
            tuple(map(roles.size, self.groups)),
            roles.size(rows),
            roles.size(columns),
            roles.size(self.contracted),
            self.left.free_last is True,
            self.right.free_last is False,
            buffer,
        )
        return step, contiguous_strides(roles.sizes(labels))

    def _buffer(self, order: str, roles: Roles) -> Arrange | None:
        """How a C-ordered array with axes in ``order`` is seen as ``(*batch, m, n)``; ``None`` if it can't."""
        sizes = roles.sizes(order)
        axes = dict(zip(order, axes_of(order, sizes, contiguous_strides(sizes)), strict=True))
        groups = (*self.groups, self.left.free, self.right.free)
        strides = [as_one([axes[label] for label in group])[1] for group in groups]
        row_stride, column_stride = strides[-2:]
        if None in strides or row_stride is None or column_stride is None:
            return None
        if not readable_by_gemm(roles.size(self.left.free), row_stride, roles.size(self.right.free), column_stride):
            return None
        perm = tuple(axes[label].position for group in groups for label in group)
        return arranged(perm, sizes, tuple(map(roles.size, groups)))

    def _arrange(self, side: Side, roles: Roles, contracted_first: bool) -> Arrange:
        """How an operand is seen as a stack of matrices."""
        matrix = (self.contracted, side.free) if contracted_first else (side.free, self.contracted)
        batch = [group if group[0] in side.strides else "" for group in self.groups]
        groups = (*batch, *matrix)
        perm = (*side.term.unnamed, *[axis.position for axis in side.term.pick("".join(groups))])
        shape = tuple(map(roles.size, groups))
        how = arranged(perm, side.term.shape, shape, side.moves)
        # A missing batch axis is always spelled out, so that a backend can see it in the shape.
        return how if all(batch) else how.replace(shape=shape)


def cheapest_gemm(roles: Roles, target: Target, dtype: str) -> GemmChoice | None:
    """The GEMM that is predicted to be fastest; ``None`` if there is none.

    The first way that copies nothing and loops over nothing ends the search.
    """
    roles = _oriented(roles, target)
    best: GemmChoice | None = None
    left, right = roles.left, roles.right
    for contracted in _orders(roles.contracted, left, right):
        for batch in _orders(roles.batch, left, right, roles.wanted):
            lefts = list(_sides(left, batch, roles.rows, contracted, roles.wanted, target, False))
            rights = list(_sides(right, batch, roles.columns, contracted, roles.wanted, target, True))
            for one in lefts:
                for two in rights:
                    if best is not None and best.seconds <= _least_seconds(one, two, roles, target, dtype):
                        continue
                    choice = _price(one, two, batch, contracted, roles, target, dtype)
                    if choice is None or (best is not None and best.seconds <= choice.seconds):
                        continue
                    best = choice
                    if not (one.moves or two.moves or one.demoted or two.demoted or choice.looped):
                        return best
    return best


def _oriented(roles: Roles, target: Target) -> Roles:
    """The terms in the order that leaves the result as it is wanted, or else with a large transposed one right.

    A transposed left operand makes libraries slower, a transposed right one hardly does.

    A matrix times a vector is turned so that the matrix is read in C order: libraries have fast kernels for
    that, and often none for the other.
    """
    if roles.rows and roles.columns:
        plain = roles.batch + roles.rows + roles.columns
        turned = roles.batch + roles.columns + roles.rows
        if roles.wanted in (plain, turned) and plain != turned:
            return roles if roles.wanted == plain else roles.swapped()
        transposed = roles.left.fastest in roles.rows
        return roles.swapped() if transposed and roles.left.size > roles.right.size else roles
    vector_last = roles if roles.rows else roles.swapped()
    if not vector_last.rows or not target.strided:
        return vector_last
    matrix = vector_last.left
    fastest = matrix.fastest
    return vector_last if fastest in vector_last.contracted else vector_last.swapped()


def _orders(labels: str, left: Term, right: Term, wanted: str = "") -> list[str]:
    """Orders of shared labels that may merge: by the strides of either term, and as the result wants them."""
    if len(labels) < 2:
        return [labels]
    orders = ["".join([axis.label for axis in by_stride(term.pick(labels))]) for term in (left, right)]
    return list(dict.fromkeys([*orders, labels] if wanted else orders))


def _sides(
    term: Term, batch: str, free: str, contracted: str, wanted: str, target: Target, is_right: bool
) -> Iterator[Side]:
    """The ways in which one operand can be a stack of matrices, views first."""
    if not target.strided:
        yield from _unstrided(term, batch, free, contracted)
        return
    strides = term.strides
    inner, own = term.pick(contracted), by_stride(term.pick(free))
    k, k_stride = as_one(inner)
    reason = "its axes don't merge to a matrix that a GEMM can read"
    if k_stride is not None:
        m, m_stride = as_one(own)
        if m_stride is not None and readable_by_gemm(m, m_stride, k, k_stride):
            # A column vector is handed over as a transposed row: some libraries are slow at the other.
            yield Side(term, _joined(own), "", strides, free_last=False if is_right and m == 1 else None)
            if len(batch) <= target.batch_axes:
                return
            reason = "its batch axes don't merge"
        run = _largest_run(own, k, k_stride) if target.broadcasts else ()
        if run and len(run) < len(own):
            labels = _joined(run)
            demoted = "".join([label for label in wanted if label in free and label not in labels])
            yield Side(term, labels, demoted, strides)
    else:
        reason = "the contracted axes don't merge"
    yield from _copies(term, batch, free, contracted, reason)


def _joined(axes: Sequence[Axis]) -> str:
    return "".join([axis.label for axis in axes])


def _largest_run(axes: Sequence[Axis], k: int, k_stride: int) -> Sequence[Axis]:
    """The longest stretch of neighbouring axes that forms, with the contracted axis, a readable matrix."""
    best: Sequence[Axis] = ()
    largest = -1
    for start in range(len(axes)):
        for stop in range(start, len(axes)):
            size, stride = as_one(axes[start : stop + 1])
            if stride is None:
                break  # nor do more axes form one
            if size > largest and readable_by_gemm(size, stride, k, k_stride):
                best, largest = axes[start : stop + 1], size
    return best


def _copies(term: Term, batch: str, free: str, contracted: str, reason: str) -> Iterator[Side]:
    """The operand in new memory, the fastest of its own or the contracted axes last where that keeps runs."""
    fastest = term.fastest
    yield _copied(term, batch, free, contracted, reason, fastest)
    if fastest and fastest in free[:-1]:
        yield _copied(term, batch, free.replace(fastest, "") + fastest, contracted, reason, fastest)


def _copied(term: Term, batch: str, free: str, contracted: str, reason: str, fastest: str) -> Side:
    # Whichever group ends in the smaller stride goes innermost, for the copy then reads with more locality; unless only
    # the other one makes loops that are long enough.
    strides = term.strides
    free_last = bool(free) and abs(strides[free[-1]]) < abs(strides[contracted[-1]])
    inner = _inner(term, free if free_last else contracted)
    if free and inner < _SHORT_LOOP:
        other = _inner(term, contracted if free_last else free)
        if other > inner:
            free_last, inner = not free_last, other
    order = batch + (contracted + free if free_last else free + contracted)
    in_runs = bool(fastest) and order.endswith(fastest)
    return Side(term, free, "", _strides_in(order, term), reason, in_runs, inner, free_last)


def _inner(term: Term, labels: str) -> int:
    """How many elements of a copy, with these labels last, one loop writes."""
    axes = term.pick(labels)
    run = 1
    for at in range(len(axes) - 1, -1, -1):
        size, stride = as_one(axes[at:])
        if stride is None:
            break
        run = size
    return run


def _unstrided(term: Term, batch: str, free: str, contracted: str) -> Iterator[Side]:
    """The operand of a framework without strides: as it is, if its axes stand in one of the two orders."""
    sizes = {axis.label: axis.size for axis in term.axes}
    stored = [axis.label for axis in term.axes if axis.size > 1]
    for free_last in (False, True):
        order = batch + (contracted + free if free_last else free + contracted)
        if stored == [label for label in order if sizes[label] > 1]:
            yield Side(term, free, "", _strides_in(order, term), free_last=free_last)
            return
    yield from _copies(term, batch, free, contracted, "arrays have no strides")


def _strides_in(order: str, term: Term) -> dict[str, int]:
    """Strides by label of the term in C order with its axes in ``order``."""
    return dict(zip(order, contiguous_strides([axis.size for axis in term.pick(order)]), strict=True))


def _least_seconds(left: Side, right: Side, roles: Roles, target: Target, dtype: str) -> float:
    """Return what :func:`_price` can't be below, in a fraction of its time; 0 where no bound is known."""
    if left.demoted or right.demoted:
        return 0.0
    seconds = cost.gemm_seconds(roles.product, 1, dtype, target.ceilings)
    for side in (left, right):
        if side.moves:
            seconds += side.copy_seconds(dtype, target.ceilings)
    return seconds


def _price(
    left: Side, right: Side, batch: str, contracted: str, roles: Roles, target: Target, dtype: str
) -> GemmChoice | None:
    groups = _merged_batch(batch + left.demoted + right.demoted, left, right, roles)
    product = roles.product
    if left.demoted or right.demoted:
        stack = product.batch * roles.size(left.demoted) * roles.size(right.demoted)
        product = cost.Product(stack, roles.size(left.free), roles.size(right.free), product.k)
    on = target.ceilings
    # What stays in the cache may be walked through again.
    if product.full > max(on.block, _CACHED) and on.streams(dtype) and not _keeps_up(product, left, right, batch):
        return None
    loops = 1
    seconds = 0.0
    if len(groups) > target.batch_axes:
        if not target.writes:
            return None
        groups, loops = _loop_order(groups, left.free + right.free, roles)
        if not target.writes_strided and "".join(groups) + left.free + right.free != roles.wanted:
            # Whoever reads the result pays for its order.
            seconds += cost.copy_seconds(roles.size(roles.wanted), True, dtype, on) / 2
    seconds += cost.gemm_seconds(product, loops, dtype, on)
    for side in (left, right):
        if side.moves:
            seconds += side.copy_seconds(dtype, on)
    copies = not target.strided or (target.in_order and not (target.writes and target.writes_strided))
    if copies and "".join(groups) + left.free + right.free != roles.wanted:
        seconds += cost.copy_seconds(roles.size(roles.wanted), False, dtype, on)
    return GemmChoice(seconds, left, right, tuple(groups), contracted, len(groups) > target.batch_axes)


def _keeps_up(product: cost.Product, left: Side, right: Side, batch: str) -> bool:
    """Whether BLAS does a product as fast as memory gives it the operands.

    A matrix times a vector is one call that does (GEMV), and so is a stack of them, as long as each matrix has memory
    of its own, or long rows. Where short rows of all matrices lie between each other, BLAS walks through the whole
    memory for each matrix; and it reads the same matrix again for each vector.
    """
    if product.m > 1 and product.n > 1:
        return True
    large, small = (left, right) if left.term.size > right.term.size else (right, left)
    if small.demoted:
        return False
    if large.moves:
        return True
    batch += large.demoted
    axes = [axis for axis in large.term.axes if axis.label and axis.size > 1]
    matrix = [axis for axis in axes if axis.label not in batch]
    end = max([axis.stride * axis.size for axis in matrix], default=1)
    alone = all(axis.stride >= end for axis in axes if axis.label in batch)
    return alone or any(axis.stride == 1 and axis.size >= _LONG_ROW for axis in matrix)


def _loop_order(groups: list[str], matrix: str, roles: Roles) -> tuple[list[str], int]:
    """The batch axes, those that are looped over first, and how many calls that makes.

    The largest axis stays in the call, unless the result comes out as it is wanted with another one there
    and the calls don't get much smaller.
    """
    wanted = sorted(groups, key=lambda group: roles.wanted.index(group[0]))
    largest = max(groups, key=roles.size)
    in_order = "".join(wanted) + matrix == roles.wanted and roles.size(wanted[-1]) >= min(8, roles.size(largest))
    chosen = wanted if in_order else [*(group for group in groups if group != largest), largest]
    return chosen, roles.size("".join(chosen[:-1]))


def _merged_batch(labels: str, left: Side, right: Side, roles: Roles) -> list[str]:
    """Batch axes, neighbours merged where both operands (or the one that has them) allow it."""
    groups: list[str] = []
    for label in labels:
        size = roles.size_of[label]
        if groups and all(_follows(side.strides, groups[-1][-1], label, size) for side in (left, right)):
            groups[-1] += label
        else:
            groups.append(label)
    return groups


def _follows(strides: dict[str, int], outer: str, inner: str, inner_size: int) -> bool:
    if (outer in strides) != (inner in strides):
        return False
    return outer not in strides or strides[outer] == strides[inner] * inner_size
