"""The command line: what is given goes to one of the commands in :mod:`einops_fast.commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from einops_fast._version import __version__
from einops_fast.commands import cache, device, doctor, explain, metrics, run
from einops_fast.commands.output import refuse
from einops_fast.commands.parser import Parser, add_completion, completion_wanted
from einops_fast.commands.program import split
from einops_fast.errors import EinsumError
from einops_fast.observing.tables import lasting
from einops_fast.tune import command as tune

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``einops-fast``, which is also ``python -m einops_fast``.

    Args:
        arguments: what follows the command's name; by default this process's own arguments.

    Returns:
        The exit status: 0, 1 where the cache can't be cleared or a check has failed, or 2 for a request that can't be
        met; the reason is on the standard error.

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
        return refuse("the standard output is closed; if nobody shall read it, give >/dev/null")
    status, then = 0, None  # where nobody reads, all is done
    try:
        with lasting():
            if arguments[:1] == ["profile"]:
                # It has a parser of its own, and few programs measure anything.
                from einops_fast.profiles.__main__ import main as profile

                status = profile(arguments[1:], "einops-fast profile")
            else:
                options = _parser(arguments).parse_args(command)
                if options.command in ("run", "fusions"):
                    then = partial(run.run, options, program)
                else:
                    status = options.answer(options)
    except (EinsumError, ImportError, OSError) as error:
        return refuse(error)
    return status if then is None else then()


def _profile_parsers() -> list[Parser]:
    from einops_fast.profiles.__main__ import parser_of

    return [parser_of("einops-fast profile")]


def _parser(arguments: Sequence[str]) -> Parser:
    parser = Parser("einops-fast", description="einsum at the speed of the hardware")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_completion(parser, arguments)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run.add_to(commands)
    explain.add_to(commands)
    doctor.add_to(commands)
    # What follows it is read elsewhere.
    parents = _profile_parsers() if completion_wanted(arguments) else []
    commands.add_parser("profile", help="measure on this machine, and report", add_help=False, parents=parents)
    for each in (cache, tune, device, metrics):
        each.add_to(commands)
    return parser
