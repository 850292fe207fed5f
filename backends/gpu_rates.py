"""What a GPU reaches, as it was measured, on disk."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any

from einops_fast._version import __version__
from einops_fast.backends.gpu_driver import driver_version
from einops_fast.runtime import disk_cache

MEASURED_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64")
"""Of matrix products; ``'tf32'`` is float32 by tensor cores."""


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
