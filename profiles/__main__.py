"""``python -m einops_fast.profiles [STUDY]``, also ``einops-fast profile``: measure on this machine, and report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from einops_fast.commands.parser import Parser
from einops_fast.profiles.cases import ITEM_SIZES, AnyCase, parts, select
from einops_fast.profiles.compare import Run, run_studies
from einops_fast.profiles.frameworks import FRAMEWORKS
from einops_fast.profiles.reporting.records import Options
from einops_fast.profiles.reporting.results import reports_folder
from einops_fast.profiles.studies import STUDIES
from einops_fast.vocabulary import closest

EVERY_STUDY = "all"
PEERS = tuple(dict.fromkeys(name for study in STUDIES.values() for name in study.peers))
FAMILIES = tuple(dict.fromkeys(name for study in STUDIES.values() for name in study.families))


def main(arguments: Sequence[str] | None = None, command: str = "python -m einops_fast.profiles") -> int:
    """Run the studies that are asked for; 0 if all their results were right."""
    parser = parser_of(command)
    given = parser.parse_args(arguments)
    try:
        names = _studies(given)
        frameworks = _names(given.framework, tuple(FRAMEWORKS))
        options = Options(
            device=given.device,
            threads=given.threads,
            dtypes=_names(given.dtype, tuple(ITEM_SIZES)),
            # A file by its whole path, for processes elsewhere.
            cases=given.cases if given.cases in FAMILIES else str(Path(given.cases).resolve()),
            only=given.only_run,
            peers=PEERS if given.peers == "all" else _names(given.peers, PEERS),
            quick=given.quick,
            forward_only=given.forward_only,
            trace=str(given.out.resolve() / "traces") if given.trace else "",
        )
        if given.threads < 0:
            raise ValueError(f"--threads {given.threads}: give a number from 1 on, or 0 for all")
        # Found out now, not when hours of measuring are to be kept.
        given.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=given.out):
            pass
    except (ValueError, OSError) as wrong:
        parser.error(str(wrong))
    return run_studies(names, Run(options, given.out, frameworks, given.verbose, given.json))


def parser_of(command: str) -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog=command,
        description="Measure on this machine, print tables, and keep them as JSON, CSV, Markdown and a page of HTML.",
    )
    about = "; ".join(f"{name}: {study.about}" for name, study in STUDIES.items())
    parser.add_argument("study", nargs="*", metavar="STUDY", help=f"{about}; all; default: einsum")
    parser.add_argument("--framework", default="", help=f"of {', '.join(FRAMEWORKS)}, separated by commas")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="", help="default: gpu, if any")
    parser.add_argument("--dtype", default="", help=f"of {', '.join(ITEM_SIZES)}, separated by commas")
    parser.add_argument(
        "--cases",
        default="public",
        metavar=f"{{{','.join(FAMILIES)}}} or FILE",
        help="a family of the study's cases (extra: other extents and layouts; models: equations as models are written "
        "with; sweep: from small to large),"
        " or a JSON or YAML file with equations and shapes of your own",
    )
    parser.add_argument(
        "--only-run", default="", metavar="A,B", help="cases whose name has any of these parts (0, 1, 2: the problems)"
    )
    parser.add_argument("--forward-only", action="store_true", help="leave backward out")
    parser.add_argument(
        "--peers",
        default="",
        help="what to measure ours and the native call against, separated by commas, or all; "
        + "; ".join(f"{name}: of {', '.join(study.peers)}" for name, study in STUDIES.items() if study.peers)
        + "; default: all that are installed on a GPU, on a CPU those that need no compiler",
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of every framework; default: all")
    parser.add_argument("--quick", action="store_true", help="three rounds: does it run, not how fast is it")
    parser.add_argument("--verbose", action="store_true", help="whole tracebacks of what fails or is left out")
    parser.add_argument("--json", action="store_true", help="print JSON: what OUT has of each study")
    parser.add_argument(
        "--trace", action="store_true", help="write a Chrome trace of every case, and torch's table, to OUT/traces"
    )
    parser.add_argument("--out", type=Path, default=reports_folder(), help="folder of the results: %(default)s")
    return parser


def _studies(given: argparse.Namespace) -> list[str]:
    """Return the studies to run: of those that are asked for, the ones that have such cases."""
    asked = _names(",".join(given.study), (*STUDIES, EVERY_STUDY)) or ("einsum",)
    if EVERY_STUDY in asked:
        asked = tuple(STUDIES)
    # A name without a suffix was meant for a family.
    is_file = bool(Path(given.cases).suffix) or Path(given.cases).exists()
    families: dict[str, Sequence[AnyCase]] = {}
    for name in asked:
        if given.cases in STUDIES[name].families or (STUDIES[name].own_cases and is_file):
            families[name] = STUDIES[name].family(given.cases)
    if not families:
        known = ", ".join(dict.fromkeys(family for name in asked for family in STUDIES[name].families))
        known = f"(there are {known}){closest(given.cases, FAMILIES)}"
        raise ValueError(f"--cases {given.cases} is not for the study of {' or '.join(asked)} {known}")
    names = [case.name for family in families.values() for case in family]
    unknown = [part for part in parts(given.only_run) if not any(part in name for name in names)]
    if unknown:
        raise ValueError(
            f"no such case: {', '.join(unknown)} (there are {', '.join(names)}){closest(unknown[0], names)}"
        )
    return [study for study, family in families.items() if select(family, given.only_run)]


def _names(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)} (known: {', '.join(known)}){closest(unknown[0], known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
