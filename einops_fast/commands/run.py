"""The commands ``einops-fast run`` and ``fusions``: run a program as it is, with einsum replaced or profiled."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from einops_fast.commands.output import refuse
from einops_fast.commands.parser import add_json
from einops_fast.commands.program import prepared
from einops_fast.compiler.report import fusions
from einops_fast.errors import EinsumError
from einops_fast.observing.ending import at_end
from einops_fast.observing.observers import profile
from einops_fast.patching.patch import FUNCTIONS, patch

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the commands' parsers to those of others."""
    running = commands.add_parser(
        "run",
        help="run a script, module or code with einsum replaced or profiled",
        description="Run a script, module or code as python itself would, with einsum replaced, profiled or both.",
        usage="%(prog)s [--patch NAME[,NAME...]] [--profile] (SCRIPT | -m MODULE | -c CODE) [ARGUMENT...]",
    )
    running.add_argument(
        "--patch",
        type=_names,
        default=[],
        metavar="NAME[,NAME...]",
        help=f"what to run ours beneath: {', '.join(f'{name} ({function})' for name, function in FUNCTIONS.items())}",
    )
    running.add_argument(
        "--profile",
        action="store_true",
        help="at the end print every einsum that went through einops_fast, on the standard error",
    )
    _add_program(running)

    fused = commands.add_parser(
        "fusions",
        help="run a program, and print what was fused where it calls torch.compile",
        description="Run a script, module or code with torch.compile patched; at the end print, on the standard error, "
        "what was fused and what wasn't.",
        usage="%(prog)s (SCRIPT | -m MODULE | -c CODE) [ARGUMENT...]",
    )
    _add_program(fused)
    fused.set_defaults(patch=["torch.compile"], profile=False)


def _add_program(parser: argparse.ArgumentParser) -> None:
    """Say in a command's help that it takes a program; see :func:`einops_fast.commands.program.split`."""
    add_json(parser, "print what is printed at the end as a line of JSON for each process")
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


def run(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Run a program, and return the exit status, if the program ends without one."""
    if not (options.patch or options.profile):
        options.wrong("give --patch NAME, --profile or both")
    if not program or (program[0] in ("-m", "-c") and len(program) < 2):
        options.wrong("what shall be run? Give a script, -m and a module, or -c and code")
    seen: Any = None
    # For the rest of the process: threads and exit handlers may outlive the script.
    with ExitStack() as stack:
        try:
            prepare = prepared(program)
            # Whether anybody looks on decides what a patch of attention sees.
            if options.profile or options.command == "fusions":
                seen = stack.enter_context(profile() if options.profile else fusions())
            if options.patch:
                patch(*options.patch)
        except (EinsumError, ImportError, OSError) as error:
            return refuse(error)
        atexit.register(stack.pop_all().close)
    if seen is not None:
        _print_at_end(seen, options.json)
    prepare()
    return 0


def _print_at_end(seen: Any, in_json: bool) -> None:
    """Print the profile, or the fusions, of a program at its end, whichever way it ends, and of each of its forks."""
    process, nothing = os.getpid(), str(seen)

    def report() -> None:
        words, fork = str(seen), os.getpid() != process
        if sys.stderr is None or (fork and words == nothing):
            return
        if in_json:
            print(json.dumps({"process": os.getpid(), **seen.to_dict()}, default=str), file=sys.stderr)
        else:
            print(f"\nprocess {os.getpid()}:\n{words}" if fork else f"\n{words}", file=sys.stderr)

    at_end(report)
