"""Which framework's functions a call goes to."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast.arguments import own_arrays
from einops_fast.backends import awake_types, backend_for_type
from einops_fast.errors import OperandError
from einops_fast.tracing import is_tracing

__all__ = ["function_for", "torch_function"]

_functions: dict[str, dict[str, Callable[..., Any]]] = {}


def function_for(name: str, array: Any, **others: Any) -> tuple[Callable[..., Any], Any]:
    """The function of this name for arrays like this one, and the array; a list becomes an array of NumPy's.

    Args:
        name: of the function.
        array: the input.
        others: the arguments that have to be of the same framework or ``None``, by name.

    Raises:
        OperandError: the framework has none, or another argument isn't an array of it, or is on another device.
    """
    if is_tracing():
        return torch_function(name), array
    backend = awake_types.get(type(array))
    if backend is None:
        backend, (array,) = own_arrays([array])
    found = _of(backend.name).get(name)
    if found is None:
        raise OperandError(f"{name} is there for tensors of torch only, not for arrays of {backend.name}")
    if backend.name == "torch" and array.is_nested and str(array.layout) == "torch.strided":
        raise OperandError("the input is a nested tensor whose axes have no sizes: make it with layout=torch.jagged")
    for argument, other in others.items():
        if other is None or backend_for_type(type(other)) is backend:
            continue
        if not (backend.name == "numpy" and isinstance(other, np.generic)):  # what indexing of its arrays gives
            raise OperandError(f"{argument} is of type {type(other).__name__}; the input is an array of {backend.name}")
    if backend.name == "torch":
        for argument, other in others.items():
            if other is not None and other.device != array.device and other.ndim:  # torch moves a number by itself
                raise OperandError(f"{argument} is on {other.device}, the input on {array.device}")
    return found, array


def torch_function(name: str) -> Callable[..., Any]:
    """The function of this name for torch's tensors."""
    return _of("torch")[name]


def _of(framework: str) -> dict[str, Callable[..., Any]]:
    _wake(framework)
    return _functions[framework]


def _wake(framework: str) -> bool:
    if framework not in _functions:
        if framework == "torch":
            _functions[framework] = import_module("einops_fast.backends.torch_fused").FUNCTIONS
        else:
            module = {"mxnet": "mxnet.numpy", "cupy": "cupy"}.get(framework, "numpy")
            _functions[framework] = import_module("einops_fast.ops.ndarrays").functions(import_module(module))
    return True


# torch.compile calls it while tracing, and can't follow an import.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]
