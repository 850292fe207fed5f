"""Settings of a thread or a task, or of code that torch.compile traces: for good, in a block, or of a function.

Every function of the package that sets something returns a :class:`Setting`; one that gives something back at the end
of a block returns a :class:`Block`.
"""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from einops_fast.errors import OperandError
from einops_fast.runtime.tracing import is_tracing

P = ParamSpec("P")
T = TypeVar("T")

#: For each kind of block the code that is traced now, and what the innermost block in it says.
_traced: dict[str, tuple[Callable[[], Any], Any]] = {}


class Setting:
    """Something that holds from the call that makes it, as with ``torch.set_grad_enabled``.

    ``with setting():`` has it hold until the end of the block, which may nest. ``@setting()`` has it hold in the calls
    of a function, and nowhere else: in a generator or an ``async`` function, in each of its steps.

    Args:
        begin: has it hold, and returns what ends that.
    """

    def __init__(self, begin: Callable[[], Callable[[], Any]]) -> None:
        self._begin = begin
        self._blocks: list[Callable[[], Any]] = []
        self._end_of_call: Callable[[], Any] | None = begin()

    def __enter__(self) -> None:
        self._leave_it_to_blocks()
        self._blocks.append(self._begin())

    def __exit__(self, *error: object) -> None:
        self._blocks.pop()()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        self._leave_it_to_blocks()
        begin = self._begin
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            steps: Callable[P, T] = _in_steps(partial(Setting, begin), function)
            return steps
        _refuse_steps(function)

        @wraps(function)
        def inside(*arguments: P.args, **options: P.kwargs) -> T:
            with Setting(begin):
                return function(*arguments, **options)

        return inside

    def _leave_it_to_blocks(self) -> None:
        """End what began with the call."""
        if self._end_of_call is not None:
            with suppress(ValueError):  # of another thread or task, where it goes on
                self._end_of_call()
            self._end_of_call = None


class Block(Generic[T]):
    """Something that holds in a ``with`` block, or in the calls of a decorated function; alone, it is a warning.

    Args:
        call: the call that made it, as text.
        make: makes the context manager of one block.
    """

    def __init__(self, call: str, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._call, self._make = call, make
        self._open: list[AbstractContextManager[T]] = []
        self._used = False

    def __enter__(self) -> T:
        self._used = True
        block = self._make()
        found = block.__enter__()
        self._open.append(block)
        return found

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        self._used = True
        make = self._make
        _refuse_steps(function)

        @wraps(function)
        def inside(*arguments: P.args, **options: P.kwargs) -> T:
            with make():
                return function(*arguments, **options)

        return inside

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"{self._call} does nothing by itself: it is for a block, with {self._call}: ...",
                RuntimeWarning,
                stacklevel=2,
            )


def _refuse_steps(function: Any) -> None:
    """Raise OperandError for a function whose call only makes what runs later, outside of the block of the call."""
    for test in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        if test(function):
            name = getattr(function, "__name__", function)
            raise OperandError(f"{name} runs after its call, where a decorator's block is over: write the block in it")


def _in_steps(make: Callable[[], AbstractContextManager[Any]], function: Any) -> Any:
    """Return a generator or ``async`` function that has a block around each of its steps, and none in between."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*arguments: Any, **options: Any) -> Any:
            return (yield from _steps(make, function(*arguments, **options)))

        return generate

    @wraps(function)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await _Awaitable(make, function(*arguments, **options))

    return run


class _Awaitable(NamedTuple):
    """A coroutine with a block around each of its steps."""

    make: Callable[[], AbstractContextManager[Any]]
    coroutine: Any

    def __await__(self) -> Any:
        return _steps(self.make, self.coroutine)


def _steps(make: Callable[[], AbstractContextManager[Any]], steps: Any) -> Generator[Any, Any, Any]:
    resume, given = steps.send, None
    while True:
        with make():
            try:
                found = resume(given)
            except StopIteration as end:
                return end.value
        try:
            resume, given = steps.send, (yield found)
        except BaseException as error:  # also what closes it
            resume, given = steps.throw, error


def holding(variable: ContextVar[T], value: T, kind: str = "") -> Setting:
    """Set a context variable, or the same for code that torch.compile traces now, which can't set one.

    Args:
        variable: what holds the value outside of such code.
        value: a constant; with a ``kind`` it isn't ``None``.
        kind: by which :func:`traced_value` finds the value in such code; without it, the variable is set there too.
    """
    return Setting(partial(_begin, variable, value, kind))


def _begin(variable: ContextVar[Any], value: Any, kind: str) -> Callable[[], Any]:
    if kind and is_tracing():
        before = traced_value(kind)
        _hold(kind, value)
        return partial(_hold, kind, before)
    return partial(variable.reset, variable.set(value))


def traced_value(kind: str) -> Any:
    """What the innermost block of this kind in the code that is traced now says; ``None`` where there is none."""
    found = _traced.get(kind)
    if found is None:
        return None
    traced, value = found
    code = traced()
    return value if code is not None and code is _tracing() else None


def _hold(kind: str, value: Any) -> None:
    """Whoever stops in the middle of a block never leaves it, but what is traced next is another code."""
    if value is None:
        _traced.pop(kind, None)
    else:
        _traced[kind] = weakref.ref(_tracing()), value


def _tracing() -> Any:
    return sys.modules["torch"]._guards.TracingContext.try_get()


# torch.compile calls these while tracing, and takes what they return as it is.
traced_value._dynamo_marked_constant = True  # type: ignore[attr-defined]
_hold._dynamo_marked_constant = True  # type: ignore[attr-defined]
