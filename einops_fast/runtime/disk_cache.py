"""What was measured, on disk: one JSON file per problem, shared by all processes of a user.

A file is written whole or not at all, and holds its own key, so whatever a read returns was once written for that
key. Nothing that is wrong with the disk stops a computation: it is a miss, and one warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from einops_fast.runtime.files import write_whole

try:
    _IMPORTED_IN = os.getcwd()
except OSError:  # it has been removed since
    _IMPORTED_IN = os.curdir

_LAYOUT = "v1"  # a folder; what is in it changes with the name only
Tell = Callable[[str, Path, Exception], None]
_FILE = re.compile(r"[0-9a-f]{64}(\.json|\.[0-9a-f]{16}\.tmp)")

# A file that isn't text, isn't JSON or isn't an entry is a ValueError, or nests too deep.
_TROUBLE = (OSError, ValueError, RecursionError)
_lock = threading.Lock()
_known_trouble: set[int | str | None] = set()


@dataclass(frozen=True)
class Entry:
    """One problem, and what was measured for it."""

    key: dict[str, Any]  # what the problem is, where it was measured and with which versions
    record: dict[str, Any]  # what came of it
    path: Path  # the file


def folder() -> Path:
    """Where the cache is, or will be once something is written.

    That is ``EINOPS_FAST_CACHE_DIR`` where it is set (a relative one from where the program was when it imported this),
    else ``einops_fast`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    wanted = os.environ.get("EINOPS_FAST_CACHE_DIR")
    if wanted:
        return Path(_IMPORTED_IN, os.path.expanduser(wanted))
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    # A user may have no home folder, as in some containers.
    return Path(base if os.path.isabs(base) else tempfile.gettempdir(), "einops_fast")


def read(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was written last for this key, or None. Tuples in it have become lists.

    Args:
        key: anything that JSON can hold; the order of its items doesn't matter.

    Raises:
        TypeError, ValueError: JSON can't hold the key. Nothing else is ever raised.
    """
    text = _canonical(key)
    entry = _load(_path(text))
    # The name of the file is only a hash of the key.
    return entry.record if entry is not None and _canonical(entry.key) == text else None


def write(key: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Keep a record, in place of what there is for the key. Other processes see the old one or the new one.

    Args:
        key: as for :func:`read`.
        record: anything that JSON can hold, which doesn't include infinity and NaN.

    Raises:
        TypeError, ValueError: JSON can't hold the key or the record. Nothing else is ever raised.
    """
    path = _path(_canonical(key))
    text = json.dumps({"key": dict(key), "record": dict(record)}, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process has cleared the cache meanwhile, this entry with it
            write_whole(path, text + "\n")
    except _TROUBLE as error:
        _warn("write", path, error)


def entries() -> Iterator[Entry]:
    """All entries, in no order that means anything."""
    for path in _files(_warn):
        if path.suffix == ".json":
            entry = _load(path)
            # No read would find one under another name.
            if entry is not None and _path(_canonical(entry.key)).name == path.name:
                yield entry


def clear(tell: Tell | None = None) -> int:
    """Remove all entries, and what writers that were killed have left; nothing else that is in the folder.

    The folders stay, so that a process that is writing at that moment has where to write.

    Args:
        tell: called with each thing that can't be done, the path and the error; without it, the first of a kind is a
            warning.

    Returns:
        How many entries are gone.
    """
    tell, removed = tell or _warn, 0
    for path in _files(tell):
        try:
            path.unlink()
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            tell("remove", path, error)
        else:
            removed += path.suffix == ".json"
    return removed


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _path(text: str) -> Path:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return folder() / _LAYOUT / digest[:2] / f"{digest}.json"


def _load(path: Path) -> Entry | None:
    """What is in a file, if it is an entry."""
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        match stored:
            case {"key": dict() as key, "record": dict() as record}:
                _canonical(stored)  # Python reads NaN, but that is no JSON
                return Entry(key, record, path)
        raise ValueError("this is no entry of the cache")
    except FileNotFoundError:
        return None
    except _TROUBLE as error:
        _warn("read", path, error)
        return None


def _files(tell: Tell) -> Iterator[Path]:
    """Every file that a write can have made, finished or not, and no other."""
    root = folder() / _LAYOUT
    for part in _names(root, tell):
        if re.fullmatch("[0-9a-f]{2}", part):
            for name in _names(root / part, tell):
                if name.startswith(part) and _FILE.fullmatch(name):
                    yield root / part / name


def _names(of: Path, tell: Tell) -> list[str]:
    try:
        return sorted(os.listdir(of))
    except FileNotFoundError:
        return []
    except OSError as error:
        tell("read", of, error)
        return []


def _warn(what: str, path: Path, error: Exception) -> None:
    """Say so, the first time that there is trouble of this kind."""
    kind = error.errno if isinstance(error, OSError) else "corrupt"
    with _lock:
        if kind in _known_trouble:
            return
        _known_trouble.add(kind)
    message = f"the cache of einops_fast can't {what} {path}, and goes on without it: {reason(error)}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def reason(error: Exception) -> object:
    """Return what a user is told of an error."""
    return getattr(error, "strerror", None) or error
