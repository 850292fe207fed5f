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
from einops_fast.commands.program import prepared
from einops_fast.compiler.report import fusions
from einops_fast.errors import EinsumError
from einops_fast.observing.ending import at_end
from einops_fast.observing.observers import profile
from einops_fast.patching.patch import patch


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
        _print_at_end(seen, options.json, bool(options.patch))
    prepare()
    return 0


def _print_at_end(seen: Any, in_json: bool, patched: bool) -> None:
    """Print the profile, or the fusions, of a program at its end, whichever way it ends, and of each of its forks."""
    process, nothing = os.getpid(), str(seen)

    def report() -> None:
        words, fork = str(seen), os.getpid() != process
        hint = "" if patched or words != nothing else "; --patch sends a framework's own through it"
        if sys.stderr is None or (fork and words == nothing):
            return
        if in_json:
            print(json.dumps({"process": os.getpid(), **seen.to_dict()}, default=str), file=sys.stderr)
        else:
            print(f"\nprocess {os.getpid()}:\n{words}" if fork else f"\n{words}{hint}", file=sys.stderr)

    at_end(report)
