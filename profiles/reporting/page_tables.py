"""The parts of the page that need no script: figures at a glance, tables, notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from einops_fast.profiles.reporting.case_tables import times
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import environment_table, geomean
from einops_fast.profiles.reporting.results import Result

__all__ = ["cards", "environment", "kernels", "measurements", "notes"]


@dataclass(frozen=True)
class Column:
    """A column of the table of measurements.

    Attributes:
        head: what it is called.
        value: of a row: text, or a number, or ``None``.
        shown: how many digits of a number.
    """

    head: str
    value: Callable[[Row], str | float | None]
    shown: str = ""


COLUMNS = (
    Column("framework", lambda row: row.framework),
    Column("dtype", lambda row: row.dtype),
    Column("case", lambda row: row.case),
    Column("direction", lambda row: "backward" if row.backward else "forward"),
    Column("what", lambda row: row.what),
    Column("chosen", lambda row: row.chosen),
    Column("median ms", lambda row: times(1e3, row.seconds), ".4f"),
    Column("spread %", lambda row: times(100, row.spread, row.seconds), ".1f"),
    Column("host µs", lambda row: times(1e6, row.host), ".1f"),
    Column("native/this", lambda row: row.speedup, ".2f"),
    Column("time/floor", lambda row: times(1, row.seconds, row.floor), ".2f"),
    Column("% of roofline", lambda row: times(100, row.floor, row.seconds), ".0f"),
    Column("GB/s", lambda row: times(1e-9, row.moved, row.seconds), ".1f"),
    Column("GFLOP/s", lambda row: times(1e-9, row.flops, row.seconds), ".1f"),
    Column("moved MB", lambda row: times(1e-6, row.moved), ".2f"),
    Column("peak MB", lambda row: times(1e-6, row.peak_bytes), ".2f"),
    Column("error", lambda row: row.error, ".1e"),
    Column("check", lambda row: f"failed: {row.failure}" if row.failure else "right"),
    Column("equation", lambda row: row.equation),
    Column("shapes", lambda row: row.sizes),
    Column("kernels", lambda row: row.kernels),
)


def cards(result: Result, ours: str) -> str:
    """The geometric means of ours; what failed is in none of them."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in result.measured:
        if row.what == ours:
            groups.setdefault((row.framework, row.dtype, "backward" if row.backward else "forward"), []).append(row)
    made = []
    for (framework, dtype, direction), rows in groups.items():
        where = ", ".join(filter(None, (framework, dtype, direction)))
        faster = [row.speedup for row in rows if row.speedup is not None]
        floors = [row.seconds / row.floor for row in rows if row.seconds is not None and row.floor]
        failed = sum(bool(row.failure) for row in rows)
        if faster:
            made.append((f"{geomean(faster):.2f}×", f"as fast as native, {where} ({len(faster)} cases)"))
        if floors:
            made.append((f"{geomean(floors):.2f}×", f"the floor's time, {where} ({len(floors)} cases)"))
        if failed:
            made.append((str(failed), f"failed, {where}"))
    return f'<div class="cards">{"".join(_card(*each) for each in made)}</div>' if made else ""


def measurements(result: Result, name: str) -> str:
    """Every row, with a field to filter by."""
    used = [column for column in COLUMNS if any(column.value(row) not in (None, "") for row in result.rows)]
    head = "".join(_head(column.head, bool(column.shown)) for column in used)
    body = "\n".join(_line(row, used) for row in result.rows)
    return (
        f'<h3>All measurements</h3><div class="controls"><label>Filter <input type="search" data-filters="{name}">'
        f'</label></div><div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def kernels(result: Result) -> str:
    """What runs in a call, and how long."""
    cells = [
        (row.framework, row.dtype, row.case, "backward" if row.backward else "forward", row.what, seconds * 1e6, name)
        for row in result.measured
        for name, seconds in row.kernel_seconds.items()
    ]
    if not cells:
        return ""
    heads = ("framework", "dtype", "case", "direction", "what", "µs", "kernel, or operator on a CPU")
    head = "".join(_head(each, each == "µs") for each in heads)
    lines = "\n".join(
        "<tr>"
        + "".join(f"<td>{escape(text)}</td>" for text in texts)
        + f'<td class="number" data-value="{micros}">{micros:.1f}</td><td class="long">{escape(kernel)}</td></tr>'
        for *texts, micros, kernel in cells
    )
    return (
        f"<details><summary>Kernels of each call ({len(cells)})</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div></details>'
    )


def environment(result: Result) -> str:
    """Versions and everything else that times may depend on."""
    cells: list[Sequence[str]] = [(name, "all", number) for name, number in result.versions.items()]
    cells += environment_table(result.environment).cells
    head = "".join(_head(each, False) for each in ("what", "framework", "value"))
    lines = "\n".join(
        f'<tr><td>{escape(what)}</td><td>{escape(framework)}</td><td class="long">{escape(value)}</td></tr>'
        for what, framework, value in cells
    )
    return (
        f"<details><summary>Environment</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div></details>'
    )


def notes(result: Result) -> str:
    """What the reader has to know."""
    return "\n".join(f'<p class="faint">{escape(note)}</p>' for note in result.notes)


def _card(figure: str, words: str) -> str:
    return f'<div class="card"><b>{escape(figure)}</b>{escape(words)}</div>'


def _head(text: str, numeric: bool) -> str:
    return f'<th{" data-numeric" if numeric else ""}><button type="button">{escape(text)}</button></th>'


def _line(row: Row, columns: Sequence[Column]) -> str:
    cells = []
    for column in columns:
        value = column.value(row)
        if column.shown:
            number = None if value is None else float(value)
            exact, text = ("", "–") if number is None else (repr(number), format(number, column.shown))
            cells.append(f'<td class="number" data-value="{exact}">{text}</td>')
        else:
            cells.append(f"<td>{escape(str(value or ''))}</td>")
    failed = ' class="failed"' if row.failure and not row.guest else ""
    return f"<tr{failed}>{''.join(cells)}</tr>"
