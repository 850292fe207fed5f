"""MXNet's profiler: its settings, and where what nobody asked for goes."""

from __future__ import annotations

import atexit
import tempfile
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any

__all__ = ["configure"]


def configure(profiler: Any, path: Path | None = None) -> None:
    """Set MXNet's profiler up, to write its trace to a file, or nowhere.

    A trace is written at exit whether or not anyone asks for it. Not to the null device: the profiler deletes the file
    first, and that of the whole machine, too, if it may.
    """
    profiler.set_config(profile_all=True, aggregate_stats=True, filename=str(path or _nowhere() / "trace.json"))


@lru_cache(maxsize=1)
def _nowhere() -> Path:
    """A folder that is gone before MXNet writes for the last time."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder
