"""The chooser: one for contractions, row operators and attention.

A choice is looked up in this process, then on disk, and measured last. A key holds the device, the versions of the
libraries and a hash of the source of the kernels, so that an edited kernel never meets a choice that was measured with
another one. Where two processes measure the same, both take what was written first, and so compute the same bits.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from einops_fast._version import __version__
from einops_fast.runtime import disk_cache
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

W = TypeVar("W")

Record = Mapping[str, Any]
"""What was measured: ``choice``, a name; ``seconds``, its time; ``candidates``, the times of all by name."""

_KERNELS = Path(__file__).parents[1] / "backends" / "triton"

# Calls of attention are measured under a lock of their own: their backward runs in threads of the framework, which may
# have to measure kernels meanwhile.
_locks = {False: threading.RLock(), True: threading.RLock()}
_measured: dict[str, Record] = emptied_with_plans({})


@functools.cache
def kernel_hash() -> str:
    """Return a hash of the source of all kernels."""
    digest = hashlib.sha256()
    for path in sorted(_KERNELS.rglob("*.py")):
        digest.update(path.relative_to(_KERNELS).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _hashing() -> threading.Thread:
    """Return the thread that finds the hash, from the first time on: to read all files takes long in a first call."""
    thread = threading.Thread(target=kernel_hash, name="einops_fast hash", daemon=True)
    thread.start()
    return thread


def is_ready() -> bool:
    """Return whether a key takes no longer than its own text; until then the hash for it is made beside the program."""
    return bool(kernel_hash.cache_info().currsize) or not _hashing().is_alive()


def circumstances(device: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what every measurement depends on, as part of its key."""
    return {"device": device, "versions": {"einops_fast": __version__, "kernels": kernel_hash(), **versions}}


def recall(key: Mapping[str, Any], mode: str) -> Record | None:
    """Return what was measured for a key by this process or, but in the mode ``'always'``, by any other."""
    text = json.dumps(key, sort_keys=True)
    record = _measured.get(text)
    if record is None and mode != "always":
        record = disk_cache.read(key)
        # Whoever wrote it may have written anything.
        if record is None or not isinstance(record.get("choice"), str):
            return None
        keep(_measured, text, record)
    return record


def agree(key: Mapping[str, Any], mode: str, record: Record, usable: Callable[[str], bool]) -> Record:
    """Write down what was measured, unless another process has done so meanwhile; return what all agree on."""
    theirs = None if mode == "always" else recall(key, mode)
    if theirs is not None and usable(theirs["choice"]):
        return theirs
    disk_cache.write(key, record)
    keep(_measured, json.dumps(key, sort_keys=True), record)
    return record


@dataclass(frozen=True)
class Choice(Generic[W]):
    """What was chosen."""

    way: W  # to compute the problem
    final: bool  # whether it holds for all later calls, too
    record: Record | None = None  # the measurement that it follows from; `None` for a prediction


class Chooser(Generic[W]):
    """Chooses a way for one problem, at each call until a choice is final.

    Args:
        mode: see :func:`einops_fast.autotune`; in ``'auto'``, calls measure themselves, and nothing is measured here.
        whole_calls: calls with their backward are measured, and not kernels.
    """

    def __init__(self, mode: str, whole_calls: bool = False) -> None:
        self.mode, self._lock = mode, _locks[whole_calls]
        self._unknown = False

    def choose(
        self,
        key: Mapping[str, Any],
        named: Callable[[str], W | None],
        near: Callable[[], Sequence[W]],
        predicted: Callable[[], W],
        meanwhile: W,
        measure: Callable[[Sequence[W]], Record | None],
        may_measure: Callable[[], bool] = lambda: True,
        pays: bool = True,
    ) -> Choice[W]:
        """Choose a way. Each function is called only where the choice depends on it.

        Args:
            key: the problem and its :func:`circumstances`.
            named: the way of a name; ``None`` if there is none that works here.
            near: the ways worth measuring. A single one is taken; if there is none, the predicted one.
            predicted: the way that is predicted to be the fastest, where nothing is to be measured.
            meanwhile: the way to take where nothing can be measured now, or nothing worked.
            measure: what measures.
            may_measure: whether it can be done now.
            pays: whether measuring takes less time than it may save.
        """
        if self.mode == "reproducible":
            return Choice(predicted(), True)
        if not self._unknown:
            record = recall(key, self.mode)
            way = None if record is None else named(record["choice"])
            if way is not None:
                return Choice(way, True, record)
            self._unknown = True
        if self.mode in ("never", "auto") or not pays:
            return Choice(predicted(), True)
        if not may_measure():
            return Choice(meanwhile, False)
        ways = near()
        if len(ways) < 2:
            return Choice(ways[0] if ways else predicted(), True)
        text = json.dumps(key, sort_keys=True)
        with self._lock:  # one at a time, unless another thread or process has done so meanwhile
            record = _measured.get(text)
            if record is None or named(record["choice"]) is None:
                _measured.pop(text, None)
                record = measure(ways)
                if record is not None:
                    record = agree(key, self.mode, record, lambda name: named(name) is not None)
        way = None if record is None else named(record["choice"])
        return Choice(meanwhile, True) if way is None else Choice(way, True, record)
