"""Arrays that no backend owns: NumPy's functions are dispatched to them, or the call is refused.

``numpy.asarray`` would make plain numbers of them and lose what else they hold: units, labels, a mask, a lazy graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from einops_fast.backends import backend_for_type
from einops_fast.errors import OperandError

if TYPE_CHECKING:
    from einops_fast.arguments import Call

_CONVERSIONS = ("__array__", "__array_interface__", "__array_struct__", "__array_function__")

_HOOKS = ("__array_function__", "__array_ufunc__")

_DEFAULTS = {"order": "K", "casting": "safe", "optimize": "auto"}


def takes_numpy_functions(kind: type) -> bool:
    """Whether NumPy leaves its functions to ``__array_function__`` of this type.

    >>> import numpy as np
    >>> takes_numpy_functions(np.ndarray), takes_numpy_functions(np.matrix), takes_numpy_functions(list)
    (False, False, False)
    """
    return _overrides(kind, "__array_function__")


def is_foreign(value: Any) -> bool:
    """Whether this is an array, but neither ``numpy.ndarray`` nor a subclass that means the same.

    >>> import numpy as np
    >>> is_foreign(np.asmatrix([1])), is_foreign(np.ma.array([1])), is_foreign([1]), is_foreign(np.float32(1))
    (False, True, False, False)
    """
    import numpy as np

    kind = type(value)
    if issubclass(kind, np.ndarray):
        return issubclass(kind, np.ma.MaskedArray) or any(_overrides(kind, hook) for hook in _HOOKS)
    return not issubclass(kind, np.generic) and any(hasattr(value, name) for name in _CONVERSIONS)


def refuse_foreign(value: Any, name: str) -> None:
    """Raise OperandError if ``value``, called ``name`` by the caller, is a foreign array or a list of such."""
    part = _foreign_part(value)
    if part is not None:
        refuse_stand_in(part, name)
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        what = f"of type {kind}, which no backend knows" if part is value else f"a {type(value).__name__} of {kind}"
        raise OperandError(
            f"{name} is {what}; numpy.asarray(...) of it gives the plain values, "
            "without what else it holds (such as units, labels or a mask)"
        )


def refuse_stand_in(value: Any, name: str) -> None:
    """Raise OperandError if a value, called ``name`` by the caller, stands for a tensor, as in torch.fx's traces."""
    kind = type(value)
    if takes_torch_functions(kind):
        raise OperandError(
            f"{name} stands for a tensor while {kind.__module__} traces, and has no sizes: torch.fx.wrap() "
            "of what was called, or is_leaf_module of a Tracer for a module, makes it one node of the graph"
        )


def dispatch(call: Call, **options: Any) -> Any:
    """Return what NumPy's einsum gives for arrays with ``__array_function__``.

    An equation that NumPy can't read, such as one of words, reaches the arrays in letters. Options that are defaults
    are left to the arrays' own function.
    """
    import numpy as np

    if "dask.array" in sys.modules:
        from einops_fast.chunked import chunked_einsum, has_chunks

        if has_chunks(call.arrays):
            return chunked_einsum(call, **options)
    given = _without_defaults(options)
    path = given.get("optimize")
    if isinstance(path, (list, tuple)) and path and not isinstance(path[0], str):
        given["optimize"] = ["einsum_path", *path]
    arrays, spelled = call.arrays, call.spelled
    if any(takes_numpy_functions(type(array)) and not hasattr(array, "ndim") for array in arrays):
        if isinstance(spelled, str):
            return np.einsum(spelled, *arrays, **given)
        raise OperandError("operands without an attribute ndim need an equation in letters in place of lists of labels")
    ranks = [np.ndim(array) if (rank := getattr(array, "ndim", None)) is None else rank for array in arrays]
    equation = call.subscripts(tuple(ranks)).equation
    if isinstance(spelled, str) and "".join(spelled.split()) in (equation, equation.partition("->")[0]):
        equation = spelled
    return np.einsum(equation, *arrays, **given)


def takes_torch_functions(kind: type) -> bool:
    """Return whether torch leaves functions to this type, which is no tensor: torch.fx's stand-ins for tensors, say.

    >>> takes_torch_functions(list)
    False
    """
    return hasattr(kind, "__torch_function__") and backend_for_type(kind) is None


def hand_over(function: Callable[..., Any], arrays: Sequence[Any], given: Sequence[Any], **options: Any) -> Any:
    """Return what one of the arrays' ``__torch_function__`` makes of a call, which torch.fx writes down as it is.

    The function is found in its module by its name. Options that are defaults aren't handed over.
    """
    from torch.overrides import handle_torch_function

    return handle_torch_function(function, arrays, *given, **_without_defaults(options))


def _without_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if value is not None and not (isinstance(value, str) and value == _DEFAULTS.get(name))
    }


def _overrides(kind: type, hook: str) -> bool:
    """Whether a type has this hook of NumPy, and another one than NumPy's own arrays."""
    import numpy as np

    own = getattr(kind, hook, None)
    return own is not None and own is not getattr(np.ndarray, hook)


def _foreign_part(value: Any) -> Any:
    """The value or the first element of nested lists that is a foreign array; else ``None``."""
    if not isinstance(value, (list, tuple)):
        return value if is_foreign(value) else None
    # One element of each type will do, but for lists: a long list of numbers is looked through in C.
    parts = [*{type(part): part for part in value}.values()]
    if any(isinstance(part, (list, tuple)) for part in parts):
        parts = [part for part in value if isinstance(part, (list, tuple))] + parts
    return next((found for part in parts if (found := _foreign_part(part)) is not None), None)
