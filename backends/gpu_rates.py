"""Measure once what a GPU reaches, in slices of a few milliseconds while it is idle, and keep that on disk.

A slice counts only where the device was idle before and after it, and where the host, which the program may hold up,
has queued all of it in time. A rate counts only where its two best slices agree: whatever else runs makes slices
slower, each by another amount.
"""

from __future__ import annotations

import atexit
import datetime
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import inf, isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from einops_fast._version import __version__
from einops_fast.backends.gpu_driver import driver_version
from einops_fast.runtime import background, disk_cache

if TYPE_CHECKING:
    from einops_fast.backends.torch.rates import TorchBench

MEASURED_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64")
"""Of matrix products; ``'tf32'`` is float32 by tensor cores."""

LONGEST = 5e-3
"""Seconds of the device's that a slice may take."""

MOST = 0.4
"""Seconds of the device's that all slices of a process may take."""

AHEAD = 5e-4
"""Seconds of other work before the runs of a slice, in which the host has to queue them."""

_AIM = 3e-3
"""Seconds that a run may take."""

_EXTENTS = (512, 1024, 2048, 4096)
"""Of square matrix products: the largest that a slice has time and room for."""

_SHORT_RUNS, _HOST_RUNS = 4, 64
"""Of a short kernel in a slice, for the device's time and for the host's; of others there is one."""

_FEWEST, _SAMPLES = 3, 20
"""Slices of one rate, at least and at most."""

_AGREE, _AGREE_OF_SHORT = 1.03, 1.1
"""How much longer the second best slice may have taken than the best; of short kernels, what a clock tells is rough."""

_START, _PAUSE, _PATIENCE = 2.0, 5e-3, 1.0
"""Seconds after which a process begins to look whether its device is idle; between two slices, in which the program
gets the device; and of waiting for the next slice after which memory is given back."""

_WAITS = 0.1, 1.5, 30.0
"""Seconds between two looks at the device, the factor by which they grow, and the longest."""

_ATTEMPTS = 100
"""Looks at the device, after which it is left to the next process."""


@dataclass(frozen=True)
class Rates:
    """What a GPU reaches."""

    bandwidth: float  # bytes per second of a copy, reads and writes counted
    # FLOP/s of a large matrix product, by those of `MEASURED_DTYPES` that are known
    flops: Mapping[str, float] = field(hash=False)
    call: float  # seconds of the device's from one short kernel in a queue to the next
    again: float  # seconds that the host takes for a library call
    units: int
    date: str = ""  # on which this was measured; empty where it is from a table


class Slice(NamedTuple):
    """The seconds of one slice, and whether the device was idle at its end.

    The device took ``ahead`` for work before the runs; the host ``queued`` both, and the runs alone in ``host``.
    """

    ahead: float
    seconds: float
    queued: float
    host: float
    alone: bool


class _Disturbed(Exception):
    """The device had other work, or there is no time left."""


class _Meter:
    """Measures a device slice by slice; ``wait`` returns when the next one may be run, or is disturbed."""

    def __init__(self, bench: TorchBench, wait: Callable[[], None]) -> None:
        self._bench, self._wait = bench, wait
        self._ahead = inf
        self.spent = 0.0

    def rates(self) -> Rates:
        """Return what the device reaches; :class:`_Disturbed` where a rate can't be measured."""
        bench = self._bench
        with bench.opened():
            self._slice(bench.copy)  # the first run of anything loads its kernel
            bandwidth = bench.copied / self._least(bench.copy)
            flops = {dtype: self._flops(dtype) for dtype in bench.dtypes}
            self._slice(bench.short)
            call = self._least(bench.short, _SHORT_RUNS, _AGREE_OF_SHORT)
            # However the host is held up, that makes it slower.
            again = min(self._slice(bench.short, _HOST_RUNS).host for _ in range(_SAMPLES)) / _HOST_RUNS
        return Rates(bandwidth, flops, call, again, bench.units, datetime.date.today().isoformat())

    def _flops(self, dtype: str) -> float:
        for extent in _EXTENTS:
            larger = self._bench.product(dtype, extent)
            if larger is None:
                break
            run, flops = larger, 2 * extent**3
            self._slice(run)
            if 8 * self._undisturbed(run).seconds > _AIM:
                break
        return flops / self._least(run)

    def _slice(self, run: Callable[[], Any], times: int = 1) -> Slice:
        if self.spent + LONGEST > MOST:
            raise _Disturbed
        self._wait()
        found = self._bench.slice(run, times)
        self._ahead = min(self._ahead, found.ahead)
        # In what is more than this, the device has waited for the host.
        self.spent += self._ahead + min(found.seconds, _AIM)
        return found

    def _undisturbed(self, run: Callable[[], Any], times: int = 1) -> Slice:
        for _ in range(_SAMPLES):
            found = self._slice(run, times)
            if found.alone and found.queued <= self._ahead:
                return found
        raise _Disturbed

    def _least(self, run: Callable[[], Any], times: int = 1, agree: float = _AGREE) -> float:
        """Return the seconds of one run, when two slices agree on them."""
        samples: list[float] = []
        for _ in range(_SAMPLES):
            samples = sorted([*samples, self._undisturbed(run, times).seconds / times])
            if len(samples) >= _FEWEST and samples[1] <= agree * samples[0]:
                return samples[0]
        raise _Disturbed


def measured_rates(bench: TorchBench) -> Rates | None:
    """Measure a device now; ``None`` where other work disturbs that."""
    with suppress(_Disturbed):
        return _Meter(bench, lambda: None).rates()
    return None


def _key(name: str) -> dict[str, Any]:
    versions = {"einops_fast": __version__}
    with suppress(PackageNotFoundError):
        versions["torch"] = version("torch")
    return {"problem": "rates of the device", "device": name, "driver": driver_version(), "versions": versions}


def recall_rates(name: str) -> Rates | None:
    """Return what was measured of a device with this driver and these libraries, by whichever process."""
    record = disk_cache.read(_key(name))
    # Whoever wrote it may have written anything.
    with suppress(TypeError, KeyError, AttributeError):
        rates = Rates(**record or {})
        numbers = [rates.bandwidth, rates.call, rates.again, rates.units, *rates.flops.values()]
        if all(isfinite(each) and each > 0 for each in numbers):
            return rates
    return None


def keep_rates(name: str, rates: Rates) -> None:
    """Write down what was measured, for the processes to come."""
    disk_cache.write(_key(name), asdict(rates))


_begun: set[str] = set()
_ending = threading.Event()


def measure_behind(name: str, make: Callable[[], TorchBench]) -> None:
    """Have a device of this name measured by a thread while the program leaves it idle, unless it has been.

    The thread makes the bench.
    """
    if name in _begun or not background.available() or recall_rates(name) is not None:
        return
    _begun.add(name)
    thread = threading.Thread(target=_measure_when_idle, args=(name, make), name="einops_fast rates", daemon=True)
    thread.start()
    atexit.register(_end, thread)


def _end(thread: threading.Thread) -> None:
    """Let no call of a driver's be under way when the program takes its libraries down."""
    _ending.set()
    thread.join(1.0)


def _measure_when_idle(name: str, make: Callable[[], TorchBench]) -> None:
    if _ending.wait(_START):
        return
    # What a device or a framework can't do is no concern of the program's.
    with suppress(Exception):
        bench = make()
        meter = _Meter(bench, lambda: _wait_for_idle(bench))
        pause, factor, longest = _WAITS
        for _ in range(_ATTEMPTS):
            if bench.idle():
                with suppress(_Disturbed):
                    keep_rates(name, meter.rates())
                    return
            if meter.spent + LONGEST > MOST or _ending.wait(pause):
                return
            pause = min(pause * factor, longest)


def _wait_for_idle(bench: TorchBench) -> None:
    end = perf_counter() + _PATIENCE
    while not _ending.wait(_PAUSE):
        if bench.idle():
            return
        if perf_counter() > end:
            break
    raise _Disturbed
