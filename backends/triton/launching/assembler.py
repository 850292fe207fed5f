"""Assemble our kernels by one ptxas in all processes, whatever torch's compiler does meanwhile.

The version of ptxas is a part of the key of Triton's cache. Where inductor compiles its first kernels, it sets a
variable by which Triton takes the ptxas of torch: kernels that other processes have compiled wouldn't be found there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.nvidia import compiler


class _Thread(threading.local):
    compiles_ours = False


_thread = _Thread()
_tool_of, _version_of = compiler.get_ptxas, compiler.get_ptxas_version


@contextmanager
def one_assembler() -> Iterator[None]:
    """While this is open, this thread compiles by the ptxas that the user chose, or by Triton's own."""
    before, _thread.compiles_ours = _thread.compiles_ours, True
    try:
        yield
    finally:
        _thread.compiles_ours = before


def _assembler(arch: int) -> Any:
    """Take the place of Triton's ``get_ptxas``."""
    tool = _tool_of(arch)
    return (_own() or tool) if _thread.compiles_ours and tool.path == _of_inductor() else tool


def _assembler_version(arch: int = 80) -> Any:
    """Take the place of Triton's ``get_ptxas_version``, which remembers one for each architecture."""
    return _told(arch, _assembler(arch).path) if _thread.compiles_ours else _version_of(arch)


compiler.get_ptxas, compiler.get_ptxas_version = _assembler, _assembler_version


@cache
def _told(arch: int, path: str) -> Any:
    """Return the version of the assembler at a path, which is this thread's."""
    return _version_of.__wrapped__(arch)


@cache
def _own() -> Any:
    """Return the ptxas that comes with Triton; ``None`` where it doesn't run."""
    return knobs.NvidiaTool.from_path(type(knobs.nvidia).__dict__["ptxas"].default_path)


def _of_inductor() -> str:
    """Return the path of the ptxas that inductor has Triton take."""
    torch = sys.modules.get("torch")
    return "" if torch is None else str(Path(torch.__file__ or "").absolute().parent / "bin" / "ptxas")
