"""Loops whose sizes and strides a kernel is told when it runs: one compiled kernel serves all lengths of a class.

A *pattern* is a tiling as such a kernel sees it: what it is compiled for (which axes there are and which are
neighbours in memory, blocks, by what numbers divide) has a value, every other size or stride is a :class:`Number`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any

from einops_fast.backends.triton.device.tiling import Axis, Group, Role


@dataclass(frozen=True)
class Number:
    """A size or stride that isn't known while compiling: ``numbers[at] * unit``.

    That of a size that positions are divided by is followed by the multiplier and the shift that do so; of ``run``
    positions of a tile all have the same quotient.
    """

    at: int
    unit: int
    run: int = 1


_Value = int | Number


@dataclass(frozen=True)
class Nest:
    """Axes counted through as one: for each array its steps, a size and a stride each, the last the fastest."""

    steps: tuple[tuple[tuple[_Value, _Value], ...], ...]


@dataclass(frozen=True)
class Pattern:
    """A tiling, role or group without sizes and strides: its fields, and what else its kernel reads, by name."""

    kind: type
    parts: tuple[tuple[str, Any], ...]

    def __getattr__(self, name: str) -> Any:
        for key, value in self.__dict__.get("parts", ()):
            if key == name:
                return value
        raise AttributeError(name)

    def missing(self, array: int) -> bool:
        """Whether the array has none of a group's axes."""
        return not self.absent or bool(self.absent[array])


def _pattern(kind: type, **parts: Any) -> Pattern:
    return Pattern(kind, tuple(parts.items()))


_SUMMED = "contracted", "summed"
"""Roles that a program walks along, of which masks and further steps cost time in the innermost loop."""

_PARTS = 4
"""Elements of a partial result that a thread stores at once: in float32, or wider."""

_OPTIONS = "warps", "stages"
"""Fields that the compiler reads, not the kernel."""


def generic(tiling: Any, vector: int, in_chunks: bool) -> tuple[Pattern, tuple[int, ...]]:
    """Return the pattern of a tiling, and the numbers that a kernel compiled for it is told for this one.

    A thread loads at most a ``vector`` of elements at once; ``in_chunks`` is for sums that have some, see the tiling.
    """
    roles = {each.name: getattr(tiling, each.name) for each in fields(tiling)}
    axes = [axis for value in roles.values() for axis in _axes(value)]
    told = _Told(axes, vector)
    parts: dict[str, Any] = {}
    for name, value in roles.items():
        if isinstance(value, Role):
            parts[name] = told.role(value, name in _SUMMED)
        elif isinstance(value, tuple) and value and isinstance(value[0], Axis):
            parts[name] = told.nest(value)
        elif name not in _OPTIONS:
            parts[name] = value
    if tiling.split > 1:
        reach = tiling.reach
        parts |= {"split": told.number(tiling.split), "reach": told.number(reach, gcd(reach, _PARTS))}
    chunk = tiling.chunk if in_chunks else 0
    if tiling.epilogue is not None and tiling.epilogue.bias is not None:
        # The axes have its strides.
        parts["epilogue"] = replace(tiling.epilogue, bias=())
    parts |= {"chunk": told.number(chunk) if chunk else 0, "in_two": getattr(tiling, "in_two", False)}
    return _pattern(type(tiling), **parts), tuple(told.numbers)


def _axes(value: Any) -> Iterable[Axis]:
    if isinstance(value, Role):
        return value.axes
    return [axis for axis in value if isinstance(axis, Axis)] if isinstance(value, tuple) else ()


class _Told:
    """The numbers that a kernel is told, in the order in which they are asked for."""

    def __init__(self, axes: Iterable[Axis], vector: int) -> None:
        self.numbers: list[int] = []
        self._vector = vector
        by_array = list(zip(*[axis.strides for axis in axes], strict=True))
        # Where an array has no neighbours, nothing of it is loaded at once.
        self._units = [
            gcd(vector, *[stride for stride in strides if abs(stride) > 1]) if {1, -1} & {*strides} else 1
            for strides in by_array
        ]

    def number(self, value: int, unit: int = 1) -> Number:
        self.numbers.append(value // unit)
        return Number(len(self.numbers) - 1, unit)

    def nest(self, axes: tuple[Axis, ...], block: int = 1) -> Nest:
        return Nest(tuple([self._steps(axes, array, block) for array in range(len(axes[0].strides))]) if axes else ())

    def role(self, role: Role, summed: bool) -> Pattern:
        groups = tuple([self._group(group, summed) for group in role.groups])
        tiles = self._tiles(role.tiles, summed or not role.axes)
        return _pattern(Role, outer=self.nest(role.outer), groups=groups, block=role.block, tiles=tiles)

    def _steps(self, axes: tuple[Axis, ...], array: int, block: int) -> tuple[tuple[_Value, _Value], ...]:
        joined = axes[0].joined(axes[1:], array)
        last = joined[-1]
        # So many neighbours differ along the last axis only.
        run = min(gcd(last.size, self._vector), block) if abs(last.strides[array]) == 1 else 1
        steps: list[tuple[_Value, _Value]] = []
        for axis in joined:
            stride = axis.strides[array]
            size = self._divisor(axis.size, abs(stride) == 1, run) if steps else 0
            steps.append((size, stride if abs(stride) <= 1 else self.number(stride, self._units[array])))
        return tuple(steps)

    def _divisor(self, size: int, neighbours: bool, run: int) -> Number:
        """A size of two at least, with what positions below 2 ** 31 are multiplied with and shifted by to divide."""
        number = replace(self.number(size, gcd(size, self._vector) if neighbours else 1), run=run)
        shift = (size - 1).bit_length() - 1
        multiplier = -(-(1 << 32 + shift) // size)
        self.numbers += multiplier - (1 << 32 if multiplier >= 1 << 31 else 0), shift
        return number

    def _group(self, group: Group, summed: bool) -> Pattern:
        arrays = range(len(group.axes[0].strides) if group.axes else 0)
        neighbours = any(abs(axis.strides[array]) == 1 for axis in group.axes for array in arrays)
        extent: _Value = 1
        if group.axes:
            extent = self.number(group.extent, gcd(group.extent, self._vector) if neighbours else 1)
        return _pattern(
            Group,
            block=group.block,
            axes=self.nest(group.axes, group.block),
            step=group.step,
            start=group.start,
            extent=extent,
            tiles=self._tiles(group.tiles, summed or not group.axes),
            even=group.even and (summed or not group.axes),
            absent=tuple([group.missing(array) for array in arrays]),
        )

    def _tiles(self, tiles: int, one_is_known: bool) -> _Value:
        return 1 if tiles == 1 and one_is_known else self.number(tiles)
