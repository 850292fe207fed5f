"""Run studies over frameworks, show their tables, and keep them as files. Ctrl-C keeps what is done."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from einops_fast.commands.output import print_json
from einops_fast.observing.progress import progress
from einops_fast.observing.tables import lasting
from einops_fast.profiles.frameworks import installed
from einops_fast.profiles.processes import run_worker
from einops_fast.profiles.reporting import report
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.plots import draw
from einops_fast.profiles.reporting.records import ALL, Extent, Note, Options, Record, Row
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES

INTERRUPTED = 130  # The exit status of a run that Ctrl-C ended, as a shell has it


@dataclass(frozen=True)
class Run:
    """What is wanted of a run of one or several studies."""

    options: Options  # what to measure
    folder: Path  # where the files go
    frameworks: Sequence[str] = ()  # those to measure; default: all that a study is about and that are installed
    verbose: bool = False  # show whole tracebacks of what failed or was left out
    in_json: bool = False  # print results as JSON in place of tables


def run_studies(names: Sequence[str], run: Run) -> int:
    """Run studies one after another, and put all that they found on one page; 0 if all results were right."""
    statuses, results, notes = [], [], list(_busy())
    for name in names:
        status, result = run_study(name, run, notes)
        statuses.append(status)
        results.append(result)
        if status == INTERRUPTED:
            break
    kept = [result for result in results if result.kept]
    if kept:
        page = run.folder / ("report.html" if all(result.whole for result in kept) else "report-partial.html")
        page.write_text(html_page(kept), encoding="utf-8")
    with lasting():
        if run.in_json:
            print_json([result.to_dict() for result in results])
        elif kept:
            print(f"wrote {page}")
    return max(statuses)


def run_study(name: str, run: Run, notes: Sequence[Note] = ()) -> tuple[int, Result]:
    """Measure in one process per framework; return 0 if every result was right, and what was found."""
    study, options = STUDIES[name], run.options
    records: list[Record] = [*notes]
    done: set[str] = set()
    expected, interrupted = 0, False
    try:
        with _interrupts(), progress() as told:
            for framework in run.frameworks or filter(installed, study.frameworks):
                for record in run_worker(name, framework, options):
                    records.append(record)
                    now = ""
                    if isinstance(record, Row):
                        now = f"{record.task} {record.what}"
                        done |= {record.task} if record.case != ALL else set()
                    elif isinstance(record, Extent):
                        expected += record.cases
                    told(name, len(done), expected, now)
    except KeyboardInterrupt:
        interrupted = True
        records.append(Note("Interrupted: what is missing was not measured."))
    found = Result.of(name, records, options, whole=not interrupted and _is_whole(name, run))
    tables = study.tables(found.measured)
    # Kept before they are shown: whoever reads may be gone, as `head` is.
    paths = _written(found, tables, run) if found.kept else []
    if not run.in_json:
        with lasting():
            _show(tables, found, run.verbose)
            for path in paths:
                print(f"wrote {path}")
    failed = not paths or any(row.failure and not row.guest for row in found.rows)
    return INTERRUPTED if interrupted else int(failed), found


def _busy() -> Iterator[Note]:
    """Yield a note where other work keeps a processor busy before anything is measured; not on Windows."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5:
        yield Note(f"Times are rough: the machine was busy before, with a load of {load:.1f}.")


@contextmanager
def _interrupts() -> Iterator[None]:
    """Make a request to terminate, as ``timeout`` makes it, a KeyboardInterrupt within the block."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # ``timeout`` asks twice; the second time would interrupt what is done about the first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_whole(name: str, run: Run) -> bool:
    """Return whether everything is wanted that a study measures by default."""
    options = run.options
    some_peers = bool(options.peers) and not set(STUDIES[name].peers) <= set(options.peers)
    return not (run.frameworks or options.only or options.quick or options.forward_only or some_peers)


def _written(found: Result, tables: Sequence[report.Table], run: Run) -> list[Path]:
    """Write the files of a result."""
    options = run.options
    cases = "" if options.cases == "public" else f"-{Path(options.cases).stem}"
    threads = "" if found.gpu else f"-threads-{found.threads}"
    base = re.sub("[^a-z0-9]+", "-", f"{found.study}{cases}-{found.device}{threads}".lower())
    paths = report.save(run.folder / "-".join((base, *options.dtypes)), found, tables)
    return [*paths, *(draw(found, run.folder / base) if found.whole else [])]


def _show(tables: Sequence[report.Table], found: Result, verbose: bool) -> None:
    for doubt in found.doubts:
        print(doubt)
    for table in (*tables, report.skips_table(found.rows), report.environment_table(found.environment)):
        if table.cells:
            report.show(table)
    print(*(note for note in found.notes if note not in found.doubts), sep="\n")
    for row in found.rows:
        if verbose and row.details:
            print(f"\n{row.task} {row.what}:\n{row.details.rstrip()}")
