"""Calls found again by their words, all of a call but its arrays, before its arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import Any, TypeVar

from einops_fast.attention import registry, torch_state
from einops_fast.attention.arguments import FURTHER
from einops_fast.attention.registry import unchecked_names
from einops_fast.runtime import tracing
from einops_fast.runtime.plan_cache import of_all_shapes, recall
from einops_fast.runtime.tuning import unchecked_mode

A = TypeVar("A", bound=Callable[..., Any])

WORDS = " words"
"""The option by which a function gets the words of its call: no caller can spell it."""

_ARRAYS = frozenset(FURTHER)
_PLAIN = frozenset({bool, int, float, str, type(None)})


def by_words(careful: A) -> A:
    """Have calls that came before run what is kept of them, and others ``careful``.

    To fill in twenty options takes longer than all that is done here.
    """

    @wraps(careful)
    def attention(*operands: Any, **options: Any) -> Any:
        arrays = operands[-3:]
        if len(arrays) < 3 or tracing.is_followed() or torch_state.is_strict():
            return careful(*operands, **options)
        own: Hashable = (*options.items(),)
        if not _ARRAYS.isdisjoint(options):
            own, arrays = _apart(options, arrays)
        words = operands[:-3], own, unchecked_names(), unchecked_mode(), registry.generation
        run = known(words, arrays)
        return careful(*operands, **options, **{WORDS: words}) if run is None else run(*arrays)

    # torch.compile follows this instead: it would guard what is kept.
    vars(attention)["_torchdynamo_inline"] = careful
    return attention  # type: ignore[return-value]


def _apart(options: Mapping[str, Any], arrays: tuple[Any, ...]) -> tuple[Hashable, tuple[Any, ...]]:
    """Return the options without further arrays, and all arrays in the order in which an attention reads them."""
    own: list[Any] = [item for item in options.items() if item[0] not in _ARRAYS]
    for name in FURTHER:
        array = options.get(name)
        if array is not None:
            axes = None
            if type(array) is tuple and len(array) == 2 and type(array[0]) is str:
                axes, array = array
            own.append((name, axes))
            arrays = (*arrays, array)
    return tuple(own), arrays


def known(words: Hashable, arrays: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return what was kept of a call in these words that is right for these arrays, which it takes."""
    try:
        for like, run in of_all_shapes.get(words, ()):
            if like(arrays):
                return run
        return recall(words, arrays)
    except (AttributeError, IndexError, TypeError, RuntimeError):  # such arrays have no sizes, or an option no hash
        return None


def are_plain(*options: Any) -> bool:
    """Return whether options are numbers, texts, ``None`` or tuples of these: what is in an array may change."""
    return all(type(each) in _PLAIN or (type(each) is tuple and are_plain(*each)) for each in options)
