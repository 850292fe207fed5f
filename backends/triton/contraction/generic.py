"""The kernel of a step that is told sizes and strides when it runs: a few such kernels serve a kind's every size.

Its tiles are those that suit a *typical* problem: the same loops, with sizes in between two powers of two in place of
those between them. So problems of like sizes have the same tiles, and what is compiled for one is there for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from einops_fast.backends.triton.contraction.loops import tilings as loop_tilings
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.pointers import tilings as pointer_tilings
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.problems import (
    ChainProblem,
    Contraction,
    Reduction,
    layouts,
    problem,
    with_more_rows,
)
from einops_fast.backends.triton.contraction.tiling import even_parts
from einops_fast.backends.triton.contraction.ways import KernelCandidate, Order
from einops_fast.backends.triton.device.tiling import Axis, Group, Role, power_of_two
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.steps import Fused

_Problem = Contraction | Reduction

_ROLES: dict[type, tuple[str, ...]] = {
    Contraction: ("batch", "rows", "columns", "contracted"),
    Reduction: ("free", "summed"),
}

_STEPS = {ContractionTiling: 4, ReductionTiling: 2}
"""Of each part at least, where the summed range is cut."""


class _Cut(NamedTuple):
    """Tiles of a typical problem.

    ``roles`` say, by name, where the axes of each are in the problem's: of the outer ones, and of those of each group.
    """

    seconds: float
    tiling: Any
    roles: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]


def generic_kernel(step: Fused, dtype: str, on: Ceilings, precision: str = "ieee") -> KernelCandidate | None:
    """Return the kernel for a step that also serves other sizes; ``None`` if there is no such one."""
    orders = layouts(step)
    step, swapped = with_more_rows(step, dtype)
    found: list[tuple[_Cut, _Problem, Order]] = []
    for number, strides in enumerate(orders):
        loops = problem(step, strides, dtype)
        if isinstance(loops, ChainProblem):
            return None
        cut = _best(_typical(loops), dtype, on, precision)
        found.append((cut, loops, Order(number, step, strides, swapped, dtype)))
        # Other orders are for kernels that don't store the first one as fast as any.
        if not (isinstance(loops, Contraction) and loops.regrouped) and not cut.tiling.scattered:
            break
    cut, loops, order = min(found, key=lambda each: each[0].seconds)
    return KernelCandidate(order, cut.seconds, _refitted(cut, loops), True)


def _typical(loops: _Problem) -> _Problem:
    """The problem with typical sizes, and arrays that lie as densely as their order of axes lets them."""
    names = _ROLES[type(loops)]
    axes = [axis for name in names for axis in getattr(loops, name)]
    sizes = [_typical_size(axis.size) for axis in axes]
    strides = [_dense(sizes, of_array) for of_array in zip(*[axis.strides for axis in axes], strict=True)]
    made = iter([Axis(size, of_axis) for size, of_axis in zip(sizes, zip(*strides, strict=True), strict=True)])
    roles: dict[str, Any] = {name: tuple([next(made) for _ in getattr(loops, name)]) for name in names}
    return replace(loops, **roles)


def _typical_size(size: int) -> int:
    power = power_of_two(size)
    return size if power == size or size <= 16 else power // 4 * 3


def _dense(sizes: list[int], strides: tuple[int, ...]) -> list[int]:
    """Strides in the order of those given; none is 1 that isn't."""
    found = [0] * len(sizes)
    reach = 0
    for at in sorted(range(len(sizes)), key=lambda at: abs(strides[at])):
        if strides[at]:
            reach = reach or min(abs(strides[at]), 2)
            found[at] = reach if strides[at] > 0 else -reach
            reach *= sizes[at]
    return found


@lru_cache(maxsize=1024)
def _best(loops: _Problem, dtype: str, on: Ceilings, precision: str) -> _Cut:
    """The tiles that are predicted to be the fastest for a typical problem; those in two parts suit single sizes."""
    found = (loop_tilings if isinstance(loops, Reduction) else pointer_tilings).tilings(loops, dtype, on, precision)
    seconds, tiling = next(each for each in found if not getattr(each[1], "in_two", False))
    return _Cut(seconds, tiling, tuple(_places(loops, tiling)))


def _places(loops: _Problem, tiling: Any) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
    for name in _ROLES[type(loops)]:
        role = getattr(tiling, name)
        if isinstance(role, Role):
            axes = list(getattr(loops, name))
            nests = (role.outer, *[group.axes for group in role.groups])
            yield name, tuple([tuple([_taken(axes, axis) for axis in nest]) for nest in nests])


def _taken(axes: list[Axis | None], axis: Axis) -> int:
    """Return where an axis is among those that are left, and take it out."""
    at = axes.index(axis)
    axes[at] = None
    return at


def _refitted(cut: _Cut, loops: _Problem) -> Any:
    """The tiling of a typical problem for the sizes and strides of another one."""
    typical = cut.tiling
    of_roles = dict(cut.roles)
    fields: dict[str, Any] = {"wide": loops.wide}
    for name in _ROLES[type(loops)]:
        axes = getattr(loops, name)
        if name not in of_roles:
            fields[name] = axes
            continue
        outer, *nests = [tuple([axes[at] for at in places]) for places in of_roles[name]]
        groups = zip(getattr(typical, name).groups, nests, strict=True)
        fields[name] = Role(outer, tuple([Group(group.block, nest) for group, nest in groups]))
    tiling = replace(typical, split=1, **fields)
    if typical.split > 1:
        # As many programs.
        tiles, steps = tiling.grid[0], getattr(tiling, _ROLES[type(loops)][-1]).tiles
        split = min(typical.grid[0] * typical.split // tiles, steps // _STEPS[type(tiling)])
        tiling = replace(tiling, split=even_parts(steps, max(split, 1)))
    return tiling
