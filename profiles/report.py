"""Tables, on a terminal and as files: what was measured, on which device, with which versions, when."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.records import Machine, Row

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Table", "console", "geomean", "measured_on", "milliseconds", "print_table", "ratio", "save", "slug"]


@dataclass(frozen=True)
class Table:
    """A title, columns, cells, and what follows from them in a line or two; the same for programs in ``figures``."""

    title: str
    columns: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]
    summary: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """The table for a Markdown file."""
        lines = [self.columns, ("---",) * len(self.columns), *self.cells]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join((f"## {self.title}", table, *self.summary))


def geomean(values: Iterable[float]) -> float:
    """Geometric mean: ratios of two and of a half cancel out."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def milliseconds(seconds: float | None) -> str:
    """Seconds as the cell of a table."""
    return "–" if seconds is None else f"{seconds * 1e3:.3f}"


def ratio(value: float | None) -> str:
    """A ratio as the cell of a table."""
    return "–" if value is None else f"{value:.2f}"


def console() -> Console:
    """Where tables are printed."""
    try:
        from rich.console import Console
    except ImportError:
        sys.exit("the tables of einops_fast.profiles need rich: pip install 'einops_fast[profile]'")
    # Rich takes a file for a terminal of 80 columns, and cuts what doesn't fit.
    return Console(width=None if sys.stdout.isatty() else 260)


def print_table(to: Console, table: Table) -> None:
    """Print a table in colour."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    rendered = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        rendered.add_column(column, justify="right" if re.search("ms|µs|/", column) else "left")
    for cells in table.cells:
        # Failures stand out, whatever the table.
        rendered.add_row(*map(escape, cells), style="red" if "failed" in cells[-1] else None)
    to.print(rendered)
    for line in table.summary:
        to.print(line, highlight=False, markup=False)


def measured_on(machines: Sequence[Machine]) -> Machine:
    """The machine that files are named after: the GPU, if there was one."""
    return next((machine for machine in machines if machine.gpu), machines[0])


def slug(study: str, machine: Machine) -> str:
    """A study on a machine, as the name of a file."""
    threads = "" if machine.gpu else f"-threads-{machine.threads}"
    return re.sub("[^a-z0-9]+", "-", f"{study}-{machine.device}{threads}".lower())


def save(
    stem: Path,
    study: str,
    machines: Sequence[Machine],
    rows: Sequence[Row],
    tables: Sequence[Table],
    notes: Sequence[str],
    *,
    whole: bool,
) -> list[Path]:
    """Write the rows as JSON and the tables as Markdown. A run that isn't ``whole`` doesn't replace one that was."""
    machine = measured_on(machines)
    versions = {name: number for each in machines for name, number in each.versions.items()}
    date = datetime.now(timezone.utc).date().isoformat()
    if not whole:
        stem = stem.with_name(f"{stem.name}-partial")
    stem.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "study": study,
        "device": machine.device,
        "threads": machine.threads,
        "date": date,
        "whole": whole,
        "versions": versions,
        "notes": list(notes),
        "summaries": [{"title": table.title, **table.figures} for table in tables if table.figures],
        "rows": [asdict(row) for row in rows],
    }
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    head = f"# {study}: {machine.device}, CPU threads: {machine.threads}\n\nMeasured on {date} with {listed}."
    text = "\n\n".join((head, *(table.markdown() for table in tables), *notes)) + "\n"
    paths = [stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.md")]
    paths[0].write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    paths[1].write_text(text, encoding="utf-8")
    return paths
