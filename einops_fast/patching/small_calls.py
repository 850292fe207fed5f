"""Calls of NumPy's einsum that are left to its own loops at once, because nothing is faster.

The operands are so small that looking up a plan and calling BLAS takes longer than the loops. :func:`loops_suffice` is
the one place that decides. It says no while there is an observer, which sees every call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from itertools import combinations
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from einops_fast.observing.observers import observed
from einops_fast.patching.function_body import FunctionBody
from einops_fast.runtime import tracing
from einops_fast.runtime.limits import limit_now
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

E = TypeVar("E", bound=Callable[..., Any])


class _Rule(NamedTuple):
    """Which calls of one equation, or with one count of lists, are left to the loops."""

    # places among the operands of arrays that have all labels between them
    first: int
    second: int
    most: int  # elements of either of these, of real numbers
    most_complex: int  # the same of other numbers
    others: tuple[int, ...] = ()  # places of further arrays that have the rest of the labels, and as many elements


_ALONE = 1 << 62, 1 << 62
"""Any single operand: the steps of its plan are the loops, too."""

_ONE = 1 << 14, 1 << 12
"""The largest of two operands that has all labels, of real and of complex numbers: 1000 iterations take 0.3 µs."""

_DOT = 1 << 13, 1 << 12
"""The same of sums over all labels: longer ones are more exact in pieces."""

_TWO = 16 * 16, 10 * 10
"""The largest matrices of a product, of which the loops take as long as a plan. In complex numbers they're slower."""

_STACKS = 128, 128
"""The same for more labels than three: their innermost loops are shorter."""

_SEVERAL = 32, 32
"""The same for more arrays than two, of which a plan makes shorter loops."""

_LISTS = 1 << 10, 26 * 26
"""The same for a call with lists of labels, which take 10 µs to become an equation."""

_FEW = 1 << 11
"""Iterations over the labels of more than two arrays that take less time than to call one function for each pair."""

WITH_OUT = 3
"""Times as many elements as that, where a plan would copy its result to ``out``."""

REAL = 13
"""Number of the last dtype of real numbers, but for half precision."""

FIRST_OF_OTHERS = 256
"""The least number of a dtype that another package has registered, such as ml_dtypes; NumPy's own have less."""

_rules: dict[str | int, _Rule] = emptied_with_plans({})
"""By equation, or by the count of arguments of a call with lists."""

known_loops: dict[Hashable, tuple[type, Callable[..., Any], int, Callable[..., Any] | None]] = emptied_with_plans({})
"""By equations that mean the same to loops as to ``fast_einsum``: the type of plain arrays, the loops, the most
elements of each of one or two arrays of real numbers that they are the fastest for, and what multiplies two larger ones
of any sizes, or returns ``None``.

Lists of labels that the loops take always mean the same: they are there by the type of the arrays.
"""


def know_loops(spelled: str | type, kind: type, loops: Callable[..., Any], product: Callable[..., Any] | None) -> None:
    """Keep an equation, or the type of arrays between lists of labels, in :data:`known_loops`."""
    keep(known_loops, spelled, (kind, loops, _learn(spelled).most if isinstance(spelled, str) else -1, product))


def loops_first(planned: Callable[[Sequence[Any]], Any]) -> Callable[[E], E]:
    """Have an einsum leave small calls without options to the loops, and others without options to ``planned``.

    To fill in ten options takes 3% of a small einsum, as does each call that is made here.
    """

    def decorated(with_options: E) -> E:
        @wraps(with_options)
        def einsum(*operands: Any, **options: Any) -> Any:
            if tracing.is_compiling() or limit_now():
                return with_options(*operands, **options)
            out: Any = None
            if options:
                out = options.get("out")
                if len(options) > 1 or (out is None and type(options.get("optimize")) is not bool):
                    return with_options(*operands, **options)
            spelled: Any = operands[0] if operands else None
            count = len(operands)
            in_text = type(spelled) is str
            if not in_text:
                spelled = type(spelled)
            if spelled in known_loops:
                kind, loops, most, product = known_loops[spelled]
                # Written out for one or two arrays: each call that is made here takes 2% of a small einsum.
                if in_text and 2 <= count <= 3:
                    one, other = operands[1], operands[-1]
                    small = plain = type(one) is kind is type(other)
                    # Of empty arrays, the loops don't compare all extents.
                    small = small and 0 < one.size <= most >= other.size
                    small = small and (dtype := one.dtype) is other.dtype and 0 <= dtype.num <= REAL
                    if plain and not small:
                        if product is not None and out is None:
                            result = product(*operands[1:])
                            if result is not None:
                                return result
                        small = loops_suffice(operands, 1 if out is None else WITH_OUT)
                elif not in_text and count <= 5:
                    small = type(operands[count // 4 * 2]) is kind and loops_suffice(operands)
                elif in_text and count == 4:
                    small = type(operands[1]) is kind is type(operands[2]) and type(operands[3]) is kind
                    small = small and loops_suffice(operands)
                else:
                    small = loops_suffice(operands)
                    for each in operands[1:] if in_text else operands[: count // 2 * 2 : 2]:
                        if type(each) is not kind:  # some of the arrays told that the loops suffice
                            small = False
                if small and out is not None:
                    small = type(out) is kind and getattr(out, "dtype", None) is operands[in_text].dtype
                if small:
                    try:
                        return loops(*operands) if out is None else loops(*operands, out=out)
                    except Exception:  # a plan says what is wrong
                        pass
            # Which pairs come first is no question of one or two arrays.
            if options and (out is not None or count > (3 if in_text else 5)):
                return with_options(*operands, **options)
            return planned(operands)

        return einsum  # type: ignore[return-value]

    return decorated


def loops_suffice(operands: Sequence[Any], times: int = 1) -> bool:
    """Return whether NumPy's loops are the fastest for the operands of an einsum of either form, which may be wrong.

    With ``out``, whose result a plan copies, they are it for so many ``times`` as many elements.
    """
    try:
        key = operands[0]
        if type(key) is not str:
            key = len(operands)
        # Written out: each call that is made here takes 2% of a small einsum.
        try:
            first, second, most, most_complex, others = _rules[key]
        except KeyError:
            first, second, most, most_complex, others = _learn(key)
        one, other = operands[first], operands[second]
        size, other_size, dtype = one.size, other.size, one.dtype
        if times > 1:
            most, most_complex = times * most, times * most_complex
        # Of an empty array the loops take a diagonal that isn't there: they miss that a label has another size, too.
        if 0 < size <= most >= other_size:
            if others and not _are_few(operands, others, size * other_size):
                return False
            number = dtype.num
            if 0 <= number <= REAL and (dtype is other.dtype or 0 <= other.dtype.num <= REAL):
                return True
            # There are none of other packages' dtypes, some of which have no number.
            of_numpy = 0 <= number < FIRST_OF_OTHERS > other.dtype.num >= 0
            return of_numpy and size <= most_complex >= other_size  # type: ignore[no-any-return]
        return False
    except (AttributeError, IndexError, TypeError):  # operands that aren't arrays, or too few of them
        return False


def _are_few(operands: Sequence[Any], others: tuple[int, ...], iterations: int) -> bool:
    """Return whether these arrays of real numbers, too, make few iterations of the loops."""
    for at in others:
        each = operands[at]
        iterations *= each.size
        if not 0 < iterations <= _FEW or not 0 <= each.dtype.num <= REAL:
            return False
    return True


def own_loops(native: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what NumPy's einsum, as written in Python, calls without options; ``None`` for any other function."""
    loops: Callable[..., Any] | None = getattr(native, "__globals__", {}).get("c_einsum")
    return loops


def _learn(key: str | int) -> _Rule:
    """Return the rule for an equation, or for a count of operands and lists, and keep it if nobody observes."""
    if observed():
        return _Rule(0, 0, -1, -1)
    rule = _of_equation(key) if isinstance(key, str) else _of_lists(key)
    keep(_rules, key, rule)
    return rule


def _of_equation(equation: str) -> _Rule:
    """Bound the iterations by the size of one operand, of two, or of several, that have all labels."""
    terms = [set(term) for term in equation.partition("->")[0].replace(" ", "").split(",")]
    if len(terms) == 1:
        return _Rule(1, 1, *_ALONE)
    labels = set().union(*terms)
    for at, term in enumerate(terms, 1):
        if term == labels:
            return _Rule(at, at, *(_ONE if equation.partition("->")[2].strip() else _DOT))
    for (at, term), (other, others) in combinations(enumerate(terms, 1), 2):
        if term | others == labels:
            return _Rule(at, other, *(_SEVERAL if len(terms) > 2 else _TWO if len(labels) <= 3 else _STACKS))
    places, left = list[int](), labels
    while left:
        at = max(range(len(terms)), key=lambda at: len(terms[at] & left))
        places.append(at + 1)
        left = left - terms[at]
    return _Rule(places[0], places[1], _FEW, -1, tuple(places[2:]))


def _of_lists(count: int) -> _Rule:
    """Bound the iterations by the sizes of all arrays: one for two or three arguments, two for four or five."""
    if count in (2, 3):
        return _Rule(0, 0, *_ALONE)
    return _Rule(0, 2, *_LISTS) if count in (4, 5) else _Rule(0, 2, _FEW, -1, tuple(range(4, count // 2 * 2, 2)))


class SmallCalls:
    """Exchanges the code of ``numpy.einsum`` for one that calls NumPy's loops, or our function, and puts it back.

    NumPy's C code asks a generator for the operands that may have ``__array_function__``. A function that returns them
    as a tuple takes 0.3 µs less, which pays for :func:`loops_suffice`.
    """

    def __init__(self, body: FunctionBody) -> None:
        self._body, names = body, body.native.__globals__
        # Somebody may have put a function of their own in the place of NumPy's.
        self._code = _loops_first.__code__ if own_loops(body.native) else None
        dispatcher = names.get("_einsum_dispatcher")
        self._dispatcher = FunctionBody(dispatcher) if isinstance(dispatcher, FunctionType) else None

    def exchange(self, target: Callable[..., Any]) -> None:
        """Have every call that isn't small call ``target``."""
        defaults = _loops_first.__kwdefaults__
        exchange = self._body.exchange
        exchange(target, self._code, defaults, _einops_fast_loops_suffice=loops_suffice, _einops_fast_rules=_rules)
        if self._dispatcher is not None:
            self._dispatcher.exchange(target, _operands_to_dispatch.__code__)

    def put_back(self) -> None:
        """Give NumPy's functions their own code again."""
        self._body.put_back()
        if self._dispatcher is not None:
            self._dispatcher.put_back()


def _loops_first(*operands: Any, out: Any = None, optimize: Any = ..., **options: Any) -> Any:
    # Runs among the globals of NumPy's module, which has c_einsum. With optimize=False, NumPy does the same.
    try:
        # As in loops_suffice, which is asked about the rest: to call it takes 3% of a small einsum.
        key = operands[0]
        if type(key) is not str:
            key = len(operands)
        first, second, most, _, others = _einops_fast_rules[key]  # type: ignore[name-defined]  # noqa: F821
        one, other = operands[first], operands[second]
        small = others or one.size <= most >= other.size
        if small and (others or not one.size or one.dtype is not other.dtype or not 0 <= one.dtype.num <= 13):
            small = _einops_fast_loops_suffice(operands)  # type: ignore[name-defined]  # noqa: F821
    except (AttributeError, IndexError, KeyError, TypeError):
        small = _einops_fast_loops_suffice(operands)  # type: ignore[name-defined]  # noqa: F821
    if out is not None and not small:
        small = _einops_fast_loops_suffice(operands, 3)  # type: ignore[name-defined]  # noqa: F821
    if small:
        # To choose an order of contraction takes NumPy longer than the loops.
        if (optimize is ... or optimize is False) and not options:
            return c_einsum(*operands) if out is None else c_einsum(*operands, out=out)  # type: ignore[name-defined]  # noqa: F821
        if optimize is True and out is None and not options:
            try:
                # Where NumPy chooses an order, labels from 26 on come before others in a result that no list names.
                if type(operands[0]) is str or len(operands) % 2 or max(map(max, operands[1::2])) < 26:
                    return c_einsum(*operands)  # type: ignore[name-defined]  # noqa: F821
            except (TypeError, ValueError):  # an ellipsis that is summed, or a label True, which NumPy takes then
                pass
        if optimize is ... or optimize is False:
            if out is not None:
                options["out"] = out
            return c_einsum(*operands, **options)  # type: ignore[name-defined]  # noqa: F821
    # One or two arrays have no intermediates.
    if optimize is not ... and not (optimize is False and len(operands) <= 3):
        options["optimize"] = optimize
    if out is not None:
        options["out"] = out
    return _einops_fast_target(*operands, **options)  # type: ignore[name-defined]  # noqa: F821


def _operands_to_dispatch(*operands: Any, out: Any = None, optimize: Any = None, **kwargs: Any) -> Any:
    return operands if out is None else (*operands, out)
