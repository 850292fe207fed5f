"""What a backend is: which arrays are its own, what it can do, and what each step of a plan becomes.

A backend holds no einsum logic. It describes itself to the planner (:class:`Target`, :class:`Operand`) and
turns each step into a call of its framework; everything else happens in :mod:`einops_fast`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from string import ascii_letters
from time import perf_counter
from typing import TYPE_CHECKING, Any

from einops_fast.errors import OperandError
from einops_fast.planning.steps import (
    Arrange,
    Cast,
    Contraction,
    Diagonal,
    Fused,
    Gemm,
    Multiply,
    Native,
    Select,
    Step,
    Sum,
    View,
)
from einops_fast.planning.target import Numerics, Operand, Target

if TYPE_CHECKING:
    from einops_fast.planning.notation import Subscripts
    from einops_fast.planning.plan import Plan

__all__ = ["Backend", "Likeness", "Numerics", "Operand", "Run", "Target", "as_is", "diagonal_equation", "one_device"]

Run = Callable[..., Any]

Likeness = Callable[[Sequence[Any]], bool]
"""Takes operands."""


class Backend(ABC):
    """One framework. Subclass it, then :func:`einops_fast.register_backend` an instance."""

    #: Name, as in ``patch(name)`` and :func:`explain`.
    name: str
    #: Top-level module of the framework; the backend wakes when it is in ``sys.modules``.
    module: str
    #: Whether its arrays may lie in Fortran order.
    fortran: bool = True
    #: Loops that take ``(equation, *arrays)``, if few elements, in less time than a plan is looked up in.
    loops: Callable[..., Any] | None = None
    #: Takes a call of attention as it was read, in place of a plan, and its arrays by name.
    attend: Callable[[Any, dict[str, Any]], Any] | None = None

    @abstractmethod
    def owns(self, array_type: type) -> bool:
        """Whether arrays of exactly this type are this backend's (asked once per type)."""

    def of_type(self, array_type: type) -> Backend:
        """Return the backend of arrays of this type, which is one of this backend's own."""
        return self

    @abstractmethod
    def signature(self, operands: Sequence[Any]) -> Hashable:
        """Everything about these operands, and about global state, that a plan depends on.

        On the way of every call: keep it fast. Operands that aren't this backend's own either raise or give
        a signature that no own operands have.
        """

    def likeness(self, operands: Sequence[Any], kernels: bool = False) -> Likeness | None:
        """What tells sooner than :meth:`signature` whether what was made for operands is right for others, too.

        It may say no where it is, and raises where that does. ``None`` if there is nothing sooner.

        Args:
            operands: of the call that it was made for.
            kernels: whether kernels of our own run however few elements there are; else these are the library's.
        """
        return None

    def shapes(self, operands: Sequence[Any]) -> Hashable:
        """Return what tells in less time than :meth:`signature` that operands may be the first of their kind."""
        if len(operands) == 2:  # in less time than any number of them
            return operands[0].shape, operands[1].shape
        return tuple([each.shape for each in operands])

    def is_backward(self) -> bool:
        """Whether gradients are being computed now."""
        return False

    def float32_precision(self) -> str:
        """How products of float32 may be made now: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``."""
        return "ieee"

    @abstractmethod
    def inspect(self, array: Any) -> Operand:
        """Shape, strides and dtype of one array."""

    @abstractmethod
    def target(self, operands: Sequence[Any]) -> Target:
        """Where a plan for these operands would run. Raises :class:`OperandError` if they're on two devices."""

    @abstractmethod
    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        """The dtypes of a call on these operands, by the rules of the framework's own einsum."""

    def numerics_of(self, subscripts: Subscripts, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        """As :meth:`numerics`, where those rules depend on what is contracted, too."""
        return self.numerics(operands, dtype, casting)

    def dtype_with(self, operands: Sequence[Any], out: Any) -> Any:
        """The dtype of a call with ``out`` and no ``dtype``; ``None`` where ``out`` has no say in it."""
        return None

    @abstractmethod
    def native(self, equation: str, operands: Sequence[Any], **options: Any) -> Any:
        """The framework's own einsum, also while it is patched."""

    @abstractmethod
    def finish(self, result: Any, out: Any, order: str, casting: str) -> Any:
        """Bring the answer into ``order`` and into ``out``, where asked for."""

    def check_out(self, result: Any, out: Any, casting: str) -> None:
        """Raise OperandError if the result can't be written to ``out``."""
        if tuple(out.shape) != tuple(result.shape):
            raise OperandError(f"out has shape {tuple(out.shape)}, the result {tuple(result.shape)}")

    def destination(self, out: Any, operands: Sequence[Any]) -> Any:
        """Return ``out`` as what a step may write to while it reads these; ``None``: the result has to be copied."""
        return None

    def writing(self, step: Step, out: Operand, adds: bool) -> Run | None:
        """Return what carries out the last step of a plan, and writes to an array like ``out`` in place of a new one.

        It takes the arrays that the step reads, then ``out``; where it ``adds``, then a number that ``out`` is
        multiplied by before the result is added. ``None``: the result has to be copied.
        """
        return None

    def convert(self, value: Any, name: str) -> Any:
        """Turn ``value``, no array of any backend and called ``name`` by callers, into an array of this one's."""
        raise OperandError(f"{name} is of type {type(value).__name__}, the others are {self.name} arrays")

    def writes_to(self, out: Any) -> bool:
        """Return whether results may be written to ``out``, which is no array of this backend's."""
        return False

    @abstractmethod
    def example(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Any:
        """An array that nothing but its layout and dtype will be asked of, contiguous without ``strides`` in elements.

        It takes no memory if it can.
        """

    def trusts_native(self, operands: Sequence[Any]) -> bool:
        """Whether the framework's own einsum is right for these."""
        return True

    def computes(self, operands: Sequence[Any]) -> bool:
        """Whether the framework's own einsum has products and sums of these."""
        return True

    def at_once(self, operands: Sequence[Any], full: int = 0) -> Callable[..., Any] | None:
        """The framework's own einsum, as :attr:`native`, for operands that it takes in less time than planning.

        Args:
            operands: of a call without a plan.
            full: multiply-adds without intermediates; 0 where that isn't known.
        """
        return None

    def product(self, subscripts: Subscripts) -> Callable[..., Any] | None:
        """Return what contracts two operands of any sizes, or gives ``None`` for those that a plan is better for."""
        return None

    def is_recording(self, arrays: Sequence[Any]) -> bool:
        """Return whether a call of these is recorded for arrays of other sizes, too: then nothing is planned."""
        return False

    def may_keep(self, arrays: Sequence[Any]) -> bool:
        """Return whether what is computed from these in this call may be used in later ones."""
        return True

    def versions(self, arrays: Sequence[Any]) -> Hashable:
        """Return what differs once what was kept of these is of no use: after a change in place that is noticed."""
        return ()

    def room(self, operands: Sequence[Any]) -> int | None:
        """Elements that an intermediate may have on the operands' device; ``None`` if that isn't known."""
        return None

    def sums_of(self, part: Any, shape: tuple[int, ...]) -> Any:
        """Return zeros like ``part``, of another shape."""
        raise NotImplementedError

    def in_pieces(self, run: Run, operands: Sequence[Any]) -> Run:
        """Return ``run``, which contracts operands a piece at a time, as a function that can be differentiated."""
        raise OperandError(f"memory_limit is less than this call takes, and {self.name} arrays aren't cut into pieces")

    def gives_c_order(self, equation: str, operands: Sequence[Any]) -> bool:
        """Whether users of the framework's own einsum may rely on it that this result lies in C order."""
        return False

    def own_way(self, subscripts: Subscripts, arrays: Sequence[Any], **options: Any) -> Run | None:
        """Return what computes a call that isn't planned as a whole, for arrays like these; ``None``: plan it.

        The options are those of :func:`einops_fast.fast_einsum`.
        """
        return None

    def planned_parts(self, subscripts: Subscripts, arrays: Sequence[Any]) -> tuple[Backend, Sequence[Any], list[str]]:
        """Return what a call is planned for: the backend, arrays like those, and how they are parts of these."""
        return self, arrays, []

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return the array with another shape; a view where there is one."""
        return array.reshape(shape)

    def memory_order(self, equation: str, operands: Sequence[Any], optimize: bool) -> Sequence[int]:
        """Return the axes of the framework's own result, slowest first, or none where users don't rely on their order.

        Args:
            equation: as the framework reads it.
            operands: the arrays.
            optimize: the framework is asked to choose an order of contraction.
        """
        return ()

    def answer(self, rank: int) -> Run | None:
        """What is done last to a result of this rank; ``None`` for nothing."""
        return None

    def differentiable(self, plan: Plan, run: Run) -> Run:
        """A plan with ``target.gradients``, compiled as ``run``, as a callable that gradients can be taken of."""
        return run

    def enclosed(self, plan: Plan, run: Run) -> Run:
        """A plan, compiled as ``run``, in the state of the framework that it's made for."""
        return run

    def mark(self, array: Any) -> Any:
        """This moment in the work on the device of ``array``; ``None`` where none can be told."""
        return perf_counter()

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two moments; waits for the later one."""
        return float(end - start)

    # What each step becomes. A run takes the arrays that the step reads and returns its result.

    @abstractmethod
    def arrange(self, how: Arrange) -> Run:
        """Permute, then reshape."""

    @abstractmethod
    def cast(self, step: Cast) -> Run: ...

    @abstractmethod
    def diagonal(self, step: Diagonal) -> Run: ...

    def select(self, step: Select) -> Run:
        index = step.index
        return lambda a: a[index]

    @abstractmethod
    def sum(self, step: Sum) -> Run: ...

    @abstractmethod
    def view(self, step: View) -> Run: ...

    @abstractmethod
    def multiply(self, step: Multiply) -> Run: ...

    @abstractmethod
    def gemm(self, step: Gemm) -> Run: ...

    def native_step(self, step: Native) -> Run:
        equation, native = step.equation, self.native

        def run(*operands: Any) -> Any:
            return native(equation, operands)

        return run

    def any_size(self) -> bool:
        """Return whether the framework traces this call, so that the plan has to hold for arrays of any size."""
        return False

    def contraction(self, step: Contraction) -> Run:
        """By operators that hold for arrays of any size; only asked for where ``target.any_size``."""
        raise NotImplementedError

    def split(self, array: Any, axes: Sequence[Sequence[int | None]]) -> Any:
        """Split each axis into axes of these sizes; ``None`` for a size that the axis tells. See :meth:`any_size`."""
        raise NotImplementedError

    def merge(self, array: Any, counts: Sequence[int]) -> Any:
        """Merge neighbouring axes: ``counts`` says how many make up each axis of the result. See :meth:`any_size`."""
        raise NotImplementedError

    def fused(self, step: Fused) -> Run:
        """By library calls, where a backend has no kernels of its own."""
        return self.library(step)

    def library(self, step: Fused) -> Run:
        """The library calls that a kernel has to be faster than."""
        # Imported here because plans are compiled by backends.
        from einops_fast.planning.plan import in_turn

        return in_turn([(self.emit(each), each.reads) for each in step.library], len(step.reads))

    def emit(self, step: Step) -> Run:
        """The call that a step becomes."""
        run: Run = getattr(self, _EMITTERS[type(step)])(step)
        return run


_EMITTERS: dict[type, str] = {
    Cast: "cast",
    Diagonal: "diagonal",
    Fused: "fused",
    Select: "select",
    Sum: "sum",
    View: "view",
    Multiply: "multiply",
    Gemm: "gemm",
    Native: "native_step",
    Contraction: "contraction",
}
"""The method of a backend that each kind of step becomes a call by."""


def as_is(a: Any) -> Any:
    """Return the array: what an arrangement that changes nothing becomes."""
    return a


def diagonal_equation(step: Diagonal) -> str:
    """Return the einsum of a step, for frameworks that have no other diagonals over several axes."""
    source = [""] * sum(map(len, step.groups))
    for letter, group in zip(ascii_letters, step.groups, strict=False):
        for at in group:
            source[at] = letter
    return f"{''.join(source)}->{ascii_letters[: len(step.groups)]}"


def one_device(devices: Sequence[Any]) -> Any:
    """The device that all operands are on.

    Raises:
        OperandError: they are on several.
    """
    for at, device in enumerate(devices):
        if device != devices[0]:
            raise OperandError(
                f"operands 0 and {at} are on two devices, {devices[0]} and {device}; move one of them first"
            )
    return devices[0]
