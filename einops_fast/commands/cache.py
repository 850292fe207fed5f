"""The command ``einops-fast cache``: show, clear or bring in what was measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from einops_fast.commands.output import print_json
from einops_fast.commands.parser import add_json
from einops_fast.observing.tables import print_table
from einops_fast.runtime import disk_cache
from einops_fast.tune.bundle import bring_in

__all__ = ["add_to"]

_LONGEST = 86400
"""Seconds that nothing takes that was measured: whatever the file says, more are no time."""


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    cache = commands.add_parser(
        "cache",
        help="show or clear what was measured",
        description="Show or clear the measurements that are kept on disk.",
    )
    actions = cache.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print what was chosen for which problem")
    clear = actions.add_parser("clear", help="remove all entries")
    path = actions.add_parser("path", help="print the folder that they are in")
    bringing = actions.add_parser("import", help="take over what einops-fast tune --out wrote")
    bringing.add_argument("bundle", type=Path, metavar="PATH", help="a folder, or a file that ends in .zip")
    for each in (show, clear, path, bringing):
        add_json(each, "print JSON, with all that is known" if each is show else "print JSON")
    cache.set_defaults(answer=_cache)


def _cache(options: argparse.Namespace) -> int:
    folder = disk_cache.folder()
    if options.action == "path":
        return print_json({"path": folder}) if options.json else print(folder) or 0
    if options.action == "import":
        found = bring_in(options.bundle)
        if options.json:
            return print_json(found._asdict())
        print(f"took over {found.kernels} kernels and {found.choices} choices")
        for versions in found.unlike:
            print(f"einops-fast: choices don't count that were measured with {versions}", file=sys.stderr)
        return 0
    return _clear(folder, options.json) if options.action == "clear" else _show(folder, options.json)


def _clear(folder: Path, in_json: bool) -> int:
    troubles: list[str] = []
    count = disk_cache.clear(troubles.append)
    if in_json:
        return print_json({"removed": count, "path": folder, "troubles": troubles}) or bool(troubles)
    removed = f"removed {count} {'entry' if count == 1 else 'entries'} from {folder}"
    if troubles:
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        print(f"einops-fast: {removed}, but {troubles[0]}{more}", file=sys.stderr)
        return 1
    print(removed)
    return 0


def _show(folder: Path, in_json: bool) -> int:
    entries = list(disk_cache.entries())
    if in_json:
        return print_json([vars(entry) for entry in entries])
    if entries:
        print_table(["problem", "device", "dtype", "choice", "time, µs"], sorted(map(_cells, entries)), ["time, µs"])
    else:
        print(f"there are no entries in {folder}")
    return 0


def _cells(entry: disk_cache.Entry) -> list[str]:
    key, record = entry.key, entry.record
    seconds = record.get("seconds")
    known: list[Any] = [key.get("problem"), key.get("device"), key.get("dtype"), record.get("choice")]
    # JSON's true is an int here, and whole numbers have no limit.
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < _LONGEST:
        seconds = None
    known.append(None if seconds is None else f"{seconds * 1e6:.2f}")
    return ["–" if value is None else str(value) for value in known]
