"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail.

``python -m einops_fast.profiles.reporting.html_report OUT.html FILE.json …`` makes one of kept results. Its charts and
tables are the study's own; tables are sorted and filtered by the script in it (``page/``).
"""

from __future__ import annotations

import argparse
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from einops_fast.profiles.reporting.plots import charts_of, drawn
from einops_fast.profiles.reporting.records import phase
from einops_fast.profiles.reporting.report import Table, environment_table, skips_table
from einops_fast.profiles.reporting.results import Result, read_or_end
from einops_fast.profiles.studies import STUDIES

__all__ = ["html_page"]

PAGE = Path(__file__).with_name("page")
NUMBER = re.compile(r"–|-?[\d.]+(e-?\d+)?")


def html_page(results: Sequence[Result]) -> str:
    """The page, as text."""
    return Template(_part("page.html")).substitute(
        title="einops_fast: what was measured",
        style=_part("page.css"),
        body="\n".join(part for at, result in enumerate(results) for part in _section(result, f"table-{at}")),
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _section(result: Result, name: str) -> Iterator[str]:
    whole = "" if result.whole else " (part of a run)"
    yield f"<section>\n<h2>{escape(result.study)}: {escape(result.device)}</h2>"
    yield f'<p class="faint">measured on {result.date}, CPU threads: {result.threads}{whole}</p>'
    for chart in charts_of(result):
        # As images, so that none sees the styles and names of another.
        data = b64encode(drawn(chart, "svg")).decode()
        yield f'<figure><img alt="{escape(chart.name)}" src="data:image/svg+xml;base64,{data}"></figure>'
    for at, shown in enumerate(STUDIES[result.study].tables(result.measured)):
        yield f"<h3>{escape(shown.title)}</h3>"
        yield from (f"<p>{escape(line)}</p>" for line in shown.summary)
        yield f'<div class="controls"><label>Filter <input type="search" data-filters="{name}-{at}"></label></div>'
        yield _table(shown, f"{name}-{at}")
    versions = tuple((name, "all", number) for name, number in result.versions.items())
    environment = environment_table(result.environment)
    for folded in (
        skips_table(result.rows),
        _kernels(result),
        Table(environment.title, environment.columns, [*versions, *environment.cells]),
    ):
        if folded.cells:
            yield f"<details><summary>{folded.title} ({len(folded.cells)})</summary>{_table(folded)}</details>"
    yield from (f'<p class="faint">{escape(note)}</p>' for note in result.notes)
    yield "</section>"


def _kernels(result: Result) -> Table:
    """Return what runs in a call, and how long."""
    cells = [
        (row.framework, row.dtype, row.case, phase(row.backward), row.what, f"{seconds * 1e6:.1f}", name)
        for row in result.measured
        for name, seconds in row.kernel_seconds.items()
    ]
    return Table("Kernels of each call", ("framework", "dtype", "case", "direction", "what", "µs", "kernel"), cells)


def _table(shown: Table, name: str = "") -> str:
    """Return a table whose columns of numbers are sorted as such, and whose lines of failures are red."""
    numeric = [all(map(NUMBER.fullmatch, column)) for column in zip(*shown.cells, strict=True)]
    head = "".join(
        f'<th{" data-numeric" if number else ""}><button type="button">{escape(text)}</button></th>'
        for text, number in zip(shown.columns, numeric, strict=True)
    )
    body = "\n".join(
        f"<tr{' class=failed' if 'failed' in cells[-1] else ''}>{''.join(map(_cell, cells, numeric))}</tr>"
        for cells in shown.cells
    )
    named = f' id="{name}"' if name else ""
    return f'<div class="scroll"><table{named}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(text: str, number: bool) -> str:
    if number:
        return f'<td class="number" data-value="{text.replace("–", "")}">{text}</td>'
    return f"<td{' class=long' if len(text) > 60 else ''}>{escape(text)}</td>"


def main(arguments: Sequence[str]) -> None:
    """Make a page of kept results; end by argparse for what is no result."""
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.reporting.html_report", description="Make a page."
    )
    parser.add_argument("out", type=Path, metavar="HTML")
    parser.add_argument("files", nargs="+", type=Path, metavar="JSON")
    options = parser.parse_args(arguments)
    page = html_page(read_or_end(parser, options.files))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
