"""A pair of terms as a batched matrix product: the ways to read the operands, and what each costs.

A GEMM wants the row axes as one axis of extent ``m``, the column axes as ``n`` and the contracted ones as
``k``. Where the strides don't allow that as a view, an axis that is in the way can become a batch axis which
the other operand lacks (its stride there is 0), or the operand can be copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from einops_fast.planning import cost
from einops_fast.planning.layout import Term, arranged, as_one, contiguous_strides, readable_by_gemm
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import Arrange, Gemm
from einops_fast.planning.target import Target

_CACHED = 1 << 16
"""Multiply-adds up to which the operands of a matrix times a vector stay in the cache."""

_SHORT_LOOP = 16
"""Elements of a loop that take no longer than to begin it."""

_LONG_ROW = 512
"""Elements from which on it makes no difference to BLAS how far a row is from the next one."""


class Side(NamedTuple):
    """One operand of a GEMM."""

    term: Term  # the operand
    free: str  # its own axes that form the rows (or columns) of the matrix
    demoted: str  # its own axes that became batch axes, which the other operand lacks
    strides: Mapping[str, int]  # by label, of the operand as the GEMM gets it
    moves: str = ""  # why it is copied; empty if it isn't
    in_runs: bool = False  # the copy keeps the axis that is fastest in memory the fastest
    inner: int = 0  # length of the innermost loop of the copy
    # which of the free and the contracted axes come last in memory, where the arrangement has to follow that
    # order and the GEMM transposes; `None` where strides make it irrelevant
    free_last: bool | None = None


class GemmChoice(NamedTuple):
    """A priced way to do a pair as a GEMM. ``groups`` are the batch axes, each a run of merged labels."""

    seconds: float
    left: Side
    right: Side
    groups: tuple[str, ...]
    contracted: str
    looped: bool

    def step(self, roles: Roles, target: Target) -> Gemm:
        """The step."""
        if self.left.term is not roles.left:
            roles = roles.swapped()
        if target.folds_batch and self._plain():
            groups = tuple("".join(self.groups))
            split = self._replace(groups=groups)._step(roles, target)
            # Written in place, each of several batch axes but one would be looped over.
            if split.buffer is None or len(groups) == 1:
                return split
        return self._step(roles, target)

    def _plain(self) -> bool:
        """Whether each role but the batch has one axis, so that nothing need be reshaped."""
        left, right = self.left, self.right
        moved = left.moves or right.moves or left.demoted or right.demoted or self.looped
        return not moved and len(left.free) == len(right.free) == len(self.contracted) == 1

    def _step(self, roles: Roles, target: Target) -> Gemm:
        left, right, groups, contracted = self.left, self.right, self.groups, self.contracted
        rows, columns, size = left.free, right.free, roles.size
        labels = "".join(groups) + rows + columns
        buffer = None
        if target.writes and (labels != roles.wanted or self.looped):
            if target.writes_strided:
                buffer = self._buffer(roles.wanted, roles)
            if buffer is not None:
                labels = roles.wanted
            elif self.looped:
                buffer = self._buffer(labels, roles)
        turn_left, turn_right = left.free_last is True, right.free_last is False
        batch, m, n, k = tuple([size(group) for group in groups]), size(rows), size(columns), size(contracted)
        one = (contracted, rows, k, m) if turn_left else (rows, contracted, m, k)
        two = (columns, contracted, n, k) if turn_right else (contracted, columns, k, n)
        return Gemm(
            roles.slots,
            labels,
            roles.shape(labels),
            self._arrange(left, batch, *one),
            self._arrange(right, batch, *two),
            batch,
            m,
            n,
            k,
            turn_left,
            turn_right,
            buffer,
        )

    def _buffer(self, order: str, roles: Roles) -> Arrange | None:
        """How a C-ordered array with axes in ``order`` is seen as ``(*batch, m, n)``; ``None`` if it can't."""
        shape = roles.shape(order)
        strides = dict(zip(order, contiguous_strides(shape), strict=True))
        groups = (*self.groups, self.left.free, self.right.free)
        *batch, (m, row_stride), (n, column_stride) = [as_one(group, strides, roles.sizes) for group in groups]
        if row_stride is None or column_stride is None or any(stride is None for _, stride in batch):
            return None
        if not readable_by_gemm(m, row_stride, n, column_stride):
            return None
        perm = tuple([order.index(label) for group in groups for label in group])
        return arranged(perm, shape, (*[size for size, _ in batch], m, n))

    def _arrange(self, side: Side, batch: tuple[int, ...], first: str, second: str, rows: int, columns: int) -> Arrange:
        """How an operand is seen as a stack of matrices with these axes and extents."""
        term, strides = side.term, side.strides
        order, shape, missing = "", (*batch, rows, columns), False
        for at, group in enumerate(self.groups):
            if group[0] in strides:
                order += group
            else:
                missing = True
                shape = (*shape[:at], 1, *shape[at + 1 :])
        order += first + second
        how = term.seen(order, shape, side.moves)
        # A missing batch axis is always spelled out, so that a backend can see it in the shape.
        return how.replace(shape=shape) if missing and how.shape is None else how


def cheapest_gemm(roles: Roles, target: Target, dtype: str) -> GemmChoice | None:
    """The GEMM that is predicted to be fastest; ``None`` if there is none.

    The first way that copies nothing and loops over nothing ends the search.
    """
    roles = _oriented(roles, target)
    best: GemmChoice | None = None
    left, right = roles.left, roles.right
    least = 0.0  # what no way without demoted axes can be below
    for contracted in _orders(roles.contracted, left, right):
        for batch in _orders(roles.batch, left, right, roles.wanted):
            lefts = _sides(left, batch, roles.rows, contracted, roles, target, False)
            rights = _sides(right, batch, roles.columns, contracted, roles, target, True)
            for one in lefts:
                for two in rights:
                    if best is not None and not (one.demoted or two.demoted):
                        least = least or cost.gemm_seconds(roles.product, 1, dtype, target.ceilings)
                        copies = _copy_seconds(one, two, dtype, target.ceilings)
                        if best.seconds <= least + copies:
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
        if roles.wanted == plain:
            return roles
        if roles.wanted == roles.batch + roles.columns + roles.rows:
            return roles.swapped()
        transposed = roles.left.fastest in roles.rows
        return roles.swapped() if transposed and roles.left.size > roles.right.size else roles
    vector_last = roles if roles.rows else roles.swapped()
    if not vector_last.rows or not target.strided:
        return vector_last
    fastest = vector_last.left.fastest
    return vector_last if fastest in vector_last.contracted else vector_last.swapped()


def _orders(labels: str, left: Term, right: Term, wanted: str = "") -> list[str]:
    """Orders of shared labels that may merge: by the strides of either term, and as the result wants them."""
    if len(labels) < 2:
        return [labels]
    orders = [left.in_memory(labels), right.in_memory(labels)]
    return list(dict.fromkeys([*orders, labels] if wanted else orders))


def _sides(
    term: Term, batch: str, free: str, contracted: str, roles: Roles, target: Target, is_right: bool
) -> list[Side]:
    """The ways in which one operand can be a stack of matrices, views first."""
    sizes, strides = roles.sizes, term.strides
    if not target.strided:
        return _unstrided(term, batch, free, contracted, sizes)
    sides = []
    k, k_stride = as_one(contracted, strides, sizes)
    reason = "the contracted axes don't merge"
    if k_stride is not None:
        own = term.in_memory(free)
        m, m_stride = as_one(own, strides, sizes)
        reason = "its axes don't merge to a matrix that a GEMM can read"
        if m_stride is not None and readable_by_gemm(m, m_stride, k, k_stride):
            # A column vector is handed over as a transposed row: some libraries are slow at the other.
            sides.append(Side(term, own, "", strides, free_last=False if is_right and m == 1 else None))
            if len(batch) <= target.batch_axes:
                return sides
            reason = "its batch axes don't merge"
        run = _largest_run(own, strides, sizes, k, k_stride) if target.broadcasts else ""
        if run and len(run) < len(own):
            demoted = "".join([label for label in roles.wanted if label in free and label not in run])
            sides.append(Side(term, run, demoted, strides))
    return sides + _copies(term, batch, free, contracted, reason, sizes)


def _largest_run(axes: str, strides: Mapping[str, int], sizes: Mapping[str, int], k: int, k_stride: int) -> str:
    """The longest stretch of neighbouring axes that forms, with the contracted axis, a readable matrix."""
    best, largest = "", (-1, 0, 0)
    for stop in range(1, len(axes) + 1):
        size, stride, reach = 1, 1, 0
        for start in range(stop - 1, -1, -1):
            extent = sizes[axes[start]]
            if extent != 1:
                own = strides[axes[start]]
                if size == 1:
                    stride = own
                elif own != reach:
                    break  # nor do more axes form one
                size *= extent
                reach = own * extent
            # Of runs of one size, the first.
            if (size, -start, -stop) > largest and readable_by_gemm(size, stride, k, k_stride):
                best, largest = axes[start:stop], (size, -start, -stop)
    return best


def _copies(term: Term, batch: str, free: str, contracted: str, reason: str, sizes: Mapping[str, int]) -> list[Side]:
    """The operand in new memory, the fastest of its own or the contracted axes last where that keeps runs."""
    fastest = term.fastest
    sides = [_copied(term, batch, free, contracted, reason, fastest, sizes)]
    if fastest and fastest in free[:-1]:
        sides.append(_copied(term, batch, free.replace(fastest, "") + fastest, contracted, reason, fastest, sizes))
    return sides


def _copied(
    term: Term, batch: str, free: str, contracted: str, reason: str, fastest: str, sizes: Mapping[str, int]
) -> Side:
    # Whichever group ends in the smaller stride goes innermost, for the copy then reads with more locality; unless only
    # the other one makes loops that are long enough.
    strides = term.strides
    free_last = bool(free) and abs(strides[free[-1]]) < abs(strides[contracted[-1]])
    inner = _inner(free if free_last else contracted, strides, sizes)
    if free and inner < _SHORT_LOOP:
        other = _inner(contracted if free_last else free, strides, sizes)
        if other > inner:
            free_last, inner = not free_last, other
    order = batch + (contracted + free if free_last else free + contracted)
    in_runs = bool(fastest) and order.endswith(fastest)
    return Side(term, free, "", _strides_in(order, sizes), reason, in_runs, inner, free_last)


def _inner(labels: str, strides: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """How many elements of a copy, with these labels last, one loop writes."""
    run, reach = 1, None
    for label in reversed(labels):
        extent, stride = sizes[label], strides[label]
        if extent != 1:
            if reach is not None and stride != reach:
                break
            run *= extent
            reach = stride * extent
    return run


def _unstrided(term: Term, batch: str, free: str, contracted: str, sizes: Mapping[str, int]) -> list[Side]:
    """The operand of a framework without strides: as it is, if its axes stand in one of the two orders."""
    stored = [label for label in term.labels if sizes[label] > 1]
    for free_last in (False, True):
        order = batch + (contracted + free if free_last else free + contracted)
        if stored == [label for label in order if sizes[label] > 1]:
            return [Side(term, free, "", _strides_in(order, sizes), free_last=free_last)]
    return _copies(term, batch, free, contracted, "arrays have no strides", sizes)


def _strides_in(order: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Strides by label of an array in C order with its axes in ``order``."""
    return dict(zip(order, contiguous_strides([sizes[label] for label in order]), strict=True))


def _copy_seconds(left: Side, right: Side, dtype: str, on: cost.Ceilings) -> float:
    """Predict the seconds of all copies."""
    return sum(
        [cost.copy_seconds(side.term.size, side.in_runs, dtype, on, side.inner) for side in (left, right) if side.moves]
    )


def _price(
    left: Side, right: Side, batch: str, contracted: str, roles: Roles, target: Target, dtype: str
) -> GemmChoice | None:
    product, on = roles.product, target.ceilings
    if left.demoted or right.demoted:
        batch += left.demoted + right.demoted
        product = cost.Product(roles.size(batch), roles.size(left.free), roles.size(right.free), product.k)
    groups = _merged_batch(batch, left, right, roles) if len(batch) > 1 else [batch] if batch else []
    is_vector = product.m == 1 or product.n == 1
    if is_vector and may_lag_behind(product.full, dtype, on) and not _keeps_up(left, right, batch, roles.sizes):
        return None
    loops = 1
    seconds = 0.0
    looped = len(groups) > target.batch_axes
    if looped:
        if not target.writes:
            return None
        groups, loops = _loop_order(groups, left.free + right.free, roles)
        if not target.writes_strided and "".join(groups) + left.free + right.free != roles.wanted:
            # Whoever reads the result pays for its order.
            seconds += cost.copy_seconds(roles.size(roles.wanted), True, dtype, on) / 2
    seconds += cost.gemm_seconds(product, loops, dtype, on)
    if left.moves or right.moves:
        seconds += _copy_seconds(left, right, dtype, on)
    copies = not target.strided or (target.in_order and not (target.writes and target.writes_strided))
    if copies and "".join(groups) + left.free + right.free != roles.wanted:
        seconds += cost.copy_seconds(roles.size(roles.wanted), False, dtype, on)
    return GemmChoice(seconds, left, right, tuple(groups), contracted, looped)


def may_lag_behind(full: int, dtype: str, on: cost.Ceilings) -> bool:
    """Return whether BLAS may be slower than memory at so many products of a matrix and a vector, and loops are not."""
    # What stays in the cache may be walked through again.
    return full > max(on.block, _CACHED) and on.streams(dtype)


def _keeps_up(left: Side, right: Side, batch: str, sizes: Mapping[str, int]) -> bool:
    """Whether BLAS does the product of a matrix and a vector as fast as memory gives it the operands.

    It is one call that does (GEMV), and so is a stack of them, as long as each matrix has memory of its own, or long
    rows. Where short rows of all matrices lie between each other, BLAS walks through the whole memory for each matrix;
    and it reads the same matrix again for each vector.
    """
    large, small = (left, right) if left.term.size > right.term.size else (right, left)
    if small.demoted:
        return False
    if large.moves:
        return True
    axes = [(label, stride, sizes[label]) for label, stride in large.term.strides.items() if sizes[label] > 1]
    matrix = [(stride, size) for label, stride, size in axes if label not in batch]
    end = max([stride * size for stride, size in matrix], default=1)
    alone = all(stride >= end for label, stride, _ in axes if label in batch)
    return alone or any(stride == 1 and size >= _LONG_ROW for stride, size in matrix)


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
        size = roles.sizes[label]
        if groups and all(_follows(side.strides, groups[-1][-1], label, size) for side in (left, right)):
            groups[-1] += label
        else:
            groups.append(label)
    return groups


def _follows(strides: Mapping[str, int], outer: str, inner: str, inner_size: int) -> bool:
    if (outer in strides) != (inner in strides):
        return False
    return outer not in strides or strides[outer] == strides[inner] * inner_size
