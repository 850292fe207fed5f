"""Tables, on a terminal and as files: what was measured, on which device, with which versions, when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.observing.tables import print_table
from einops_fast.profiles.reporting.records import Row, phase

if TYPE_CHECKING:
    from einops_fast.profiles.reporting.results import Result


@dataclass(frozen=True)
class Table:
    """A title, columns, cells, and what follows from them in a line or two; the same for programs in ``figures``."""

    title: str
    columns: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]
    summary: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        return "\n\n".join((f"## {self.title}", markdown_table(self.columns, self.cells), *self.summary))


def markdown_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    plain = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *plain))


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean: ratios of two and of a half cancel out."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def show(table: Table) -> None:
    """Print a table, and what follows from it."""
    numbers = [column for column in table.columns if re.search("ms|µs|/", column)]
    print_table(table.columns, table.cells, numbers, table.title)
    print(*table.summary, sep="\n")


def save(stem: Path, result: Result, tables: Sequence[Table]) -> list[Path]:
    """Write the rows as JSON and CSV, and the tables as Markdown. Part of a run doesn't replace a whole one."""
    if not result.whole:
        stem = stem.with_name(f"{stem.name}-partial")
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("json", "csv", "md")]
    result.write_json(paths[0])
    result.write_csv(paths[1])
    paths[2].write_text(markdown(result, tables), encoding="utf-8")
    return paths


def markdown(result: Result, tables: Sequence[Table]) -> str:
    """Return the tables, with what they were measured on, for a pull request."""
    listed = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    head = f"# {result.title}\n\nMeasured on {result.date} with {listed}."
    doubts = [f"**{doubt}**" for doubt in result.doubts]
    left_out = skips_table(result.rows)
    about = [left_out] if left_out.cells else []
    about += [environment_table(result.environment)] if result.environment else []
    return "\n\n".join((head, *doubts, *(table.markdown() for table in [*tables, *about]), *result.notes)) + "\n"


def environment_table(environment: Mapping[str, Mapping[str, str]]) -> Table:
    """Return what times may depend on: what is the same for several frameworks is said once."""
    cells = []
    for name in dict.fromkeys(name for found in environment.values() for name in found):
        values: dict[str, list[str]] = {}
        for framework, found in environment.items():
            if name in found:
                values.setdefault(found[name], []).append(framework)
        for value, frameworks in values.items():
            everywhere = len(frameworks) == len(environment) > 1
            cells.append((name, "all" if everywhere else ", ".join(frameworks), value))
    return Table("Environment", ("what", "framework", "value"), cells)


def skips_table(rows: Sequence[Row]) -> Table:
    """Return everything that failed or was left out, with the reason."""
    cells = [
        (row.framework, row.dtype or "–", row.case, row.what, phase(row.backward),
         row.failure if row.guest else f"failed: {row.failure}")
        for row in rows
        if row.failure
    ]  # fmt: skip
    return Table("Failed or left out", ("framework", "dtype", "case", "what", "direction", "reason"), cells)
