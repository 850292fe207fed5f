"""Which framework's functions a call goes to."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast.backends import Backend, awake_types, backend_for_type, get_backend
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import OperandError
from einops_fast.runtime.tracing import is_tracing

__all__ = ["function_for", "torch_function"]

_functions: dict[str, dict[str, Callable[..., Any]]] = {}

_REAL = ("bool", "int", "uint", "float", "bfloat")
"""How the names of dtypes begin whose elements are numbers on one line."""

_floating: set[Any] = set()
"""Dtypes seen to be among FLOATS: to look a dtype up takes less time than to ask for its name."""

_OF_ANY_KIND = ("target", "mask", "attn_mask")
"""Arguments of which operators say themselves whether they may be integers or booleans."""


def function_for(
    name: str, array: Any, operator: str, needs: tuple[str, ...] = (), **others: Any
) -> tuple[Callable[..., Any], Any]:
    """The function of this name for arrays like this one, and the array; a list becomes an array of NumPy's.

    Args:
        name: of the function.
        array: the input.
        operator: what the caller has called.
        needs: of the other arguments those that mustn't be ``None``.
        others: the arguments that have to be of the same framework or ``None``, by name.

    Raises:
        OperandError: the framework has none; another argument isn't an array of it, or is on another device; or the
            dtype of one isn't for the operator.
    """
    if array is None:
        raise OperandError(f"{operator} needs an input, which is None")
    if is_tracing():
        from torch import Tensor  # torch is there if anything is traced

        # The compiler has tensors of torch only, and what is asked of them are constants.
        if not isinstance(array, Tensor):
            raise OperandError(
                f"torch.compile has {operator} for tensors of torch only, not for {type(array).__name__}"
            )
        _is_floating(operator, "input", array.dtype, True)
        _check_others(operator, array, needs, others, None)
        return torch_function(name), array
    backend = awake_types.get(type(array))
    if backend is None:
        backend = backend_for_type(type(array))
        if backend is None:
            backend = get_backend("numpy")
            array = backend.convert(array, "the input")
    found = _of(backend.name).get(name)
    if found is None:
        raise OperandError(f"{operator} is there for tensors of torch only, not for arrays of {backend.name}")
    by_torch = backend.name == "torch"
    if by_torch and (array.is_nested or array.layout is not _dense()):
        _check_layout(operator, array)
    _check_dtype(operator, "input", array.dtype, by_torch)
    _check_others(operator, array, needs, others, backend)
    return found, array


@cache
def _dense() -> Any:
    """What torch calls the layout of tensors with strides; asked for where there are tensors."""
    import torch

    return torch.strided


def _check_layout(operator: str, array: Any) -> None:
    """Raise OperandError if a tensor is sparse, but for products, or its axes have no sizes."""
    if array.is_nested:
        if array.layout is _dense():
            raise OperandError(
                "the input is a nested tensor whose axes have no sizes: make it with layout=torch.jagged"
            )
    elif operator != "linear" and "sparse" in str(array.layout):
        raise OperandError(f"the input is a tensor of layout {array.layout}; {operator} takes dense ones: .to_dense()")


def _check_others(
    operator: str, array: Any, needs: tuple[str, ...], others: dict[str, Any], backend: Backend | None
) -> None:
    """Raise OperandError unless the other arguments are arrays of the input's framework, dtypes and device.

    Without a backend, torch.compile traces this.
    """
    by_torch = backend is None or backend.name == "torch"
    for argument, other in others.items():
        if other is None:
            if argument in needs:
                raise OperandError(f"{operator} needs {argument}, which is None")
            continue
        if not _is_own(other, backend):
            framework = "torch" if backend is None else backend.name
            raise OperandError(f"{argument} is of type {type(other).__name__}; the input is an array of {framework}")
        check = _is_floating if backend is None else _check_dtype
        check(operator, argument, other.dtype, by_torch and argument not in _OF_ANY_KIND)
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
    """The same as :func:`_is_floating`, but for the answer, of a dtype that may have been asked about before."""
    if dtype not in _floating and _is_floating(operator, argument, dtype, floats):
        _floating.add(dtype)


def _is_floating(operator: str, argument: str, dtype: Any, floats: bool) -> bool:
    """Whether a dtype is among FLOATS.

    Raises:
        OperandError: the elements aren't numbers on one line, or aren't floating-point if they have to be.
    """
    kind = dtype_name(dtype)
    if kind in FLOATS:
        return True
    if floats or not kind.startswith(_REAL):
        kinds = ", ".join(FLOATS) if floats else "real numbers"
        raise OperandError(f"{argument} has dtype {kind}; {operator} takes {kinds}")
    return False


def torch_function(name: str) -> Callable[..., Any]:
    """The function of this name for torch's tensors."""
    return _of("torch")[name]


def _of(framework: str) -> dict[str, Callable[..., Any]]:
    _wake(framework)
    return _functions[framework]


def _wake(framework: str) -> bool:
    if framework not in _functions:
        if framework == "torch":
            _functions[framework] = import_module("einops_fast.backends.torch.ops.fused").FUNCTIONS
        else:
            module = {"mxnet": "mxnet.numpy", "cupy": "cupy"}.get(framework, "numpy")
            _functions[framework] = import_module("einops_fast.ops.ndarrays").functions(import_module(module))
    return True


# torch.compile calls it while tracing, and can't follow an import.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]
