"""Whether Triton is there as the GPU kernels of :mod:`einops_fast.backends.triton` need it; doesn't import it."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.runtime import choosing

OLDEST = (3, 6)
"""The oldest version of Triton that the kernels are written for."""

_WRITTEN = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def installed_version() -> str | None:
    """Return the version that Triton's package states, whatever distribution it is of; ``None`` without a package.

    A package that states no version has version ``'unknown'``.
    """
    module = sys.modules.get("triton")
    if module is not None:
        return str(getattr(module, "__version__", "unknown"))
    spec = _package()
    if spec is None:
        return None
    source = Path(spec.origin) if spec.origin else None
    written = _WRITTEN.search(source.read_text("utf-8")) if source is not None and source.is_file() else None
    return written[1] if written else "unknown"


def _package() -> ModuleSpec | None:
    try:
        return find_spec("triton")
    except (ImportError, ValueError):
        return None


def load_library() -> None:
    """Have the linker load Triton's library, if it is there, while other threads go on.

    ``import triton`` then finds it loaded: to load 450 MB of it keeps the interpreter's lock for up to 0.4 seconds.
    """
    spec = None if "triton" in sys.modules else _package()
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder, "_C/libtriton.so")  # elsewhere in another version, nothing is loaded here
        if library.is_file():
            linker = getattr(ctypes.CDLL(None), "dlopen", None)  # which gives up the lock, as ctypes.CDLL doesn't
            if linker is not None:
                linker.argtypes, linker.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
                linker(os.fsencode(library), sys.getdlopenflags())


def interpreted() -> bool:
    """Return whether Triton runs kernels in its interpreter, as Triton reads that."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on")


def circumstances(memory: Memory, device: int) -> dict[str, Any]:
    """Return what every measurement on a device depends on, as part of its key."""
    versions = {"triton": installed_version() or "none", **memory.versions()}
    return choosing.circumstances(memory.device_name(device), versions)


def why_unusable() -> str | None:
    """Return why arrays on a GPU can't go to the kernels, in one sentence; ``None`` if they can.

    Ask where there are such arrays: the first call that finds a reason warns, since their framework's own functions
    are slower.
    """
    return _checked()


@lru_cache(maxsize=1)
def _checked() -> str | None:
    version = installed_version()
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers and (int(numbers[1]), int(numbers[2])) >= OLDEST:
        return None
    instead = "Triton isn't installed" if version is None else f"the installed one is {version}"
    reason = f"the GPU kernels of einops_fast need Triton {OLDEST[0]}.{OLDEST[1]} or later, and {instead}"
    warnings.warn(f"{reason}: the framework's own functions are used", RuntimeWarning, stacklevel=3)
    return reason


# torch.compile takes the answer as it is.
why_unusable._dynamo_marked_constant = True  # type: ignore[attr-defined]
