"""Put einops_fast beneath a framework's own functions, and take it away: existing code gets faster as it is.

The function objects stay the same. An einsum has its code exchanged (:mod:`einops_fast.patching.function_body`).
torch's attention has none in Python: torch's dispatcher is given another implementation for CUDA tensors. torch.compile
gets another backend for inductor's.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from einops_fast.annotations import Framework
from einops_fast.backends import get_backend
from einops_fast.errors import OperandError
from einops_fast.runtime.blocks import Setting
from einops_fast.runtime.tuning import current_mode
from einops_fast.vocabulary import closest

if TYPE_CHECKING:
    from einops_fast.attention.replacement import AttentionReplacement
    from einops_fast.compiler.front import CompileReplacement
    from einops_fast.patching.replacement import Replacement

    AnyReplacement: TypeAlias = Replacement | AttentionReplacement | CompileReplacement

FUNCTIONS = {
    "numpy": "numpy.einsum",
    "torch": "torch.einsum",
    "mxnet": "mxnet.numpy.einsum",
    "cupy": "cupy.einsum",
    "torch.sdpa": "torch.nn.functional.scaled_dot_product_attention",
    "torch.compile": "torch.compile",
}
"""What can be patched, by the name that :func:`patch` takes."""

_lock = threading.Lock()
_switched_on: set[Any] = set()  # by patch()
_blocks: Counter[str] = Counter()  # of patched()
_replaced: dict[str, AnyReplacement] = {}


def patch(*frameworks: Framework) -> None:
    """Have the einsum of these frameworks run ours, until :func:`unpatch`. A second time changes nothing.

    The function object stays what it is: names that were bound before by ``from numpy import einsum`` run ours too,
    and whoever compares it, or keys a table by it (``__array_function__``, ``__torch_function__``), sees no other one.
    Ours takes the framework's own arrays and letters only, and does the native thing with everything else.

    With gradients, the operands are kept by reference. torch's own einsum keeps a copy of an operand whose axes it
    can't merge into those of a batched matrix product, so there an operand may be changed in place between forward and
    backward; with ours, torch raises its "modified by an inplace operation" instead. Clone such an operand first.

    Args:
        frameworks: ``'numpy'``, ``'torch'``, ``'mxnet'`` or ``'cupy'``; they are imported if need be (MXNet
            also on a NumPy that is too new for it). Without any: all that are imported already. ``'torch.sdpa'``
            is torch's ``scaled_dot_product_attention`` on CUDA tensors instead of its einsum, and ``'torch.compile'``
            has programs that are compiled from then on rewritten first, as by :func:`einops_fast.compile`.

    Raises:
        OperandError: there is no such framework.
        EinsumError: base of it; the environment variable ``EINOPS_FAST_AUTOTUNE`` is wrong.
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


def unpatch(*frameworks: Framework) -> None:
    """Undo :func:`patch`. Where a :func:`patched` block is open, the native code is back when it is left.

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


def patched(*frameworks: Framework) -> Setting:
    """:func:`patch` for a ``with`` block, or for the calls of a function that is decorated with it.

    In a generator or an ``async`` function that is decorated, ours runs while that does, not while it waits.

    A call alone is a block that is never left: :func:`unpatch` doesn't end it.

    Blocks may nest, and may overlap in several threads: ours runs, for all threads, until the last one is left.

    Args:
        frameworks: as for :func:`patch`.

    Raises:
        OperandError: there is no such framework.
        ImportError: a framework isn't installed.

    Example:
        >>> import numpy as np
        >>> from einops_fast import patched
        >>> with patched("numpy"):
        ...     np.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
    """
    return Setting(partial(_begin_block, _awake(frameworks)))


def _begin_block(names: tuple[str, ...]) -> Callable[[], None]:
    with _lock:
        _blocks.update(names)
        _settle(names)
    return partial(_end_block, names)


def _end_block(names: tuple[str, ...]) -> None:
    with _lock:
        _blocks.subtract(names)
        _settle(names)


def _check(frameworks: Sequence[str]) -> None:
    for name in frameworks:
        if not isinstance(name, str) or name not in FUNCTIONS:
            known = f"there are {', '.join(FUNCTIONS)}{closest(name, FUNCTIONS)}"
            raise OperandError(f"no framework to patch is called {name!r}; {known}")


def _awake(frameworks: Sequence[str]) -> tuple[str, ...]:
    """The frameworks, each once, after everything that can fail."""
    _check(frameworks)
    current_mode()  # a wrong one in the environment is told here: patched calls would go native because of it
    names = tuple(dict.fromkeys(frameworks or [name for name in FUNCTIONS if name in sys.modules]))
    for name in names:
        get_backend(name.partition(".")[0])  # imports the framework, and keeps its einsum for our own use
    return names


def _settle(names: Sequence[str]) -> None:
    """Have ours run where someone wants it, and nowhere else."""
    for name in names:
        wanted = name in _switched_on or _blocks[name] > 0
        if wanted and name not in _replaced:
            _replaced[name] = _replacement(name)
            _replaced[name].start()
        elif not wanted and name in _replaced:
            _replaced.pop(name).stop()


def _replacement(name: str) -> AnyReplacement:
    module, _, attribute = FUNCTIONS[name].rpartition(".")
    return _made(name, getattr(sys.modules[module], attribute))


@cache
def _made(name: str, function: Callable[..., Any]) -> AnyReplacement:
    # Imported when it is needed, as it takes time.
    if name == "torch.sdpa":
        from einops_fast.attention.replacement import AttentionReplacement

        return AttentionReplacement()
    if name == "torch.compile":
        from einops_fast.compiler.front import CompileReplacement

        return CompileReplacement()
    from einops_fast.patching.replacement import Replacement

    return Replacement(name, function)
