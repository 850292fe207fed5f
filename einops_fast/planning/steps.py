"""The instructions of a plan: small immutable records, independent of any framework.

A plan is a tuple of steps over numbered slots. Slots ``0 .. n-1`` hold the operands; the result of step
``t`` goes to slot ``n + t``; the last slot is the answer. Every step names the slots it reads, the axes of
its result (one letter each) and the result's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any, TypeVar

from einops_fast.record import Record

if TYPE_CHECKING:
    from einops_fast.planning.epilogue import Epilogue


class Arrange(Record):
    """How a step reads an array: permute its axes, then reshape. Both are optional."""

    perm: tuple[int, ...] | None = None  # axis order, as in `numpy.transpose`; `None` leaves the axes as they are
    shape: tuple[int, ...] | None = None  # shape after the permutation; `None` leaves it
    moves: str = ""  # why the elements have to be copied into C order first, in words; empty for a view

    @property
    def trivial(self) -> bool:
        """Whether the array is read just as it is."""
        return self.perm is None and self.shape is None and not self.moves


AS_IS = Arrange()


class _Base(Record):
    reads: tuple[int, ...]
    labels: str
    shape: tuple[int, ...]


class Cast(_Base):
    """Convert the operand to another dtype (a name such as ``'float32'``); ``in_order`` if to C order, too."""

    dtype: str
    in_order: bool = False


class Diagonal(_Base):
    """Take the diagonal over repeated axes: result axis ``i`` runs along all of ``groups[i]`` at once."""

    groups: tuple[tuple[int, ...], ...]


class Select(_Base):
    """Drop ``axes`` by taking index 0 of each: expanded axes, whose stride is 0."""

    axes: tuple[int, ...]

    @property
    def index(self) -> tuple[int | slice, ...]:
        """What arrays are indexed by for it."""
        rank = len(self.axes) + len(self.shape)
        return tuple([0 if at in self.axes else slice(None) for at in range(rank)])


class Sum(_Base):
    """Sum over ``axes``, keeping the operand's dtype."""

    axes: tuple[int, ...]


class View(_Base):
    """Rearrange one operand; where ``how.moves`` is empty the result shares the operand's memory."""

    how: Arrange


class Multiply(_Base):
    """Elementwise product with broadcasting, then a sum over the last ``summed`` axes of the product.

    ``left`` and ``right`` bring the operands to the axes (result axes, summed axes), with size 1 where an
    operand lacks an axis; ``full`` is the number of elements of the product. Where ``block`` isn't 0, no more of
    them than that are made at a time, and each block is summed while it is in the cache. ``runs`` is how often the
    innermost loop begins, where that makes a difference.
    """

    left: Arrange
    right: Arrange
    summed: int
    full: int
    block: int = 0
    runs: int = 0


class Gemm(_Base):
    """A batched matrix product.

    ``left`` brings the first operand to ``(*batch, m, k)`` and ``right`` the second to ``(*batch, k, n)``;
    a batch axis that an operand lacks has size 1 there. With ``transpose_left`` (``transpose_right``) the
    operand is brought to ``(*batch, k, m)`` (``(*batch, n, k)``) instead and the GEMM transposes it.

    The product ``(*batch, m, n)`` is reshaped to ``shape``, its separate axes. If ``buffer`` is set, the
    product is written in place instead: an array of ``shape`` is allocated in C order, and ``buffer`` is how
    it is seen as ``(*batch, m, n)``.
    """

    left: Arrange
    right: Arrange
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    transpose_left: bool = False
    transpose_right: bool = False
    buffer: Arrange | None = None


E = TypeVar("E", bound="_Equation")


class _Equation(_Base):
    equation: str

    @classmethod
    def of(
        cls: type[E], reads: tuple[int, ...], inputs: Sequence[str], output: str, shape: tuple[int, ...], *more: Any
    ) -> E:
        """The step for these labels, in letters that any framework's einsum takes; ``more``: its other attributes."""
        equation = ",".join(inputs) + "->" + output
        if not equation.isascii():
            letters = dict(zip(dict.fromkeys("".join(inputs)), ascii_letters, strict=False))
            equation = "".join(letters.get(char, char) for char in equation)
        return cls(reads, output, shape, equation, *more)


class Native(_Equation):
    """The framework's own einsum on ``equation`` (letters), because of ``reason``.

    ``full`` is the number of multiply-adds over all labels. ``plain``: of a dtype that the library has a GEMM of.
    """

    reason: str
    full: int
    plain: bool = False


class Contraction(_Equation):
    """A contraction of one or two operands by operators that hold for all sizes, not only those of the plan.

    ``equation`` and ``full`` are as in :class:`Native`.
    """

    full: int


class Loop(Record):
    """One axis of a loop nest."""

    label: str  # its letter
    size: int  # its extent
    # of the arrays that are read, in elements; 0 where an array lacks the axis, or is expanded
    strides: tuple[int, ...]
    kept: bool  # whether the result has the axis; if not, it is summed over


class Fused(_Base):
    """A sum of products, in one kernel that takes every operand with the strides it has."""

    loops: tuple[Loop, ...]  # all axes; those of the result first, in the order of `labels`
    any_order: bool  # the result's axes may lie in memory in any order; if not, they are in C order
    # the same by library calls. They read the operands as slots 0, 1, … and may be what is run after all: that is
    # decided when operands are at hand, by prediction or by measurement.
    library: tuple[Step, ...]
    # what is done to the sums, if anything; a bias comes behind the operands. Only a product of two matrices has
    # one, and none that a plan makes.
    epilogue: Epilogue | None = None
    # of the result in C order, in elements, where its rows have gaps between them; `None` for no gaps
    strides: tuple[int, ...] | None = None
    # the result, in C order, is written to an array behind the operands, and to none that is made for it
    placed: bool = False
    # operands of complex numbers that are views of their conjugates: what is in memory isn't what they stand for
    conjugated: tuple[int, ...] = ()


Step = Cast | Diagonal | Fused | Select | Sum | View | Multiply | Gemm | Native | Contraction
