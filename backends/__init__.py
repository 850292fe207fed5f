"""The backends, and which one an array belongs to. Nothing here imports a framework before it is needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from einops_fast.backends.base import Backend, Numerics, Operand, Target
from einops_fast.errors import OperandError
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.vocabulary import closest

__all__ = [
    "Backend",
    "Numerics",
    "Operand",
    "Target",
    "awake_types",
    "backend_for_type",
    "check_registration",
    "get_backend",
    "register_backend",
    "registered",
    "wake_imported",
]

_lock = threading.RLock()
# Backend name -> (framework module, how to make the backend).
_factories: dict[str, tuple[str, Callable[[], Backend]]] = {}
_awake: dict[str, Backend] = {}
# The types of arrays seen so far; fast_einsum looks here first.
awake_types: dict[type, Backend] = {}


def register_backend(name: str, module: str, factory: Callable[[], Backend]) -> None:
    """Add a backend, or replace the one of the same name.

    Args:
        name: the backend's name, such as ``'torch'``.
        module: top-level module of the framework. ``factory`` isn't called before that module is in
            ``sys.modules``: arrays of it can't exist earlier.
        factory: makes the backend; called once.

    Raises:
        OperandError: a name is no text, ``factory`` can't be called, or, once it is called, it makes no backend.

    Example:
        >>> from einops_fast import register_backend
        >>> from einops_fast.backends.numpy import NumpyBackend
        >>> class Mine(NumpyBackend):
        ...     name = "mine"
        ...     def owns(self, array_type): return array_type.__name__ == "MyArray"
        >>> register_backend("mine", "numpy", Mine)
    """
    check_registration(factory, name=name, module=module)
    with _lock:
        _factories[name] = (module, factory)
        _awake.pop(name, None)
        awake_types.clear()
        clear_plans()  # they may be of the backend that is replaced


def check_registration(factory: Any, **names: Any) -> None:
    """Raise OperandError unless the names are text and the factory can be called."""
    for argument, name in names.items():
        if not isinstance(name, str):
            raise OperandError(f"{argument} is the text of a name, not {name!r} of type {type(name).__name__}")
    if not callable(factory):
        raise OperandError(f"factory is what makes {names['name']!r} when it is called, not {factory!r}")


def registered() -> tuple[str, ...]:
    """Names of all backends, awake or not."""
    return tuple(_factories)


def get_backend(name: str) -> Backend:
    """The backend of this name; imports its framework if that hasn't happened yet."""
    backend = _awake.get(name)
    if backend is not None:
        return backend
    with _lock:
        if name not in _factories:
            known = sorted(_factories)
            raise OperandError(f"no backend is called {name!r}; there are {', '.join(known)}{closest(name, known)}")
        if name not in _awake:
            made = _factories[name][1]()
            if not isinstance(made, Backend):
                raise OperandError(f"the factory of backend {name!r} made a {type(made).__name__}, which is no Backend")
            _awake[name] = made
        return _awake[name]


def wake_imported() -> None:
    """Import the backend of torch where torch is there already: else the first call would wait for that."""
    if "torch" in sys.modules:
        with suppress(Exception):  # whatever is wrong is said by the first call
            get_backend("torch")


def backend_for_type(array_type: type) -> Backend | None:
    """The backend whose arrays have this type, or ``None`` for scalars, lists and unknown types."""
    backend = awake_types.get(array_type)
    if backend is not None:
        return backend
    with _lock:
        # Newest first: a registered backend may claim what a built-in one would also take.
        for name, (module, _) in reversed(list(_factories.items())):
            if module in sys.modules:
                candidate = get_backend(name)
                if candidate.owns(array_type):
                    awake_types[array_type] = found = candidate.of_type(array_type)
                    return found
    return None


def _built_in(name: str, class_name: str) -> Callable[[], Backend]:
    def make() -> Backend:
        backend: Backend = getattr(import_module(f"einops_fast.backends.{name}"), class_name)()
        return backend

    return make


register_backend("numpy", "numpy", _built_in("numpy", "NumpyBackend"))
register_backend("cupy", "cupy", _built_in("cupy.backend", "CupyBackend"))
register_backend("mxnet", "mxnet", _built_in("mxnet.backend", "MxnetBackend"))
register_backend("torch", "torch", _built_in("torch.backend", "TorchBackend"))
