"""Importing MXNet as released: on a NumPy newer than it was written for, and without side effects.

MXNet 2.0 reads names that NumPy has removed since, most of them while it is imported, a few when its
functions run. The first get them for the time of the import, from NumPy itself; the second get them for
good, from a look-alike of NumPy that only MXNet's own modules see. Loading its library also halves the
OpenMP threads of the thread that loads it, which PyTorch would then share; a thread of its own does that.
"""

from __future__ import annotations

import ctypes
import functools
import runpy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

_lock = threading.RLock()

_TYPES = (bool, int, float, complex, object, str)
_CONSTANTS = {
    "PZERO": 0.0,
    "NZERO": -0.0,
    "PINF": numpy.inf,
    "NINF": -numpy.inf,
    "Inf": numpy.inf,
    "NAN": numpy.nan,
    "NaN": numpy.nan,
}
_RENAMED = {
    "alltrue": "all",
    "sometrue": "any",
    "product": "prod",
    "round_": "round",
    "in1d": "isin",
    "trapz": "trapezoid",
}
_FINANCIAL = ("mirr", "npv", "pmt", "ppmt", "pv", "rate")


def import_mxnet() -> ModuleType:
    """Import MXNet; free when that has happened already."""
    if "mxnet" not in sys.modules:
        with _lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            _load_library_aside()
            with _names_put_back() as removed:
                import_module("mxnet")
            _show_to_mxnet(removed)
    return import_module("mxnet")


def _load_library_aside() -> None:
    """Load ``libmxnet`` in a thread that ends at once: OpenMP's thread count is kept per thread."""
    spec = find_spec("mxnet")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'mxnet'", name="mxnet")
    find_lib_path = runpy.run_path(str(Path(spec.origin).with_name("libinfo.py")))["find_lib_path"]
    with ThreadPoolExecutor(1) as executor:
        executor.submit(ctypes.CDLL, find_lib_path()[0]).result()


@contextmanager
def _names_put_back() -> Iterator[dict[str, Any]]:
    """Give NumPy the names that it lacks, and take them away at the end; yields them."""
    names = vars(numpy)
    removed = {name: value for name, value in _removed_names() if name not in names}
    names.update(removed)
    try:
        yield removed
    finally:
        for name in removed:
            names.pop(name, None)


def _removed_names() -> Iterator[tuple[str, Any]]:
    for builtin in _TYPES:
        yield builtin.__name__, builtin
    yield from _CONSTANTS.items()
    for old, new in _RENAMED.items():
        if hasattr(numpy, new):
            yield old, _stand_in(getattr(numpy, new))
    yield "msort", _stand_in(functools.partial(numpy.sort, axis=0))
    for name in _FINANCIAL:
        yield name, _gone(name)
    yield "compat", SimpleNamespace(basestring=str)


def _stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    # Not the function itself: MXNet keys its __array_function__ table by identity.
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _gone(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"numpy.{name} was removed in NumPy 1.20")

    return call


def _show_to_mxnet(removed: dict[str, Any]) -> None:
    """Let MXNet's modules see NumPy as it was: some of their functions use removed names when called."""
    as_it_was = ModuleType(numpy.__name__, numpy.__doc__)
    vars(as_it_was).update(vars(numpy) | removed)
    for name, module in list(sys.modules.items()):
        if name.startswith("mxnet."):
            for alias, value in list(vars(module).items()):
                if value is numpy:
                    setattr(module, alias, as_it_was)
