"""One page of HTML for any number of results: nothing is fetched, so it opens from disk and can be sent by mail.

``python -m einops_fast.profiles.reporting.html_report OUT.html FILE.json …`` makes one of kept results. Tables are in
the page as they are; charts are drawn by the script in it, from the data in it (``page/``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from einops_fast.profiles.reporting.charts import general_charts, ways_of
from einops_fast.profiles.reporting.page_tables import cards, environment, kernels, measurements, notes
from einops_fast.profiles.reporting.records import Row, is_ours, is_own
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


def html_page(results: Sequence[Result], title: str = "einops_fast: what was measured") -> str:
    """The page, as text."""
    body = "\n".join(_section(at, result) for at, result in enumerate(results))
    # What ends a script element, or begins a comment in one, must not stand in the data.
    data = json.dumps([_data(result) for result in results], ensure_ascii=False).replace("<", "\\u003c")
    template = Template(_part("page.html"))
    return template.substitute(
        title=escape(title),
        style=_part("page.css"),
        body=body,
        data=data,
        script="\n".join(map(_part, SCRIPTS)),
    )


def ours_of(rows: Sequence[Row]) -> str:
    """The name that our implementation goes by in these rows; empty if there is none."""
    return next((row.what for row in rows if is_ours(row.what)), "")


def _part(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _section(at: int, result: Result) -> str:
    rows = result.measured
    groups = dict.fromkeys(_group(row) for row in rows if row.dtype)
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
            cards(result, ours_of(rows)),
            charts if groups else "",
            measurements(result, f"rows-{at}"),
            kernels(result),
            environment(result),
            notes(result),
            "</section>",
        )
    )


def _group(row: Row) -> str:
    return f"{row.framework}, {row.dtype}, {phase(row.backward)}"


def _data(result: Result) -> dict[str, Any]:
    """Return what the charts are drawn from: those of each group of rows, and the ways in the order of colours."""
    groups: dict[str, list[Row]] = {}
    for row in result.measured:
        if row.dtype:
            groups.setdefault(_group(row), []).append(row)
    ceilings = {(each.framework, each.dtype): each for each in result.ceilings}
    charts = {
        name: [asdict(chart) for chart in general_charts(rows, ceilings.get((rows[0].framework, rows[0].dtype)), name)]
        for name, rows in groups.items()
    }
    ways = sorted(ways_of(result.measured), key=lambda name: (not is_ours(name), not is_own(name)))
    return {"own": sorted(filter(is_own, ways)), "ways": ways, "charts": charts}


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
