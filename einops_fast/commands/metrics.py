"""The command ``einops-fast metrics``."""

from __future__ import annotations

import argparse
from typing import Any

from einops_fast.commands.output import print_json
from einops_fast.commands.parser import add_json

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    metrics = commands.add_parser("metrics", help="sum up tables of metrics")
    actions = metrics.add_subparsers(dest="action", required=True, metavar="ACTION")
    parser = actions.add_parser(
        "summarize",
        help="print what follows from the tables in a folder",
        description="Print what follows from the tables that EINOPS_FAST_METRICS, or metrics.record, has written.",
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="lines of each list (default: %(default)s)")
    add_json(parser)
    metrics.set_defaults(answer=_metrics)


def _metrics(options: argparse.Namespace) -> int:
    from einops_fast.observing.metrics_summary import summarize, summary

    if options.json:
        return print_json(summary(options.folder, options.top))
    print(summarize(options.folder, options.top))
    return 0
