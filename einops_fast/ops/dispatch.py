"""Find what computes a call: what was kept of one like it, or a function of the arrays' framework."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast.attention import torch_state
from einops_fast.backends import Backend, backend_for_type, get_backend
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import OperandError
from einops_fast.foreign import refuse_stand_in
from einops_fast.observing import observers
from einops_fast.observing.calls import tell
from einops_fast.planning.layout import VECTOR
from einops_fast.runtime import tracing
from einops_fast.runtime.plan_cache import emptied_with_plans, keep, recall, remember_alike
from einops_fast.runtime.tracing import is_sharded, is_tracing, outside_of_graphs

Run = Callable[..., Any]

_functions: dict[str, dict[str, Callable[..., Any]]] = {}

_REAL = ("bool", "int", "uint", "float", "bfloat")
"""How the names of dtypes begin whose elements are numbers on one line."""

_BY_TORCH = ("torch", "DTensor")
"""Names of the backends of tensors of torch."""

_OF_ANY_KIND = ("target", "mask", "attn_mask")
"""Arguments of which operators say themselves whether they may be integers or booleans."""


_came: dict[Hashable, None] = emptied_with_plans({})
"""Calls that came once, by all of a call but its arrays and by their shapes."""


def computed(read: Callable[..., Run], arrays: tuple[Any, ...], *options: Any) -> Any:
    """Return the result of an operator. From the third time on, it is one look-up and the call itself.

    Args:
        read: checks arrays and options, and returns what computes arrays that are like these.
        arrays: the input, which may be a list, and others, each of which may be ``None``.
        options: everything else that was asked for.
    """
    question: Hashable = None
    given: Sequence[Any] = ()
    if not tracing.is_followed():
        first = arrays[0]
        if type(first) in torch_state.plain_types:
            given = [each for each in arrays if each is not None]
            run = None
            try:
                # Options are told apart by type, too: True is no number, though it is equal to one.
                question = (
                    read, first.data_ptr() % VECTOR, torch_state.is_strict(), not torch_state.saving_hooks(False),
                    options, *map(type, options), *map(type, arrays),
                )  # fmt: skip
                run = recall(question, given)
            except (AttributeError, TypeError, RuntimeError):  # one is of others, or without memory
                question = None
            if run is not None:
                return run(*arrays)
        elif first is not None and backend_for_type(type(first)) is None:
            arrays = (get_backend("numpy").convert(first, "the input"), *arrays[1:])
    elif is_tracing() and is_sharded(arrays[0]):
        return outside_of_graphs(computed, read, arrays, *options)
    run = read(*arrays, *options)
    result = run(*arrays)
    if question is not None:
        _keep(question, given, options, run)
    return result


def _keep(question: Hashable, given: Sequence[Any], options: tuple[Any, ...], run: Run) -> None:
    """Keep what computes calls, if their shapes come back: else that takes longer than it saves."""
    try:
        came = question, *[each.shape for each in given]
        first = came not in _came
    except (AttributeError, RuntimeError, TypeError):  # lists have no sizes, nested tensors none to compare
        return
    if first:
        keep(_came, came, None)
    elif not any(hasattr(option, "dtype") for option in options):  # what is in an option's array may change
        like = get_backend("torch").likeness(given, kernels=True)
        if like is not None:
            remember_alike(question, like, run, given)


def function_for(
    name: str, array: Any, operator: str, needs: tuple[str, ...] = (), **others: Any
) -> Callable[..., Callable[..., Any]]:
    """Return the function of this name for arrays like this one, which takes arrays and options and returns a run."""
    if array is None:
        raise OperandError(f"{operator} needs an input, which is None")
    backend = None
    if is_tracing():
        from torch import Tensor  # torch is there if anything is traced

        # The compiler has tensors of torch only, and what is asked of them are constants.
        if not isinstance(array, Tensor):
            raise OperandError(
                f"torch.compile has {operator} for tensors of torch only, not for {type(array).__name__}"
            )
    else:
        refuse_stand_in(array, "the input")
        backend = backend_for_type(type(array)) or get_backend("numpy")
    framework = "torch" if backend is None else backend.name
    found = _of(framework).get(name)
    if found is None:
        raise OperandError(f"{operator} is there for tensors of torch only, not for arrays of {framework}")
    by_torch = framework in _BY_TORCH
    if backend is not None and by_torch and (array.is_nested or array.layout is not _dense()):
        _check_layout(operator, array, "the input")
    _check_dtype(operator, "input", array.dtype, by_torch)
    _check_others(operator, array, needs, others, backend)
    return found if backend is None or not observers.observed() else partial(_told, found, name, backend)


def _told(function: Callable[..., Run], name: str, backend: Backend, *arguments: Any) -> Run:
    """Return what a function does of its arguments, and tell observers of these: arrays, and then options."""
    count = next((at for at, each in enumerate(arguments) if each is not None and not hasattr(each, "shape")), 0)
    arrays, options = arguments[:count], arguments[count:]
    tell("operator", name, backend, arrays, {"arguments": options})
    return function(*arguments)


@cache
def _dense() -> Any:
    """What torch calls the layout of tensors with strides; asked for where there are tensors."""
    import torch

    return torch.strided


def _check_layout(operator: str, array: Any, name: str) -> None:
    """Raise OperandError if a tensor is sparse, but for products, or its axes have no sizes."""
    torch_state.refuse_without_sizes(array, name)
    if operator != "linear" and not array.is_nested and "sparse" in str(array.layout):
        raise OperandError(f"{name} is a tensor of layout {array.layout}; {operator} takes dense ones: .to_dense()")


def _check_others(
    operator: str, array: Any, needs: tuple[str, ...], others: dict[str, Any], backend: Backend | None
) -> None:
    """Raise OperandError unless the other arguments are arrays of the input's framework, dtypes and device.

    Without a backend, torch.compile traces this.
    """
    by_torch = backend is None or backend.name in _BY_TORCH
    for argument, other in others.items():
        if other is None:
            if argument in needs:
                raise OperandError(f"{operator} needs {argument}, which is None")
            continue
        if not _is_own(other, backend):
            if backend is not None:  # torch.compile has tensors alone
                refuse_stand_in(other, argument)
            framework = "torch" if backend is None else backend.name
            raise OperandError(f"{argument} is of type {type(other).__name__}; the input is an array of {framework}")
        _check_dtype(operator, argument, other.dtype, by_torch and argument not in _OF_ANY_KIND)
        if backend is not None and by_torch and (other.is_nested or other.layout is not _dense()):
            _check_layout(operator, other, argument)
        if by_torch and other.device != array.device and other.ndim:  # torch moves a number by itself
            raise OperandError(f"{argument} is on {other.device}, the input on {array.device}")


def _is_own(other: Any, backend: Backend | None) -> bool:
    """Whether this is an array of the input's framework."""
    if backend is None:
        from torch import Tensor

        return isinstance(other, Tensor)
    # The last is what indexing of NumPy's arrays gives.
    return backend_for_type(type(other)) is backend or (backend.name == "numpy" and isinstance(other, np.generic))


def _check_dtype(operator: str, argument: str, dtype: Any, floats: bool) -> None:
    """Raise OperandError unless elements are numbers on one line, and floating-point if they have to be."""
    kind = dtype_name(dtype)
    if kind in FLOATS or (not floats and kind.startswith(_REAL)):
        return
    kinds = ", ".join(FLOATS) if floats else "real numbers"
    raise OperandError(f"{argument} has dtype {kind}; {operator} takes {kinds}")


def _of(framework: str) -> dict[str, Callable[..., Any]]:
    _wake(framework)
    return _functions[framework]


def _wake(framework: str) -> bool:
    if framework not in _functions:
        if framework == "torch":
            _functions[framework] = import_module("einops_fast.backends.torch.ops.fused").FUNCTIONS
        elif framework == "DTensor":
            _functions[framework] = import_module("einops_fast.backends.torch.sharding.ops").FUNCTIONS
        else:
            module = {"mxnet": "mxnet.numpy", "cupy": "cupy"}.get(framework, "numpy")
            _functions[framework] = import_module("einops_fast.ops.ndarrays").functions(import_module(module))
    return True


# torch.compile calls it while tracing, and can't follow an import.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]
