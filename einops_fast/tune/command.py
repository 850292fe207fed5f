"""The command ``einops-fast tune``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from einops_fast.backends.absent_gpu import AbsentGpu, absent_gpu
from einops_fast.backends.gpu_driver import gpu_properties
from einops_fast.backends.triton_support import installed_version, interpreted
from einops_fast.commands.output import print_json
from einops_fast.errors import EinsumError
from einops_fast.observing.calls import Called
from einops_fast.observing.progress import progress
from einops_fast.observing.tables import print_table
from einops_fast.tune.bundle import check_target, kernels_folder, pack
from einops_fast.tune.recorded import read_calls, why_not


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    parser = commands.add_parser(
        "tune",
        help="compile and measure ahead what a recorded run needs",
        description="Compile and measure what the calls of a run need that was recorded with "
        "EINOPS_FAST_METRICS=calls:DIR, so that a later run finds it on disk.",
    )
    parser.add_argument("file", metavar="FILE", help="the table of calls, or the folder that it is in")
    parser.add_argument(
        "--device",
        default="",
        metavar="DEVICE",
        help="the GPU to tune for, cuda:N (default: cuda:0); or one that isn't here, such as sm_90: "
        "then kernels are compiled, and nothing is measured",
    )
    parser.add_argument("--list", action="store_true", help="print what would be tuned, and what not, and why")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="also write the kernels and all choices of this device to an empty folder, or a file that ends in .zip, "
        "for einops-fast cache import",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(answer=tune)


def tune(options: argparse.Namespace) -> int:
    """Do what the command is asked for, and return its exit status."""
    absent = absent_gpu(options.device) if options.device.startswith("sm_") else None
    calls = read_calls(options.file)
    reasons = {call: why_not(call, bool(options.device)) for call in calls}
    able = [call for call in calls if reasons[call] is None]
    if options.list:
        head = ["kind", "what", "dtype", "direction", "tuned"]
        rows = [
            [call.kind, str(call), _dtypes(call), call.direction, "yes" if why is None else f"no: {why}"]
            for call, why in reasons.items()
        ]
        if options.json:
            return print_json([dict(zip(head, row, strict=True)) for row in rows])
        print_table(head, rows)
        return 0
    number = _number(options.device) if absent is None else 0
    _check_compiler()
    if options.out is not None:
        check_target(options.out)
    if not able:
        words = "; ".join(f"{why} ({count})" for why, count in Counter(reasons.values()).most_common())
        raise EinsumError(f"none of the {len(calls)} calls can be tuned for: {words}")
    folder: AbstractContextManager[Any] = nullcontext() if options.out is None else kernels_folder(options.out)
    with folder as kernels:
        if kernels is not None:
            # Triton reads it when it compiles, here and in other processes.
            os.environ["TRITON_CACHE_DIR"] = str(kernels)
        failed = _run(able, absent, number)
        if kernels is not None:
            gpu = gpu_properties()[number] if absent is None else absent
            pack(options.out, kernels, gpu.capability, gpu.name if absent is None else None)
    if options.json:
        left = {call: why for call, why in reasons.items() if why is not None} | dict(failed)
        return print_json(
            {
                "tuned": len(able) - len(failed),
                "left_out": [{"what": str(call), "why": why} for call, why in left.items()],
            }
        )
    for call, why in failed:
        print(f"einops-fast: left out {call}: {why}", file=sys.stderr)
    left_out = len(calls) - len(able) + len(failed)
    print(f"tuned for {len(able) - len(failed)} kinds of calls, and left out {left_out}")
    return 0


def _run(calls: Sequence[Called], absent: AbsentGpu | None, number: int) -> list[tuple[Called, str]]:
    with progress() as told:
        if absent is None:
            from einops_fast.tune.here import tune_here

            return tune_here(calls, number, told)
        from einops_fast.tune.absent import tune_absent

        return tune_absent(calls, absent, told)


def _number(device: str) -> int:
    """Return the number of a GPU of this machine."""
    here = gpu_properties()
    if not here:
        raise EinsumError(
            "there is no NVIDIA GPU here to measure on; --device sm_90, say, compiles for one without measuring"
        )
    found = re.fullmatch(r"(?:cuda(?::(\d+))?)?", device)
    number = int(found[1] or 0) if found else -1
    if not 0 <= number < len(here):
        raise EinsumError(f"--device is one of cuda:0 to cuda:{len(here) - 1}, or sm_90, say; not {device!r}")
    return number


def _check_compiler() -> None:
    """Raise EinsumError where nothing can be compiled."""
    if installed_version() is None:
        raise EinsumError("Triton isn't installed, which compiles the kernels: pip install 'einops_fast[triton]'")
    if interpreted():
        raise EinsumError("TRITON_INTERPRET is set, and then no kernel is compiled")


def _dtypes(call: Called) -> str:
    return " ".join(dict.fromkeys(each.dtype for each in call.arrays if each is not None))
