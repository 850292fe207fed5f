"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from string import Template

from einops_fast.profiles.reporting.plots import charts_of, drawn
from einops_fast.profiles.reporting.records import phase
from einops_fast.profiles.reporting.report import Table, environment_table, skips_table
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES

PAGE = Path(__file__).with_name("page") / "page.html"
NUMBER = re.compile(r"–|-?[\d.]+(e-?\d+)?")
LONG = 60  # Characters from which on a cell is wrapped


def html_page(results: Sequence[Result]) -> str:
    """Return the page: charts and tables of each result."""
    body = "\n".join(part for result in results for part in _section(result))
    return Template(PAGE.read_text("utf-8")).substitute(title="einops_fast: what was measured", body=body)


def _section(result: Result) -> Iterator[str]:
    part = "" if result.whole else " (part of a run)"
    yield f"<h2>{escape(result.study)}: {escape(result.device)}</h2>"
    yield f'<p class="faint">measured on {result.date}, CPU threads: {result.threads}{part}</p>'
    for chart in charts_of(result):
        # As images, so that none sees the styles and names of another.
        data = b64encode(drawn(chart, "svg")).decode()
        yield f'<figure><img alt="{escape(chart.name)}" src="data:image/svg+xml;base64,{data}"></figure>'
    for table in STUDIES[result.study].tables(result.measured):
        yield f"<h3>{escape(table.title)}</h3>"
        yield from (f"<p>{escape(line)}</p>" for line in table.summary)
        yield _table(table)
    kernels = [
        (row.framework, row.dtype, row.case, phase(row.backward), row.what, f"{seconds * 1e6:.1f}", name)
        for row in result.measured
        for name, seconds in row.kernel_seconds.items()
    ]
    versions = [(name, "all", number) for name, number in result.versions.items()]
    environment = environment_table(result.environment)
    for folded in (
        skips_table(result.rows),
        Table("Kernels of each call", ("framework", "dtype", "case", "direction", "what", "µs", "kernel"), kernels),
        replace(environment, cells=[*versions, *environment.cells]),
    ):
        if folded.cells:
            yield f"<details><summary>{folded.title} ({len(folded.cells)})</summary>{_table(folded)}</details>"
    yield from (f'<p class="faint">{escape(note)}</p>' for note in result.notes)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.columns)
    lines = (
        f"<tr{' class=failed' if 'failed' in cells[-1] else ''}>{''.join(map(_cell, cells))}</tr>"
        for cells in table.cells
    )
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(text: str) -> str:
    kind = "number" if NUMBER.fullmatch(text) else "long" if len(text) > LONG else "text"
    return f'<td class="{kind}">{escape(text)}</td>'
