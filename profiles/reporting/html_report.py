"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail.

``python -m einops_fast.profiles.reporting.html_report OUT.html FILE.json …`` makes one of kept results. Tables are in
the page as they are; charts are drawn by the script in it, from the data in it (``page/``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from einops_fast.profiles.reporting.cells import over_floor, times
from einops_fast.profiles.reporting.charts import general_charts, ways_of
from einops_fast.profiles.reporting.records import Row, is_ours, is_own
from einops_fast.profiles.reporting.report import environment_table, geomean
from einops_fast.profiles.reporting.results import Result, read_or_end
from einops_fast.profiles.timing.ranges import phase

__all__ = ["html_page", "ours_of"]

PAGE = Path(__file__).with_name("page")

SCRIPTS = ("page.js", "svg.js", "charts.js")

CHARTS = {
    "native": "How many times as fast as the native call: bars are ours, marks the others",
    "floor": "How many times the device's floor: bars are ours, marks the others",
    "throughput": "Throughput over size",
    "roofline": "Roofline, with ceilings measured in the same run",
}

FAILED = ' class="failed"'

COLUMNS: dict[str, tuple[Callable[[Row], str | float | None], str]] = {
    "framework": (lambda row: row.framework, ""),
    "dtype": (lambda row: row.dtype, ""),
    "case": (lambda row: row.case, ""),
    "direction": (lambda row: phase(row.backward), ""),
    "what": (lambda row: row.what, ""),
    "chosen": (lambda row: row.chosen, ""),
    "median ms": (lambda row: times(1e3, row.seconds), ".4f"),
    "spread %": (lambda row: times(100, row.spread, row.seconds), ".1f"),
    "host µs": (lambda row: times(1e6, row.host), ".1f"),
    "native/this": (lambda row: row.speedup, ".2f"),
    "time/floor": (over_floor, ".2f"),
    "% of roofline": (lambda row: times(100, row.floor, row.seconds), ".0f"),
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
"""Columns of the table of measurements: the value of a row, and the format of those that are numbers."""


def html_page(results: Sequence[Result], title: str = "einops_fast: what was measured") -> str:
    """The page, as text."""
    # What ends a script element, or begins a comment in one, must not stand in the data.
    data = json.dumps([_data(result) for result in results], ensure_ascii=False).replace("<", "\\u003c")
    return Template(_part("page.html")).substitute(
        title=escape(title),
        style=_part("page.css"),
        body="\n".join(_section(at, result) for at, result in enumerate(results)),
        data=data,
        script="\n".join(map(_part, SCRIPTS)),
    )


def ours_of(rows: Sequence[Row]) -> str:
    """The name that our implementation goes by in these rows; empty if there is none."""
    return next((row.what for row in rows if is_ours(row.what)), "")


def _part(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _group(row: Row) -> str:
    return f"{row.framework}, {row.dtype}, {phase(row.backward)}"


def _groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_group(row), []).append(row)
    return groups


def _data(result: Result) -> dict[str, Any]:
    """Return what the charts are drawn from: those of each group of rows, and the ways in the order of colours."""
    ceilings = {(each.framework, each.dtype): each for each in result.ceilings}
    charts = {
        name: [asdict(chart) for chart in general_charts(rows, ceilings.get((rows[0].framework, rows[0].dtype)), name)]
        for name, rows in _groups(row for row in result.measured if row.dtype).items()
    }
    ways = sorted(ways_of(result.measured), key=lambda name: (not is_ours(name), not is_own(name)))
    return {"own": sorted(filter(is_own, ways)), "ways": ways, "charts": charts}


def _section(at: int, result: Result) -> str:
    groups = dict.fromkeys(_group(row) for row in result.measured if row.dtype)
    options = "".join(f"<option>{escape(group)}</option>" for group in groups)
    figures = "\n".join(
        f'<figure data-chart="{name}"><figcaption>{caption}</figcaption><div class="chart"></div></figure>'
        for name, caption in CHARTS.items()
    )
    charts = (
        f'<div class="controls"><label>Charts of <select>{options}</select></label></div>\n'
        f'<div class="legend"></div>\n<div class="charts">{figures}</div>'
    )
    whole = "" if result.whole else " (part of a run)"
    return "\n".join(
        (
            f'<section data-result="{at}">',
            f"<h2>{escape(result.study)}: {escape(result.device)}</h2>",
            f'<p class="faint">measured on {result.date}, CPU threads: {result.threads}{whole}</p>',
            _cards(result),
            charts if groups else "",
            _measurements(result, f"rows-{at}"),
            _kernels(result),
            _environment(result),
            *(f'<p class="faint">{escape(note)}</p>' for note in result.notes),
            "</section>",
        )
    )


def _cards(result: Result) -> str:
    """Return the geometric means of ours at a glance; what failed is in none of them."""
    ours = ours_of(result.measured)
    made = []
    for where, rows in _groups(row for row in result.measured if row.what == ours).items():
        faster = [row.speedup for row in rows if row.speedup is not None]
        floors = [value for row in rows if (value := over_floor(row)) is not None]
        failed = sum(bool(row.failure) for row in rows)
        if faster:
            made.append((f"{geomean(faster):.2f}×", f"as fast as native, {where} ({len(faster)} cases)"))
        if floors:
            made.append((f"{geomean(floors):.2f}×", f"the floor's time, {where} ({len(floors)} cases)"))
        if failed:
            made.append((str(failed), f"failed, {where}"))
    cards = "".join(f'<div class="card"><b>{escape(figure)}</b>{escape(words)}</div>' for figure, words in made)
    return f'<div class="cards">{cards}</div>' if made else ""


def _measurements(result: Result, name: str) -> str:
    """Return a table of every row, with a field to filter by."""
    used = {
        head: (value, shown)
        for head, (value, shown) in COLUMNS.items()
        if any(value(row) not in (None, "") for row in result.rows)
    }
    lines = [
        ([_cell(value(row), shown) for value, shown in used.values()], bool(row.failure and not row.guest))
        for row in result.rows
    ]
    return (
        f'<h3>All measurements</h3><div class="controls"><label>Filter <input type="search" data-filters="{name}">'
        f"</label></div>{_table([(head, bool(shown)) for head, (_, shown) in used.items()], lines, name)}"
    )


def _kernels(result: Result) -> str:
    """Return what runs in a call, and how long."""
    heads = ("framework", "dtype", "case", "direction", "what", "µs", "kernel, or operator on a CPU")
    lines = [
        ([*(_cell(text) for text in (row.framework, row.dtype, row.case, phase(row.backward), row.what)),
          _cell(seconds * 1e6, ".1f"), _cell(name, css="long")], False)
        for row in result.measured
        for name, seconds in row.kernel_seconds.items()
    ]  # fmt: skip
    return _folded(f"Kernels of each call ({len(lines)})", heads, lines) if lines else ""


def _environment(result: Result) -> str:
    """Return versions and everything else that times may depend on."""
    cells = [
        *((name, "all", number) for name, number in result.versions.items()),
        *environment_table(result.environment).cells,
    ]
    lines = [([_cell(what), _cell(framework), _cell(value, css="long")], False) for what, framework, value in cells]
    return _folded("Environment", ("what", "framework", "value"), lines)


Lines = Sequence[tuple[Sequence[str], bool]]
"""The cells of each line, and whether it is of a failure."""


def _folded(summary: str, heads: Sequence[str], lines: Lines) -> str:
    table = _table([(head, head == "µs") for head in heads], lines)
    return f"<details><summary>{summary}</summary>{table}</details>"


def _table(heads: Iterable[tuple[str, bool]], lines: Lines, name: str = "") -> str:
    """Return a table; the second of each head says whether its column is sorted by numbers."""
    head = "".join(
        f'<th{" data-numeric" if numeric else ""}><button type="button">{escape(text)}</button></th>'
        for text, numeric in heads
    )
    body = "\n".join(f"<tr{FAILED if failed else ''}>{''.join(cells)}</tr>" for cells, failed in lines)
    named = f' id="{name}"' if name else ""
    return f'<div class="scroll"><table{named}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(value: str | float | None, shown: str = "", css: str = "") -> str:
    if shown:
        number = None if value is None else float(value)
        exact, text = ("", "–") if number is None else (repr(number), format(number, shown))
        return f'<td class="number" data-value="{exact}">{text}</td>'
    named = f' class="{css}"' if css else ""
    return f"<td{named}>{escape(str(value or ''))}</td>"


def main(arguments: Sequence[str]) -> None:
    """Make a page of kept results.

    Raises:
        SystemExit: by argparse, for what is no result.
    """
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
