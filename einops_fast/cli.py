"""The command line: run a script with its einsum calls replaced or profiled, print the plan of one einsum, measure,
look at the cache and at metrics."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from einops_fast._version import __version__
from einops_fast.backends import registered
from einops_fast.compiler.report import fusions
from einops_fast.errors import EinsumError
from einops_fast.explain import explain_shapes
from einops_fast.observing.ending import at_end
from einops_fast.observing.observers import profile
from einops_fast.observing.tables import lasting, print_table
from einops_fast.patching.patch import FUNCTIONS, patch
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.program import prepared, split
from einops_fast.runtime import disk_cache
from einops_fast.tune.bundle import bring_in
from einops_fast.tune.command import add_to as add_tune

__all__ = ["main"]

_LONGEST = 86400
"""Seconds that nothing takes that was measured: whatever the file says, more are no time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``einops-fast``, which is also ``python -m einops_fast``.

    Args:
        arguments: what follows the command's name; by default this process's own arguments.

    Returns:
        The exit status: 0, 1 where the cache can't be cleared, or 2 for a request that can't be met; the reason is on
        the standard error.

    Raises:
        SystemExit: by argparse for wrong arguments, and by the script that is run.

    Example:
        >>> from einops_fast.cli import main
        >>> main(['explain', 'ij->ji', '2,3'])
        ij->ji
        on numpy (cpu) in float32
        ...
        0
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command, program = arguments, [""]
    if arguments[:1] in (["run"], ["fusions"]):
        command, program = split(arguments, "--patch")
    elif sys.stdout is None:
        return _refuse("the standard output is closed; if nobody shall read it, give >/dev/null")
    status, run = 0, None  # where nobody reads, all is done
    try:
        with lasting():
            if arguments[:1] == ["profile"]:
                # It has a parser of its own, and few programs measure anything.
                from einops_fast.profiles.__main__ import main as profile

                status = profile(arguments[1:], "einops-fast profile")
            else:
                options = _parser().parse_args(command)
                if options.command in ("run", "fusions"):
                    run = partial(_run, options, program)
                else:
                    status = options.answer(options)
    except (EinsumError, ImportError, OSError) as error:
        return _refuse(error)
    return status if run is None else run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("einops-fast", description="einsum at the speed of the hardware")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser(
        "run",
        help="run a script, module or code with einsum replaced or profiled",
        description="Run a script, module or code as python itself would, with einsum replaced, profiled or both.",
        usage="%(prog)s [--patch NAME[,NAME...]] [--profile] (SCRIPT | -m MODULE | -c CODE) [ARGUMENT...]",
        allow_abbrev=False,
    )
    run.add_argument(
        "--patch",
        type=_names,
        default=[],
        metavar="NAME[,NAME...]",
        help=f"what to run ours beneath: {', '.join(f'{name} ({function})' for name, function in FUNCTIONS.items())}",
    )
    run.add_argument(
        "--profile",
        action="store_true",
        help="at the end print every einsum that went through einops_fast, on the standard error",
    )
    _add_program(run)

    fused = commands.add_parser(
        "fusions",
        help="run a program, and print what was fused where it calls torch.compile",
        description="Run a script, module or code with torch.compile patched; at the end print, on the standard error, "
        "what was fused and what wasn't.",
        usage="%(prog)s (SCRIPT | -m MODULE | -c CODE) [ARGUMENT...]",
        allow_abbrev=False,
    )
    _add_program(fused)
    fused.set_defaults(patch=["torch.compile"], profile=False)

    explain = commands.add_parser(
        "explain",
        help="print the plan of an einsum",
        description="Print what fast_einsum would do with contiguous operands of these shapes.",
        allow_abbrev=False,
    )
    explain.add_argument("equation", metavar="EQUATION", help="such as 'bind,bjnd->bnij'")
    explain.add_argument(
        "shapes",
        nargs="+",
        type=_shape,
        metavar="SHAPE",
        help="of each operand, such as 64,100,8,128 or 64x100x8x128; () of a scalar; h=8 for the size of axis h",
    )
    explain.add_argument(
        "--dtype", default="float32", choices=ITEM_SIZES, metavar="DTYPE", help="of all operands (default: %(default)s)"
    )
    explain.add_argument("--backend", default="numpy", choices=registered(), help="default: %(default)s")
    explain.add_argument(
        "--optimize",
        type=lambda text: {"true": True, "false": False}.get(text.lower(), text),
        default="auto",
        help="true, false or the name of an opt_einsum optimizer (default: %(default)s)",
    )
    explain.add_argument("--memory-limit", metavar="BYTES", help="such as 2GiB: what the call may allocate at a time")
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(answer=_explain)

    # For the list of commands; what follows it is read elsewhere.
    commands.add_parser("profile", help="measure on this machine, and report", add_help=False)

    cache = commands.add_parser(
        "cache",
        help="show or clear what was measured",
        description="Show or clear the measurements that are kept on disk.",
        allow_abbrev=False,
    )
    actions = cache.add_subparsers(dest="action", required=True)
    show = actions.add_parser("show", help="print what was chosen for which problem", allow_abbrev=False)
    show.add_argument("--json", action="store_true", help="print JSON, with all that is known")
    actions.add_parser("clear", help="remove all entries")
    actions.add_parser("path", help="print the folder that they are in")
    bringing = actions.add_parser("import", help="take over what einops-fast tune --out wrote", allow_abbrev=False)
    bringing.add_argument("bundle", type=Path, metavar="PATH", help="a folder, or a file that ends in .zip")

    cache.set_defaults(answer=_cache)

    add_tune(commands)

    device = commands.add_parser(
        "device",
        help="show the GPUs, and the rates that plans are priced by",
        description="Print the GPUs and their rates: as measured on this machine, or as assumed until they are.",
        allow_abbrev=False,
    )
    device.add_argument("--measure", action="store_true", help="measure now, by torch, on devices that are idle")
    device.add_argument("--json", action="store_true", help="print JSON")
    device.set_defaults(answer=_device)

    metrics = commands.add_parser("metrics", help="sum up tables of metrics", allow_abbrev=False)
    of_metrics = metrics.add_subparsers(dest="action", required=True)
    summarize = of_metrics.add_parser(
        "summarize",
        help="print what follows from the tables in a folder",
        description="Print what follows from the tables that EINOPS_FAST_METRICS, or metrics.record, has written.",
        allow_abbrev=False,
    )
    summarize.add_argument("folder", metavar="DIR")
    summarize.add_argument("--top", type=int, default=10, metavar="N", help="lines of each list (default: %(default)s)")
    metrics.set_defaults(answer=_metrics)
    return parser


def _add_program(parser: argparse.ArgumentParser) -> None:
    """Say in a command's help that it takes a program; see :func:`einops_fast.program.split`."""
    parser.add_argument("-m", metavar="MODULE", help="a module, and its arguments")
    parser.add_argument("-c", metavar="CODE", help="code, and its arguments")
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a script, or - for the standard input")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="its arguments")
    parser.set_defaults(wrong=parser.error)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one framework")
    return names


def _shape(text: str) -> tuple[int, ...] | dict[str, int]:
    """Return a shape, or the size of an axis by name."""
    name, given, size = text.partition("=")
    sizes = text.strip().removeprefix("(").removesuffix(")").removesuffix(",")
    try:
        if given:
            return {name.strip(): int(size)}
        return tuple(int(size) for size in sizes.replace("x", ",").split(",")) if sizes.strip() else ()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write 64,100, 64x100 or ()") from None


def _run(options: argparse.Namespace, program: Sequence[str]) -> int:
    if not (options.patch or options.profile):
        options.wrong("give --patch NAME, --profile or both")
    if not program or (program[0] in ("-m", "-c") and len(program) < 2):
        options.wrong("what shall be run? Give a script, -m and a module, or -c and code")
    seen: Any = None
    # For the rest of the process: threads and exit handlers may outlive the script.
    with ExitStack() as stack:
        try:
            run = prepared(program)
            # Whether anybody looks on decides what a patch of attention sees.
            if options.profile or options.command == "fusions":
                seen = stack.enter_context(profile() if options.profile else fusions())
            if options.patch:
                patch(*options.patch)
        except (EinsumError, ImportError, OSError) as error:
            return _refuse(error)
        atexit.register(stack.pop_all().close)
    if seen is not None:
        _print_at_end(seen)
    run()
    return 0


def _print_at_end(seen: object) -> None:
    """Print the profile, or the fusions, of a program at its end, whichever way it ends, and of each of its forks."""
    process, nothing = os.getpid(), str(seen)

    def report() -> None:
        words, fork = str(seen), os.getpid() != process
        if sys.stderr is not None and not (fork and words == nothing):
            print(f"\nprocess {os.getpid()}:\n{words}" if fork else f"\n{words}", file=sys.stderr)

    at_end(report)


def _explain(options: argparse.Namespace) -> int:
    sizes = [each for each in options.shapes if isinstance(each, dict)]
    try:
        explanation = explain_shapes(
            options.equation,
            [each for each in options.shapes if isinstance(each, tuple)],
            dtype=options.dtype,
            backend=options.backend,
            optimize=options.optimize,
            sizes={name: size for each in sizes for name, size in each.items()},
            memory_limit=options.memory_limit,
        )
    except TypeError as error:  # a size of an axis that the equation hasn't
        return _refuse(str(error).rpartition("argument ")[2])
    print(json.dumps(explanation.to_dict(), indent=2) if options.json else explanation)
    return 0


def _metrics(options: argparse.Namespace) -> int:
    from einops_fast.observing.metrics_summary import summarize

    print(summarize(options.folder, options.top))
    return 0


def _cache(options: argparse.Namespace) -> int:
    folder = disk_cache.folder()
    if options.action == "path":
        print(folder)
    elif options.action == "import":
        found = bring_in(options.bundle)
        print(f"took over {found.kernels} kernels and {found.choices} choices")
        for versions in found.unlike:
            print(f"einops-fast: choices don't count that were measured with {versions}", file=sys.stderr)
    elif options.action == "clear":
        troubles: list[str] = []
        count = disk_cache.clear(troubles.append)
        removed = f"removed {count} {'entry' if count == 1 else 'entries'} from {folder}"
        if troubles:
            more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
            print(f"einops-fast: {removed}, but {troubles[0]}{more}", file=sys.stderr)
            return 1
        print(removed)
    else:
        entries = list(disk_cache.entries())
        if options.json:
            print(json.dumps([{**vars(entry), "path": str(entry.path)} for entry in entries], indent=2))
        elif entries:
            print_table(
                ["problem", "device", "dtype", "choice", "time, µs"], sorted(map(_cells, entries)), ["time, µs"]
            )
        else:
            print(f"there are no entries in {folder}")
    return 0


def _device(options: argparse.Namespace) -> int:
    from einops_fast.backends.gpu_driver import driver_version, gpu_properties
    from einops_fast.backends.gpus import told_rates

    devices = gpu_properties()
    if not devices:
        return _refuse("NVIDIA's driver finds no GPU here; the rates of CPUs aren't measured")
    try:
        undone = _measure_devices([each.name for each in devices]) if options.measure else []
    except ImportError as error:
        return _refuse(f"torch measures devices: {error}")
    told = {each: told_rates(each.name) for each in devices}
    if options.json:
        listed = [each._asdict() | vars(rates.rates) | {"measured": rates.measured} for each, rates in told.items()]
        print(json.dumps(listed, indent=2))
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
    return _refuse(f"other work disturbed the measuring of {', '.join(undone)}") if undone else 0


def _measure_devices(names: Sequence[str]) -> list[str]:
    """Measure one device of each name by torch; return the names of those that couldn't be."""
    from einops_fast.backends.torch.rates import measure_now

    return [name for name in dict.fromkeys(names) if not measure_now(names.index(name))]


def _cells(entry: disk_cache.Entry) -> list[str]:
    key, record = entry.key, entry.record
    seconds = record.get("seconds")
    known: list[Any] = [key.get("problem"), key.get("device"), key.get("dtype"), record.get("choice")]
    # JSON's true is an int here, and whole numbers have no limit.
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < _LONGEST:
        seconds = None
    known.append(None if seconds is None else f"{seconds * 1e6:.2f}")
    return ["–" if value is None else str(value) for value in known]


def _refuse(reason: object) -> int:
    print(f"einops-fast: {reason}", file=sys.stderr)
    return 2
