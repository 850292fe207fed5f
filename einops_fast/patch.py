"""Put einops_fast in the place of a framework's own functions, and back: existing code gets faster as it is."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from einops_fast.backends import get_backend
from einops_fast.dynamo_tables import know_functions, know_native
from einops_fast.errors import OperandError

if TYPE_CHECKING:
    from einops_fast.attention.replacement import AttentionReplacement
    from einops_fast.replacement import Replacement

__all__ = ["patch", "patched", "unpatch"]

# The modules that have a framework's einsum under that name, the one that users call first. Which of the
# others there are depends on the version.
_MODULES = {
    "numpy": ("numpy", "numpy.core", "numpy.core.einsumfunc", "numpy._core", "numpy._core.einsumfunc"),
    "torch": ("torch", "torch.functional"),
    "mxnet": ("mxnet.numpy", "mxnet.numpy.multiarray"),
    "cupy": ("cupy", "cupy.linalg._einsum"),
    "torch.sdpa": ("torch.nn.functional",),
}
# What is replaced where it isn't the einsum: it has a name of its own, and is patched only by that.
_FUNCTIONS = {"torch.sdpa": "scaled_dot_product_attention"}

_lock = threading.Lock()
_switched_on: set[str] = set()  # by patch()
_blocks: Counter[str] = Counter()  # of patched()
# By framework and native function. Kept for good: others keep the functions too, torch.jit even by their id.
_replacements: dict[tuple[str, Callable[..., Any]], Replacement | AttentionReplacement] = {}
_replaced: dict[str, tuple[Replacement | AttentionReplacement, list[ModuleType]]] = {}


def patch(*frameworks: str) -> None:
    """Replace the einsum of these frameworks by ours, until :func:`unpatch`. A second time changes nothing.

    What code looks up from now on is the replacement: ``np.einsum(...)`` is, a name that was bound before by
    ``from numpy import einsum`` isn't. It takes the framework's own arrays and letters only, and calls the
    native function with everything else.

    Args:
        frameworks: ``'numpy'``, ``'torch'``, ``'mxnet'`` or ``'cupy'``; they are imported if need be (MXNet
            also on a NumPy that is too new for it). Without any: all that are imported already. ``'torch.sdpa'``
            replaces torch's ``scaled_dot_product_attention`` instead of its einsum.

    Raises:
        OperandError: there is no such framework.
        ImportError: a framework isn't installed. Then none is patched.

    Example:
        >>> import numpy as np
        >>> from einops_fast import patch, unpatch
        >>> patch("numpy")
        >>> np.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
        >>> unpatch("numpy")
    """
    names = _awake(frameworks)
    with _lock:
        _switched_on.update(names)
        _settle(names)


def unpatch(*frameworks: str) -> None:
    """Undo :func:`patch`. Where a :func:`patched` block is open, the native einsum is back when it is left.

    Args:
        frameworks: as for :func:`patch`; those that aren't patched stay as they are. Without any: all.

    Raises:
        OperandError: there is no such framework.

    Example:
        >>> from einops_fast import unpatch
        >>> unpatch()
    """
    _check(frameworks)
    with _lock:
        names = frameworks or tuple(_switched_on)
        _switched_on.difference_update(names)
        _settle(names)


@contextmanager
def patched(*frameworks: str) -> Iterator[None]:
    """:func:`patch` for a ``with`` block, or for the calls of a function that is decorated with it.

    Blocks may nest, and may overlap in several threads: the replacement is there, for all threads, until the
    last one is left.

    Args:
        frameworks: as for :func:`patch`.

    Raises:
        OperandError: there is no such framework.
        ImportError: a framework isn't installed.

    Example:
        >>> import numpy as np
        >>> from einops_fast import patched
        >>> native = np.einsum
        >>> with patched("numpy"):
        ...     np.einsum is native
        False
        >>> np.einsum is native
        True
    """
    names = _awake(frameworks)
    with _lock:
        _blocks.update(names)
        _settle(names)
    try:
        yield
    finally:
        with _lock:
            _blocks.subtract(names)
            _settle(names)


def _check(frameworks: Sequence[str]) -> None:
    for name in frameworks:
        if name not in _MODULES:
            raise OperandError(f"no framework to patch is called {name!r}; there are {', '.join(_MODULES)}")


def _awake(frameworks: Sequence[str]) -> tuple[str, ...]:
    """The frameworks, each once, after everything that can fail."""
    _check(frameworks)
    names = tuple(dict.fromkeys(frameworks or [name for name in _MODULES if name in sys.modules]))
    for name in names:
        get_backend(name.partition(".")[0])  # imports the framework, and keeps its einsum for our own use
    return names


def _settle(names: Sequence[str]) -> None:
    """Have the replacement where someone wants it, and nowhere else."""
    for name in names:
        wanted = name in _switched_on or _blocks[name] > 0
        if wanted and name not in _replaced:
            _replace(name)
        elif not wanted and name in _replaced:
            _restore(name)


def _replace(name: str) -> None:
    function = _FUNCTIONS.get(name, "einsum")
    modules = [sys.modules[module] for module in _MODULES[name] if module in sys.modules]
    native = vars(modules[0])[function]  # no getattr: NumPy 2 warns of reading from numpy.core
    if (name, native) not in _replacements:
        _replacements[name, native] = _make(name, native)
    replacement = _replacements[name, native]
    if name == "numpy":
        know_functions()
    replacement.active = True
    modules = [module for module in modules if vars(module).get(function) is native]
    for module in modules:
        vars(module)[function] = replacement.function
    _replaced[name] = replacement, modules


def _make(name: str, native: Callable[..., Any]) -> Replacement | AttentionReplacement:
    # Imported when it is needed, as it takes time.
    if name in _FUNCTIONS:
        from einops_fast.attention.replacement import AttentionReplacement

        return AttentionReplacement(native)
    from einops_fast.replacement import Replacement

    return Replacement(name, native)


def _restore(name: str) -> None:
    function = _FUNCTIONS.get(name, "einsum")
    replacement, modules = _replaced.pop(name)
    replacement.active = False
    for module in modules:
        # Unless somebody has put a function of their own over it.
        if vars(module).get(function) is replacement.function:
            vars(module)[function] = replacement.native
    if name == "numpy":
        know_native(replacement.native, replacement.function)
