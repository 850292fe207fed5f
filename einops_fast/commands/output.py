"""What commands print."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

EXTRAS = {"torch": "torch", "triton": "triton", "cupy": "cupy", "mxnet": "mxnet", "rich": "cli", "shtab": "cli"}
"""Optional packages, and the extras that install them."""

_STYLES = {
    r"(?m)\A.*$": "bold",
    r"(?m)^slot .*step.*$|^ +total .*$|^by \w+": "bold cyan",
    r"is copied[^,\n]*": "yellow",
    r"is read as it is|(?m:(?<=  )can)(?=,|$)": "green",
    r"goes to the framework's own einsum.*": "red",
}
"""Styles of rich's, by what has them in an explanation."""


def print_json(value: Any) -> int:
    """Print JSON, and return the exit status of what has succeeded."""
    print(json.dumps(value, indent=2, default=str))
    return 0


def print_marked(text: str) -> int:
    """Print an explanation, in colour on a terminal where rich is installed and NO_COLOR isn't set; return 0."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            marked, console = Text(text), Console()
            for pattern, style in _STYLES.items():
                marked.highlight_regex(pattern, style)
            with console.capture() as printed:  # by itself it ends the process where nobody reads any more
                console.print(marked, soft_wrap=True)
            text = printed.get().rstrip("\n")
    print(text)
    return 0


def refuse(reason: object) -> int:
    """Say in one line on the standard error why a request can't be met, and return the exit status of that."""
    if isinstance(reason, ModuleNotFoundError) and reason.name in EXTRAS:
        reason = f"{reason.name} isn't installed: pip install 'einops_fast[{EXTRAS[reason.name]}]'"
    lines = [line.strip() for line in str(reason).splitlines() if line.strip(" ^")] or [""]
    told = f"{lines[0].removesuffix(':')}: {'; '.join(lines[1:])}" if lines[1:] else lines[0]
    print(f"einops-fast: {told}", file=sys.stderr)
    return 2
