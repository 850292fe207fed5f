"""The command ``einops-fast device``: the GPUs, and the rates that plans are priced by."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from einops_fast.backends.gpu_driver import driver_version, gpu_properties
from einops_fast.backends.gpus import told_rates
from einops_fast.commands.output import print_json, refuse
from einops_fast.commands.parser import add_json
from einops_fast.observing.tables import print_table

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    parser = commands.add_parser(
        "device",
        help="show the GPUs, and the rates that plans are priced by",
        description="Print the GPUs and their rates: as measured on this machine, or as assumed until they are.",
    )
    parser.add_argument("--measure", action="store_true", help="measure now, by torch, on devices that are idle")
    add_json(parser)
    parser.set_defaults(answer=_device)


def _device(options: argparse.Namespace) -> int:
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
