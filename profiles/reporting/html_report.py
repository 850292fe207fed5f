"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from string import Template

from einops_fast.observing.pictures import Picture
from einops_fast.observing.tables import has_failed
from einops_fast.profiles.reporting.cells import NOISE
from einops_fast.profiles.reporting.names import explained
from einops_fast.profiles.reporting.plots import charts_of
from einops_fast.profiles.reporting.records import phase
from einops_fast.profiles.reporting.report import Table, environment_table, skips_table
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES

PAGE = Path(__file__).with_name("page") / "page.html"
HEADING = re.compile(r'<h3 id="([\w-]+)">(.*)</h3>')
NUMBER = re.compile(rf"–|-?[\d.]+(e-?\d+)?( {NOISE})?")
BELOW_1_IS_WORSE = "best/ours", "native/ours", "native/this"  # Within noise, a ratio has its sign behind it
LONG = 60  # Characters from which on a cell is wrapped


def html_page(results: Sequence[Result]) -> str:
    """Return the page: charts and tables of each result, with a table of contents."""
    known: set[str] = set()
    sections = [[*_section(f"r{number}", result, known)] for number, result in enumerate(results)]
    contents = []
    for number, (result, section) in enumerate(zip(results, sections, strict=True)):
        tables = [match.groups() for part in section if (match := HEADING.match(part))]
        listed = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in tables)
        contents.append(f'<li><a href="#r{number}">{escape(result.title)}</a><ul>{listed}</ul></li>')
    rough = [f"{result.title}: {doubt}" for result in results for doubt in result.doubts]
    return Template(PAGE.read_text("utf-8")).substitute(
        title="einops_fast: what was measured",
        rough="\n".join(f'<p class="rough">{escape(text)}</p>' for text in rough),
        contents="\n".join(contents),
        body="\n".join(part for section in sections for part in section),
    )


def _section(anchor: str, result: Result, known: set[str]) -> Iterator[str]:
    tables = STUDIES[result.study].tables(result.measured)
    yield f'<h2 id="{anchor}">{escape(result.title)}</h2>'
    yield f'<p class="faint">measured on {result.date}{"" if result.whole else " (part of a run)"}</p>'
    yield from (f'<p class="faint">{escape(note)}</p>' for note in result.notes)
    heads = [head for table in tables for head in table.columns]
    if told := explained([*(row.what for row in result.measured), *heads], known):
        yield f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(words)}</dd>' for name, words in told.items())}</dl>"
    for chart in charts_of(result):
        yield f"<figure>{Picture(chart.spec).image(chart.name)}</figure>"
    for number, table in enumerate(tables):
        yield f'<h3 id="{anchor}-{number}">{escape(table.title)}</h3>'
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


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.columns)
    lines = (
        f"<tr{' class=failed' if has_failed(cells) else ''}>{''.join(map(_cell, table.columns, cells))}</tr>"
        for cells in table.cells
    )
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(column: str, text: str) -> str:
    kind = "number" if NUMBER.fullmatch(text) else "long" if len(text) > LONG else "text"
    if column in BELOW_1_IS_WORSE and re.fullmatch(r"0[\d.]+", text):
        kind += " behind"
    return f'<td class="{kind}">{escape(text)}</td>'
