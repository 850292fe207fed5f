"""What GPUs reach, for the cost model: as measured on this machine, as known, or as of the nearest that is known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import hypot, log
from typing import NamedTuple

from einops_fast.backends.gpu_driver import GpuProperties, gpu_properties
from einops_fast.backends.gpu_rates import MEASURED_DTYPES, Rates, recall_rates
from einops_fast.planning.cost import Ceilings
from einops_fast.runtime.tuning import is_reproducible

# What the driver says of a device, and as measured by hand: bytes per second of a copy, and FLOP/s of products in
# bfloat16 and float16, in float32, and in float64.
_GPUS = (
    (GpuProperties("H200", (9, 0), 132, 1.98e9, 3.201e9, 6144, 50 << 20), 4.2e12, 7.0e14, 5.0e13, 5.0e13),
    (GpuProperties("H100", (9, 0), 132, 1.98e9, 2.619e9, 5120, 50 << 20), 3.0e12, 7.0e14, 5.0e13, 5.0e13),
    (GpuProperties("A100", (8, 0), 108, 1.41e9, 1.215e9, 5120, 40 << 20), 1.4e12, 2.5e14, 1.9e13, 1.8e13),
)


class Told(NamedTuple):
    """The rates of a device, and where those are from that weren't measured.

    Some were if the rates are ``measured``; of products, the dtypes in ``multiplied`` were.
    """

    rates: Rates
    assumed: str
    measured: bool = False
    multiplied: frozenset[str] = frozenset()


def gpu_ceilings(name: str) -> Ceilings:
    """Return the ceilings of the GPU of this name: as measured, if all processes needn't have the same."""
    return _ceilings_of(name, is_reproducible())


@cache
def _ceilings_of(name: str, reproducible: bool) -> Ceilings:
    """Return ceilings, which a process keeps when the device has been measured since: choices must not flip."""
    rates = _known_rates(name).rates if reproducible else told_rates(name).rates
    flops = {dtype: rate for dtype, rate in rates.flops.items() if dtype != "tf32"}
    # A product of complex numbers takes four.
    flops |= {"complex64": flops["float32"] / 4, "complex128": flops["float64"] / 4}
    return Ceilings(
        rates.bandwidth,
        # As measured for copies that permute axes; where another one becomes the fastest, they read whole lines
        # for single elements.
        runs=rates.bandwidth / 2.7,
        gather=rates.bandwidth / 7,
        flops=flops,
        call=rates.call,
        again=rates.again,
        item=0.0,
        broadcast=rates.bandwidth / 2.5,
        tile=0.0,
        depth=48.0,
        blocks={"float16": 128, "bfloat16": 128, "float32": 32, "float64": 32},
        dots=dict.fromkeys(flops, 8e10),
        dot_kernels=frozenset(flops),
        units=rates.units,
        overlaps=True,
    )


def told_rates(name: str) -> Told:
    """Return the rates of a device: those that were measured, and for the others the table's."""
    measured, told = recall_rates(name), _known_rates(name)
    if measured is None:
        return told
    # A framework may not have been set to multiply in all dtypes.
    flops = {**told.rates.flops, **measured.flops}
    return Told(replace(measured, flops=flops), told.assumed, True, frozenset(measured.flops))


def _known_rates(name: str) -> Told:
    """Return the rates in the table, or the nearest device's in proportion to its properties and this one's."""
    for theirs, *rates in _GPUS:
        if theirs.name in name:
            return Told(_rates(theirs, *rates), "known of this device")
    own = next((each for each in gpu_properties() if each.name == name), None)
    if own is None or not (own.computes and own.moves):
        return _known_rates("A100")._replace(assumed="known of the A100")

    def ratios(theirs: GpuProperties) -> tuple[float, float]:
        return own.moves / theirs.moves, own.computes / theirs.computes

    theirs, bandwidth, *flops = min(_GPUS, key=lambda known: hypot(*map(log, ratios(known[0]))))
    moves, computes = ratios(theirs)
    scaled = _rates(own, bandwidth * moves, *[rate * computes for rate in flops])
    return Told(scaled, f"in proportion to the {theirs.name}")


def _rates(of: GpuProperties, bandwidth: float, half: float, single: float, double: float) -> Rates:
    flops = dict(zip(MEASURED_DTYPES, (half, half, half / 2, single, double), strict=True))
    # A loop of small GEMMs is bound by what the host needs to launch one.
    return Rates(bandwidth, flops, 4e-6, 1e-5, of.multiprocessors)
