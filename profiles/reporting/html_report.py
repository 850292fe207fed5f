"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail.

``python -m einops_fast.profiles.reporting.html_report OUT.html FILE.json …`` makes one of kept results. Its charts are
the study's own, as SVG; tables are sorted and filtered by the script in it (``page/``).
"""

from __future__ import annotations

import argparse
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from einops_fast.profiles.reporting.cells import over_floor, times
from einops_fast.profiles.reporting.plots import charts_of, drawn
from einops_fast.profiles.reporting.records import Row, phase
from einops_fast.profiles.reporting.report import environment_table
from einops_fast.profiles.reporting.results import Result, read_or_end
from einops_fast.profiles.studies import STUDIES

__all__ = ["html_page"]

PAGE = Path(__file__).with_name("page")

Columns = dict[str, tuple[Callable[[Row], str | float | None], str]]

WHOSE: Columns = {
    "framework": (lambda row: row.framework, ""),
    "dtype": (lambda row: row.dtype, ""),
    "case": (lambda row: row.case, ""),
    "direction": (lambda row: phase(row.backward), ""),
    "what": (lambda row: row.what, ""),
}

# Columns of the table of measurements: the value of a row, and the format of those that are numbers.
COLUMNS: Columns = {
    **WHOSE,
    "chosen": (lambda row: row.chosen, ""),
    "median ms": (lambda row: times(1e3, row.seconds), ".4f"),
    "spread %": (lambda row: times(100, row.spread, row.seconds), ".1f"),
    "host µs": (lambda row: times(1e6, row.host), ".1f"),
    "native/this": (lambda row: row.speedup, ".2f"),
    "time/floor": (over_floor, ".2f"),
    "GB/s": (lambda row: times(1e-9, row.moved, row.seconds), ".1f"),
    "GFLOP/s": (lambda row: times(1e-9, row.flops, row.seconds), ".1f"),
    "moved MB": (lambda row: times(1e-6, row.moved), ".2f"),
    "peak MB": (lambda row: times(1e-6, row.peak_bytes), ".2f"),
    "error": (lambda row: row.error, ".1e"),
    "check": (lambda row: f"failed: {row.failure}" if row.failure else "right", ""),
    "equation": (lambda row: row.equation, ""),
    "shapes": (lambda row: row.sizes, ""),
    "kernels": (lambda row: row.kernels, ""),
}


def html_page(results: Sequence[Result], title: str = "einops_fast: what was measured") -> str:
    """The page, as text."""
    return Template(_part("page.html")).substitute(
        title=escape(title),
        style=_part("page.css"),
        body="\n".join(_section(result, f"rows-{at}") for at, result in enumerate(results)),
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _section(result: Result, name: str) -> str:
    whole = "" if result.whole else " (part of a run)"
    used = {head: column for head, column in COLUMNS.items() if any(column[0](row) for row in result.rows)}
    environment = [
        *((name, "all", number) for name, number in result.versions.items()),
        *environment_table(result.environment).cells,
    ]
    kernels = [
        [*(value(row) for value, _ in WHOSE.values()), seconds * 1e6, name]
        for row in result.measured
        for name, seconds in row.kernel_seconds.items()
    ]
    rows = [[value(row) for value, _ in used.values()] for row in result.rows]
    tables = STUDIES[result.study].tables(result.measured)
    failed = [bool(row.failure and not row.guest) for row in result.rows]
    return "\n".join(
        (
            f"<section>\n<h2>{escape(result.study)}: {escape(result.device)}</h2>",
            f'<p class="faint">measured on {result.date}, CPU threads: {result.threads}{whole}</p>',
            *(f"<p>{escape(' '.join((f'{table.title}.', *table.summary)))}</p>" for table in tables),
            *_figures(result),
            f'<h3>All measurements</h3><div class="controls"><label>Filter <input type="search" data-filters="{name}">',
            f"</label></div>{_table({head: shown for head, (_, shown) in used.items()}, rows, failed, name)}",
            _folded(f"Kernels of each call ({len(kernels)})", {**dict.fromkeys(WHOSE, ""), "µs": ".1f", "kernel": ""},
                    kernels),
            _folded("Environment", dict.fromkeys(("what", "framework", "value"), ""), environment),
            *(f'<p class="faint">{escape(note)}</p>' for note in result.notes),
            "</section>",
        )
    )  # fmt: skip


def _figures(result: Result) -> Iterable[str]:
    """Yield the charts of a result, as images: so none sees the styles and names of another."""
    for chart in charts_of(result):
        data = b64encode(drawn(chart, "svg")).decode()
        yield f'<figure><img alt="{escape(chart.name)}" src="data:image/svg+xml;base64,{data}"></figure>'


Lines = Sequence[Sequence[str | float | None]]


def _folded(summary: str, heads: dict[str, str], lines: Lines) -> str:
    table = _table(heads, lines, [False] * len(lines))
    return f"<details><summary>{summary}</summary>{table}</details>" if lines else ""


def _table(heads: dict[str, str], lines: Lines, failed: Sequence[bool], name: str = "") -> str:
    """Return a table; columns with a format are sorted by numbers, lines that failed are red."""
    head = "".join(
        f'<th{" data-numeric" if shown else ""}><button type="button">{escape(text)}</button></th>'
        for text, shown in heads.items()
    )
    made = []
    for line, bad in zip(lines, failed, strict=True):
        cells = "".join(map(_cell, line, heads.values()))
        made.append(f'<tr class="failed">{cells}</tr>' if bad else f"<tr>{cells}</tr>")
    body = "\n".join(made)
    named = f' id="{name}"' if name else ""
    return f'<div class="scroll"><table{named}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(value: str | float | None, shown: str) -> str:
    if shown:
        number = None if value is None else float(value)
        exact, text = ("", "–") if number is None else (repr(number), format(number, shown))
        return f'<td class="number" data-value="{exact}">{text}</td>'
    text = escape(str(value or ""))
    return f'<td class="long">{text}</td>' if len(text) > 60 else f"<td>{text}</td>"


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
