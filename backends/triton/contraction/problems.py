"""From a fused step to the loops of a kernel, and the orders in which its result may lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einops_fast.backends.triton.contraction.chain.kernel import array_of
from einops_fast.backends.triton.contraction.tiling import FACTOR, LEFT, OUT, RIGHT, Product, fastest
from einops_fast.backends.triton.device.tiling import Axis, by_stride, merge_axes, needs_64_bits
from einops_fast.planning.chains import chain_of
from einops_fast.planning.cost import is_complex
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.steps import Fused, Loop


@dataclass(frozen=True)
class Contraction(Product):
    """Two operands and a result as loops by role; every axis has the strides of left, right and result.

    There may be an array more: a factor of the left operand, or the bias of an epilogue.
    """

    contracted: tuple[Axis, ...]
    epilogue: Epilogue | None = None

    @property
    def summed(self) -> tuple[tuple[Axis, ...], ...]:
        return (self.contracted,)

    @cached_property
    def factored(self) -> bool:
        """Whether the left operand is the product of two arrays."""
        return len(sum(self.roles, ())[0].strides) > FACTOR and self.epilogue is None

    @cached_property
    def results(self) -> int:
        """How many arrays are written."""
        return 2 if self.epilogue is not None and self.epilogue.keeps else 1

    @cached_property
    def moved(self) -> int:
        """Elements of all arrays that are read or written once."""
        axes = [axis for role in (self.batch, *self.roles) for axis in role]
        arrays = range(len(axes[0].strides))
        sizes = [prod(axis.size for axis in axes if axis.strides[array]) for array in arrays]
        return sum(sizes) + (self.results - 1) * sizes[OUT]

    @cached_property
    def regrouped(self) -> bool:
        """Whether the result is contiguous along a batch axis, or along other rows or columns than their operand."""
        sides = ((self.rows, LEFT), (self.columns, RIGHT))
        found = [(fastest(axes, operand), fastest(axes, OUT)) for axes, operand in sides]
        torn = any(read is not None and written is not None and read != written for read, written in found)
        return torn or self.along_batch

    @cached_property
    def along_two(self) -> bool:
        """Whether the operands are contiguous along two different contracted axes."""
        left, right = (fastest(self.contracted, operand) for operand in (LEFT, RIGHT))
        return left is not None and right is not None and left != right

    @cached_property
    def along_batch(self) -> bool:
        """Whether the result is contiguous along a batch axis, of which a tile has one index."""
        return fastest(self.batch, OUT) is not None


@dataclass(frozen=True)
class ChainProblem(Product):
    """A chain of operands and a result as loops by role; for the strides of an axis see :func:`array_of`."""

    links: tuple[tuple[Axis, ...], ...]

    @property
    def summed(self) -> tuple[tuple[Axis, ...], ...]:
        return self.links

    @property
    def depths(self) -> tuple[int, ...]:
        """Extent of each link."""
        return self.extents[3:]


@dataclass(frozen=True)
class Reduction:
    """A product of ``operands`` arrays as loops; in every axis the result's stride follows the operands'."""

    operands: int
    free: tuple[Axis, ...]
    summed: tuple[Axis, ...]

    @property
    def extents(self) -> tuple[int, int]:
        """Elements of the result, and how many products each is the sum of."""
        return prod(axis.size for axis in self.free), prod(axis.size for axis in self.summed)

    @property
    def wide(self) -> bool:
        """Whether an offset, or a position among a role's axes, may not fit in 32 bits."""
        return needs_64_bits(self.free + self.summed, self.extents)

    def size(self, array: int) -> int:
        """Elements of one array."""
        return prod(axis.size for axis in self.free + self.summed if axis.strides[array])


Loops = ChainProblem | Contraction | Reduction


def layouts(step: Fused) -> list[tuple[int, ...]]:
    """Strides that the result may have: C order, then orders in which the kernel's loads and stores agree."""
    kept = [loop for loop in step.loops if loop.kept]
    found = [step.strides or contiguous_strides(step.shape)]
    if not step.any_order or len(kept) < 2:
        return found
    sides = _sides(step)
    if sides is not None:
        batch, rows, columns = sides
        orders = [batch + rows + columns, batch + columns + rows]
    else:
        largest = max(range(len(step.reads)), key=lambda at: prod(loop.size for loop in kept if loop.strides[at]))
        orders = [slowest_first(kept, largest)]
    for order in orders:
        strides = dict(zip((loop.label for loop in order), contiguous_strides([o.size for o in order]), strict=True))
        found.append(tuple(strides[label] for label in step.labels))
    return list(dict.fromkeys(found))


def _sides(step: Fused) -> tuple[list[Loop], list[Loop], list[Loop]] | None:
    """Batch, rows and columns of the result of a matrix product, or of a chain; ``None`` if it is neither."""
    chain = chain_of(step.loops)
    if chain is not None:
        return list(chain.batch), slowest_first(chain.rows, 0), slowest_first(chain.columns, -1)
    if not multiplies_matrices(step):
        return None
    batch, rows, columns = (_of_role(step, role) for role in ("batch", "rows", "columns"))
    return batch, slowest_first(rows, LEFT), slowest_first(columns, RIGHT)


def with_more_rows(step: Fused, dtype: str) -> tuple[Fused, bool]:
    """The step with no fewer rows than columns, and whether its two operands change places for that.

    A tile's columns can be fitted to an odd extent, its rows can't.
    """
    if not multiplies_matrices(step) or len(step.reads) > 2 or is_complex(dtype):
        return step, False
    rows, columns = (prod(loop.size for loop in _of_role(step, role)) for role in ("rows", "columns"))
    if rows >= columns:
        return step, False
    return step.replace(loops=tuple(loop.replace(strides=loop.strides[::-1]) for loop in step.loops)), True


def problem(step: Fused, strides: Sequence[int], dtype: str = "float32") -> Loops:
    """The step as loops by role, with whatever can be joined joined, for a result with these strides.

    No kernel of ours multiplies matrices of complex numbers.
    """
    if is_complex(dtype):
        return as_reduction(step, strides)
    of_result = dict(zip(step.labels, strides, strict=True))
    chain = chain_of(step.loops)
    if chain is not None:

        def axes_of(loops: Iterable[Loop], array: int) -> tuple[Axis, ...]:
            """Axes with their strides where the chain kernel looks for them, in the order of one array."""
            axes = [
                Axis(loop.size, (loop.strides[0], loop.strides[-1], of_result.get(loop.label, 0), *loop.strides[1:-1]))
                for loop in loops
            ]
            return _merged(axes, array)

        last = len(chain.links) - 1
        # A link has the order of a large operand, where it is of one.
        links = [axes_of(link, RIGHT if at == last else array_of(at, last + 2)) for at, link in enumerate(chain.links)]
        batch, rows, columns = (axes_of(loops, OUT) for loops in (chain.batch, chain.rows, chain.columns))
        return ChainProblem(batch, rows, columns, tuple(links))
    if not multiplies_matrices(step):
        return as_reduction(step, strides)
    epilogue = step.epilogue
    of_bias = None if epilogue is None or epilogue.bias is None else dict(zip(step.labels, epilogue.bias, strict=True))

    def role(name: str, array: int) -> tuple[Axis, ...]:
        axes = []
        for loop in _of_role(step, name):
            left, right, *more = loop.strides
            more = more if of_bias is None else [of_bias.get(loop.label, 0)]
            axes.append(Axis(loop.size, (left, right, of_result.get(loop.label, 0), *more)))
        return _merged(axes, array)

    batch, rows, columns = (role(name, OUT) for name in ("batch", "rows", "columns"))
    return Contraction(batch, rows, columns, role("contracted", LEFT), epilogue)


def as_reduction(step: Fused, strides: Sequence[int]) -> Reduction:
    """The same as loops over products, be they of matrices or not."""
    of_result = dict(zip(step.labels, strides, strict=True))
    axes = [(loop.kept, Axis(loop.size, (*loop.strides, of_result.get(loop.label, 0)))) for loop in step.loops]
    free, summed = ([axis for kept, axis in axes if kept == wanted] for wanted in (True, False))
    operands = len(step.reads)
    largest = max(range(operands), key=Reduction(operands, tuple(free), tuple(summed)).size)
    return Reduction(operands, _merged(free, operands), _merged(summed, largest))


def _merged(axes: Iterable[Axis], array: int) -> tuple[Axis, ...]:
    return merge_axes(by_stride(axes, array))


def _of_role(step: Fused, role: str) -> list[Loop]:
    return [loop for loop in step.loops if _role(loop) == role]


def _role(loop: Loop) -> str:
    if not loop.kept:
        return "contracted"
    right = loop.strides[RIGHT]
    left = any(stride for at, stride in enumerate(loop.strides) if at != RIGHT)
    return "rows" if left and not right else "columns" if right and not left else "batch"


def multiplies_matrices(step: Fused) -> bool:
    """Whether elements of both operands are used more than once: there are rows, columns and a sum.

    Of three operands, the first and the last are multiplied element by element to be the left one.
    """
    if len(step.reads) not in (2, 3):
        return False
    roles = {_role(loop) for loop in step.loops if loop.size > 1}
    return roles >= {"rows", "columns", "contracted"}


def slowest_first(loops: Iterable[Loop], array: int) -> list[Loop]:
    """The loops in the order in which they lie in one array."""
    return sorted(loops, key=lambda loop: -abs(loop.strides[array]))
