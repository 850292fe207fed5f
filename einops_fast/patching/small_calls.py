"""Calls of NumPy's einsum that are left to its own loops at once, because nothing is faster.

The operands are so small that looking up a plan and calling BLAS takes longer than the loops. :func:`loops_suffice` is
the one place that decides. It says no while there is an observer, which sees every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache, wraps
from itertools import combinations
from types import FunctionType
from typing import Any, TypeVar

from einops_fast.observing.observers import observed
from einops_fast.patching.function_body import FunctionBody
from einops_fast.runtime import tracing
from einops_fast.runtime.limits import limit_now
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

E = TypeVar("E", bound=Callable[..., Any])

_Loops = Callable[..., Any]


_ALONE = 1 << 62, 1 << 62
"""The most elements of an operand, of real and of complex numbers; here of a single one, whose plan is the loops, too.

Each bound holds for all operands. Those that share their labels bound the iterations: 1000 take 0.3 µs.
"""

_ONE = 1 << 14, 1 << 12
"""Of operands one of which has all labels."""

_DOT = 1 << 13, 1 << 12
"""The same of sums over all labels: longer ones are more exact in pieces."""

_TWO = 16 * 16, 10 * 10
"""Of matrices of a product, of which the loops take as long as a plan. In complex numbers they're slower."""

_STACKS = 128, 128
"""The same for more labels than three: their innermost loops are shorter."""

_SEVERAL = 32, 32
"""Of more arrays than two, two of which have all labels: a plan makes shorter loops."""

_LISTS = 1 << 10, 26 * 26
"""Of two arrays with lists of labels, which take 10 µs to become an equation."""

_FEW = 1 << 11
"""Iterations over the labels of more than two arrays that take less time than to call one function for each pair."""

_WITH_OUT = 3
"""Times as many elements where a plan would copy its result to ``out``."""

_AUTO = "auto"  # interned, as all names in code are

REAL = 13
"""Number of the last dtype of real numbers, but for half precision."""

FIRST_OF_OTHERS = 256
"""The least number of a dtype that another package has registered, such as ml_dtypes; NumPy's own have less."""

_Rule = tuple[int, tuple[int, ...], int, int, int]

_rules: dict[str | int, _Rule] = emptied_with_plans({})
"""By equation, or by the count of arguments of a call with lists: the places of the first array and of the others, and
the most elements that each may have: of real numbers, of these beside ``out``, and of other numbers."""

known_loops: dict[str | int, tuple[Any, _Loops, _Loops | None, int, _Rule]] = emptied_with_plans({})
"""By equations that mean the same to loops as to ``fast_einsum``: the type of plain arrays, the loops, what multiplies
two arrays of any sizes that are too large for these, or returns ``None``, the count of arguments, and the rule.

Lists of labels that the loops take always mean the same: they are there by the count of arguments.
"""


def know_loops(spelled: str | int, kind: type, loops: _Loops, product: _Loops | None) -> None:
    """Keep an equation, or the count of arguments of a call with lists, in :data:`known_loops`."""
    rule = _learn(spelled)
    count = spelled if isinstance(spelled, int) else len(rule[1]) + 2
    keep(known_loops, spelled, (kind, loops, product, count, rule))


def loops_first(planned: Callable[[Sequence[Any]], Any]) -> Callable[[E], E]:
    """Have an einsum leave small calls to the loops, and others without options to ``planned``.

    To fill in ten options takes 3% of a small einsum, as does each call that is made here.
    """

    def decorated(with_options: E) -> E:
        @wraps(with_options)
        def einsum(*operands: Any, out: Any = None, optimize: Any = _AUTO, **options: Any) -> Any:
            given = optimize is _AUTO or type(optimize) is bool
            if not (operands and given and (not options or _loops_take(options))):
                return with_options(*operands, out=out, optimize=optimize, **options)
            spelled: Any = operands[0]
            if type(spelled) is not str:
                spelled = len(operands)
            if spelled in known_loops:
                kind, loops, product, count, (first, others, most, beside_out, most_complex) = known_loops[spelled]
                if len(operands) == count and type(one := operands[first]) is kind and not limit_now():
                    dtype = one.dtype
                    if out is not None:
                        most = beside_out if type(out) is kind and out.dtype is dtype else -1
                    if not 0 <= dtype.num <= REAL:
                        most = most_complex if 0 < dtype.num < FIRST_OF_OTHERS and most > 0 else -1
                    # Of empty arrays, the loops don't compare all extents.
                    small = 0 < one.size <= most and (not options or len(others) > 0)
                    for at in others:
                        each = operands[at]
                        if type(each) is not kind or not 0 < each.size <= most:
                            small = False
                        elif each.dtype is not dtype:
                            small = small and (0 <= each.dtype.num <= REAL or loops_suffice(operands, out is not None))
                    if small:
                        try:
                            if out is not None:
                                options["out"] = out
                            return loops(*operands, **options) if options else loops(*operands)
                        except Exception:  # a plan says what is wrong
                            options.pop("out", None)
                    elif product is not None and out is None and not options:
                        result = product(*operands[1:])
                        if result is not None:
                            return result
            if options or tracing.is_compiling() or limit_now():
                return with_options(*operands, out=out, optimize=optimize, **options)
            # Which pairs come first is no question of one or two arrays.
            if out is None and (optimize is _AUTO or len(operands) <= (3 if type(spelled) is str else 5)):
                return planned(operands)
            return with_options(*operands, out=out, optimize=optimize)

        # torch.compile follows this instead: it would guard what the table of loops holds.
        vars(einsum)["_torchdynamo_inline"] = with_options
        return einsum  # type: ignore[return-value]

    return decorated


def _loops_take(options: Mapping[str, Any]) -> bool:
    """Return whether options mean the same to NumPy's loops, of two arrays and more; of one they return a view."""
    has_dtype = "dtype" in options
    if len(options) != has_dtype + ("order" in options):
        return False
    try:
        return not has_dtype or _is_real(options["dtype"])
    except TypeError:  # of another framework, or one that can't be hashed
        return False


@lru_cache(maxsize=64)
def _is_real(dtype: Any) -> bool:
    """Return whether a dtype, however it is spelled, is one of real numbers."""
    import numpy as np

    found = np.dtype(dtype)
    return found.isnative and 0 < found.num <= REAL


def loops_suffice(operands: Sequence[Any], has_out: bool = False) -> bool:
    """Return whether NumPy's loops are the fastest for the operands of an einsum of either form, which may be wrong."""
    try:
        key = operands[0] if type(operands[0]) is str else len(operands)
        first, others, most, beside_out, most_complex = _rules.get(key) or _learn(key)
        most = beside_out if has_out else most
        for at in (first, *others):
            each = operands[at]
            number = each.dtype.num
            if not 0 <= number <= REAL:
                most = most_complex
            # Of an empty array the loops take a diagonal that isn't there: they miss that a label has another size,
            # too. There are none of other packages' dtypes, some of which have no number.
            if not (0 < each.size <= most and 0 <= number < FIRST_OF_OTHERS):
                return False
        return True
    except (AttributeError, IndexError, TypeError):  # operands that aren't arrays, or too few of them
        return False


def own_loops(native: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return what NumPy's einsum, as written in Python, calls without options; ``None`` for any other function."""
    loops: Callable[..., Any] | None = getattr(native, "__globals__", {}).get("c_einsum")
    return loops


def _learn(key: str | int) -> _Rule:
    """Return the rule for an equation, or for a count of operands and lists, and keep it if nobody observes."""
    if isinstance(key, str):
        terms = [set(term) for term in key.partition("->")[0].replace(" ", "").split(",")]
        places, bounds = range(1, len(terms) + 1), _of_terms(terms, not key.partition("->")[2].strip())
    else:
        places, bounds = range(0, max(key // 2 * 2, 1), 2), _of_lists(key)
    if observed():
        return places[0], tuple(places[1:]), -1, -1, -1
    most, most_complex = bounds
    rule = places[0], tuple(places[1:]), most, _WITH_OUT * most, most_complex
    keep(_rules, key, rule)
    return rule


def _of_terms(terms: Sequence[Set[str]], is_dot: bool) -> tuple[int, int]:
    """Bound the iterations by the operands that have all labels: one, two, or as many as it takes."""
    left = labels = set[str]().union(*terms)
    if len(terms) == 1:
        return _ALONE
    if labels in terms:
        return _DOT if is_dot else _ONE
    if any(one | other == labels for one, other in combinations(terms, 2)):
        return _SEVERAL if len(terms) > 2 else _TWO if len(labels) <= 3 else _STACKS
    count = 0
    while left:
        count, left = count + 1, left - max(terms, key=lambda term: len(term & left))
    return int(_FEW ** (1 / count)), -1


def _of_lists(count: int) -> tuple[int, int]:
    """Bound the sizes of all arrays: one for two or three arguments, two for four or five."""
    if count < 6:
        return _ALONE if count < 4 else _LISTS
    # Of arrays in a chain, every second one and the last have all labels.
    return int(_FEW ** (2 / (count // 2 + 1))), -1


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
        first, others, most, beside_out, most_complex = _einops_fast_rules[key]  # type: ignore[name-defined]  # noqa: F821
        one = operands[first]
        dtype = one.dtype
        if out is not None:
            most = beside_out
        if not 0 <= dtype.num <= 13:
            most = most_complex if 0 < dtype.num < 256 else -1
        small = 0 < one.size <= most
        for at in others:
            each = operands[at]
            if not 0 < each.size <= most:
                small = False
            elif each.dtype is not dtype:
                small = small and (0 <= each.dtype.num <= 13 or _einops_fast_loops_suffice(operands, out is not None))  # type: ignore[name-defined]  # noqa: F821
    except (AttributeError, IndexError, KeyError, TypeError):
        small = _einops_fast_loops_suffice(operands, out is not None)  # type: ignore[name-defined]  # noqa: F821
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
    return operands if out is None else operands + (out,)  # noqa: RUF005 (in half the time)
