"""``python -m einops_fast.profiles [STUDY]``: measure on this machine, print a table, keep it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from einops_fast.profiles.cases import ITEM_SIZES, select
from einops_fast.profiles.compare import RESULTS, run_study
from einops_fast.profiles.extra_cases import FAMILIES
from einops_fast.profiles.frameworks import FRAMEWORKS
from einops_fast.profiles.peers import PEERS
from einops_fast.profiles.records import Options
from einops_fast.profiles.studies import STUDIES


def main(arguments: list[str] | None = None) -> int:
    """Run one study; 0 if all its results were right."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.backward and options.study != "einsum":
        parser.error("--backward is for the study of einsum")
    families = STUDIES[options.study].families
    if options.cases not in families:
        parser.error(f"--cases {options.cases} is not for the study of {options.study}")
    try:
        select(families[options.cases], options.only)
    except ValueError as unknown:
        parser.error(str(unknown))
    chosen = Options(
        device=options.device,
        threads=options.threads,
        dtypes=_names(options.dtype, tuple(ITEM_SIZES)),
        cases=options.cases,
        only=options.only,
        peers=tuple(PEERS) if options.peers == "all" else _names(options.peers, tuple(PEERS)),
        quick=options.quick,
        backward=options.backward,
    )
    frameworks = _names(options.framework, tuple(FRAMEWORKS))
    return run_study(options.study, chosen, frameworks=frameworks, folder=options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles",
        description="Measure on this machine, print a table and keep it.",
    )
    parser.add_argument(
        "study",
        nargs="?",
        choices=tuple(STUDIES),
        default="einsum",
        help="einsum: the problems of apache/mxnet#18043 in every mode (default); contraction: many equations"
        " against all that contracts the same arrays, and the device; overhead: tiny calls, first calls, the import",
    )
    parser.add_argument("--framework", default="", help=f"of {', '.join(FRAMEWORKS)}, separated by commas")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="", help="default: gpu, if any")
    parser.add_argument("--dtype", default="", help=f"of {', '.join(ITEM_SIZES)}, separated by commas")
    parser.add_argument(
        "--cases",
        choices=tuple(FAMILIES),
        default="public",
        help="contraction: the public cases (default), those at other extents and in other layouts, or both",
    )
    parser.add_argument(
        "--only", default="", help="names of cases (or 0, 1, 2), or how names begin, separated by commas"
    )
    parser.add_argument(
        "--peers",
        default="",
        help=f"contraction: what to measure ours against, of {', '.join(PEERS)}, separated by commas, or all;"
        " default: all that are installed on a GPU, native and opt_einsum on a CPU",
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of every framework; default: all")
    parser.add_argument("--quick", action="store_true", help="three rounds: does it run, not how fast is it")
    parser.add_argument("--backward", action="store_true", help="einsum: forward and backward")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser


def _names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(known)})")
    return names


if __name__ == "__main__":
    sys.exit(main())
