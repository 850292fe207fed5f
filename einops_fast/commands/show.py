"""The commands ``einops-fast cache``, ``device`` and ``metrics``: show what was measured or recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from einops_fast.backends.gpu_driver import driver_version, gpu_properties
from einops_fast.backends.gpus import told_rates
from einops_fast.commands.output import print_json, refuse
from einops_fast.observing.tables import print_table
from einops_fast.runtime import disk_cache
from einops_fast.tune.bundle import bring_in

_LONGEST = 86400
"""Seconds that nothing takes that was measured: whatever the file says, more are no time."""


def metrics(options: argparse.Namespace) -> int:
    """Sum up tables of metrics."""
    from einops_fast.metrics import read
    from einops_fast.observing.metrics_summary import summarize

    text = summarize(options.folder, options.top)
    return print_json({"summary": text.splitlines(), **read(options.folder)}) if options.json else _print(text)


def _print(text: object) -> int:
    print(text)
    return 0


def device(options: argparse.Namespace) -> int:
    """Print the GPUs, and the rates that plans are priced by."""
    devices = gpu_properties()
    if not devices:
        return refuse("NVIDIA's driver finds no GPU here; the rates of CPUs aren't measured")
    try:
        undone = _measure_devices([each.name for each in devices]) if options.measure else []
    except ImportError as error:
        return refuse(f"torch measures devices: {error}")
    told = {each: told_rates(each.name) for each in devices}
    if options.json:
        listed = [each._asdict() | vars(rates.rates) | {"measured": rates.measured} for each, rates in told.items()]
        print_json(listed)
    for device, (rates, assumed, measured, multiplied) in () if options.json else told.items():
        major, minor = device.capability
        print(f"{device.name}: compute capability {major}.{minor}, {device.multiprocessors} multiprocessors,")
        print(f"{device.cache >> 20} MiB of L2 cache, driver {driver_version()}")
        origin = f"measured on {rates.date}" if measured else assumed
        rows = [["copy, reads and writes", origin, "GB/s", f"{rates.bandwidth / 1e9:.0f}"]]
        for dtype, rate in rates.flops.items():
            known = origin if dtype in multiplied else assumed
            rows.append([f"matrix product in {dtype}", known, "TFLOP/s", f"{rate / 1e12:.1f}"])
        rows.append(["short kernel in a queue", origin, "µs", f"{rates.call * 1e6:.2f}"])
        rows.append(["library call, the host's time", origin, "µs", f"{rates.again * 1e6:.2f}"])
        print_table(["rate", "from", "unit", "value"], rows, ["value"])
    return refuse(f"other work disturbed the measuring of {', '.join(undone)}") if undone else 0


def _measure_devices(names: Sequence[str]) -> list[str]:
    """Measure one device of each name by torch; return the names of those that couldn't be."""
    from einops_fast.backends.torch.rates import measure_now

    return [name for name in dict.fromkeys(names) if not measure_now(names.index(name))]


def cache(options: argparse.Namespace) -> int:
    """Show, clear or bring in what was measured."""
    folder = disk_cache.folder()
    if options.action == "path":
        return print_json({"path": folder}) if options.json else _print(folder)
    if options.action == "import":
        found = bring_in(options.bundle)
        if options.json:
            return print_json(found._asdict())
        print(f"took over {found.kernels} kernels and {found.choices} choices")
        for versions in found.unlike:
            print(f"einops-fast: choices don't count that were measured with {versions}", file=sys.stderr)
        return 0
    return _clear(folder, options.json) if options.action == "clear" else _show(folder, options.json)


def _clear(folder: Path, in_json: bool) -> int:
    troubles: list[str] = []

    def tell(what: str, path: Path, error: Exception) -> None:
        troubles.append(f"can't {what} {path}: {disk_cache.reason(error)}")

    count = disk_cache.clear(tell)
    if in_json:
        return print_json({"removed": count, "path": folder, "troubles": troubles}) or bool(troubles)
    removed = f"removed {count} {'entry' if count == 1 else 'entries'} from {folder}"
    if troubles:
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        print(f"einops-fast: {removed}, but {troubles[0]}{more}", file=sys.stderr)
        return 1
    print(removed)
    return 0


def _show(folder: Path, in_json: bool) -> int:
    entries = list(disk_cache.entries())
    if in_json:
        return print_json([vars(entry) for entry in entries])
    if entries:
        print_table(["problem", "device", "dtype", "choice", "time, µs"], sorted(map(_cells, entries)), ["time, µs"])
    else:
        print(f"there are no entries in {folder}")
    return 0


def _cells(entry: disk_cache.Entry) -> list[str]:
    key, record = entry.key, entry.record
    seconds = record.get("seconds")
    known: list[Any] = [key.get("problem"), key.get("device"), key.get("dtype"), record.get("choice")]
    # JSON's true is an int here, and whole numbers have no limit.
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < _LONGEST:
        seconds = None
    known.append(None if seconds is None else f"{seconds * 1e6:.2f}")
    return ["–" if value is None else str(value) for value in known]
