"""The command line: what is given goes to one of the commands in :mod:`einops_fast.commands`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from einops_fast._version import __version__
from einops_fast.backends import registered
from einops_fast.commands.doctor import doctor
from einops_fast.commands.explain import explain
from einops_fast.commands.output import refuse
from einops_fast.commands.parser import Parser, numbers
from einops_fast.commands.program import split
from einops_fast.commands.run import run
from einops_fast.commands.show import cache, device, metrics
from einops_fast.errors import EinsumError
from einops_fast.observing.tables import lasting
from einops_fast.patching.patch import FUNCTIONS
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.tune.command import add_to as add_tune


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
                options = _parser().parse_args(command)
                if options.command in ("run", "fusions"):
                    then = partial(run, options, program)
                else:
                    with warnings.catch_warnings():
                        warnings.showwarning = _show_in_a_line
                        status = options.answer(options)
    except (EinsumError, ImportError, OSError) as error:
        return refuse(error)
    return status if then is None else then()


def _show_in_a_line(message: Warning | str, *where: Any, **more: Any) -> None:
    """Print a warning as errors are printed: which line of ours gave it doesn't help who runs a command."""
    print(f"einops-fast: {message}", file=sys.stderr)


class _Completion(argparse.Action):
    """Print how a shell completes the command."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        import shtab

        from einops_fast.profiles.__main__ import parser_of

        print(shtab.complete(_parser([parser_of("einops-fast profile")]), values))
        parser.exit()


def _parser(of_profile: Sequence[Parser] = ()) -> Parser:
    """Return the parser of all commands; what follows ``profile`` is read elsewhere."""
    parser = Parser("einops-fast", description="einsum at the speed of the hardware")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    shells = {"choices": ("bash", "zsh", "tcsh"), "help": "print how bash, zsh or tcsh completes this command"}
    parser.add_argument("--print-completion", action=_Completion, metavar="SHELL", **shells)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_programs(commands)
    _add_explain(commands)
    _add(
        commands, "doctor", "say what is installed, what is missing, and check each backend", doctor,
        "Print what was found and what is missing, and compute a contraction and an attention on each backend. The "
        "exit status is 1 if a check has failed.",
    )  # fmt: skip
    commands.add_parser("profile", help="measure on this machine, and report", add_help=False, parents=of_profile)

    of_cache = commands.add_parser("cache", help="show or clear what was measured")
    actions = of_cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add(actions, "show", "print what was chosen for which problem", cache)
    _add(actions, "clear", "remove all entries", cache)
    _add(actions, "path", "print the folder that they are in", cache)
    bringing = _add(actions, "import", "take over what einops-fast tune --out wrote", cache)
    bringing.add_argument("bundle", type=Path, metavar="PATH", help="a folder, or a file that ends in .zip")

    add_tune(commands)
    of_device = _add(
        commands, "device", "show the GPUs, and the rates that plans are priced by", device,
        "Print the GPUs and their rates: as measured on this machine, or as assumed until they are.",
    )  # fmt: skip
    of_device.add_argument("--measure", action="store_true", help="measure now, by torch, on devices that are idle")

    of_metrics = commands.add_parser("metrics", help="sum up tables of metrics")
    summarize = _add(
        of_metrics.add_subparsers(dest="action", required=True, metavar="ACTION"),
        "summarize", "print what follows from the tables in a folder", metrics,
        "Print what follows from the tables that EINOPS_FAST_METRICS, or metrics.record, has written.",
    )  # fmt: skip
    summarize.add_argument("folder", metavar="DIR")
    summarize.add_argument("--top", type=int, default=10, metavar="N", help="lines of each list (default: %(default)s)")
    return parser


def _add(commands: Any, name: str, help: str, answer: Any, description: str = "", usage: str | None = None) -> Parser:
    """Add the parser of a command, which has ``--json``, and return it."""
    parser: Parser = commands.add_parser(name, help=help, description=description or None, usage=usage)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(answer=answer, wrong=parser.error)
    return parser


def _add_programs(commands: Any) -> None:
    """Add what takes a program; see :func:`einops_fast.commands.program.split`."""
    program = "(SCRIPT | -m MODULE | -c CODE) [ARGUMENT...]"
    running = _add(
        commands, "run", "run a script, module or code with einsum replaced or profiled", run,
        "Run a script, module or code as python itself would, with einsum replaced, profiled or both.",
        f"%(prog)s [--patch NAME[,NAME...]] [--profile] {program}",
    )  # fmt: skip
    replaced = ", ".join(f"{name} ({function})" for name, function in FUNCTIONS.items())
    running.add_argument(
        "--patch", type=_names, default=[], metavar="NAME[,NAME...]", help=f"what to run ours beneath: {replaced}"
    )
    running.add_argument(
        "--profile",
        action="store_true",
        help="at the end print every einsum that went through einops_fast, on the standard error",
    )
    fused = _add(
        commands, "fusions", "run a program, and print what was fused where it calls torch.compile", run,
        "Run a script, module or code with torch.compile patched; at the end print, on the standard error, "
        "what was fused and what wasn't.",
        f"%(prog)s {program}",
    )  # fmt: skip
    fused.set_defaults(patch=["torch.compile"], profile=False)
    for parser in (running, fused):
        parser.add_argument("-m", metavar="MODULE", help="a module, and its arguments")
        parser.add_argument("-c", metavar="CODE", help="code, and its arguments")
        parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a script, or - for the standard input")
        parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="its arguments")


def _add_explain(commands: Any) -> None:
    parser = _add(
        commands, "explain", "print the plan of an einsum, or what attention would do", explain,
        "Print what fast_einsum or attention would do with operands of these shapes.",
        "%(prog)s EQUATION SHAPE... [NAME=SIZE...] [OPTIONS]\n"
        "       %(prog)s attention PATTERN SHAPE... [ARGUMENT=VALUE...] [OPTIONS]",
    )  # fmt: skip
    parser.collects = "operands"
    about = "such as 'bind,bjnd->bnij'; or attention, and a pattern or layout behind it"
    parser.add_argument("equation", metavar="EQUATION", help=about)
    about = "of each operand, such as 64,100,8,128 or 64x100x8x128; () of a scalar; h=8 for the size of axis h; "
    about += "causal=True or bias=8x128x128 for an argument of attention"
    parser.add_argument("operands", nargs="+", metavar="SHAPE", help=about)
    about = "of each operand, in elements, such as 1,64"
    parser.add_argument("--strides", nargs="+", type=numbers, metavar="STRIDES", help=about)
    about = "of all operands (default: %(default)s)"
    parser.add_argument("--dtype", default="float32", choices=ITEM_SIZES, metavar="DTYPE", help=about)
    parser.add_argument("--backend", choices=registered(), help="default: numpy, and torch with --device")
    about = "one that needn't be here: h200, h100, a100, sm_90, ..."
    parser.add_argument("--device", metavar="GPU", help=about)
    parser.add_argument(
        "--optimize",
        type=lambda text: {"true": True, "false": False}.get(text.lower(), text),
        default="auto",
        help="true, false or the name of an opt_einsum optimizer (default: %(default)s)",
    )
    parser.add_argument("--memory-limit", metavar="BYTES", help="such as 2GiB: what the call may allocate at a time")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one framework")
    return names
