"""Run studies over frameworks, show their tables, and keep them as files. Ctrl-C keeps what is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from einops_fast.observing.progress import progress
from einops_fast.observing.tables import lasting
from einops_fast.profiles.frameworks import installed
from einops_fast.profiles.processes import run_worker
from einops_fast.profiles.reporting import report
from einops_fast.profiles.reporting.earlier import check_same_machine, compared, earlier_result, finished
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.plots import draw
from einops_fast.profiles.reporting.records import ALL, Ceiling, Extent, Machine, Note, Options, Record, Row
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.limits import interrupts

__all__ = ["Outcome", "Run", "run_studies", "run_study"]

_INTERRUPTED = "Interrupted: what is missing was not measured."
INTERRUPTED = 130  # The exit status of a run that Ctrl-C ended, as a shell has it


@dataclass(frozen=True)
class Run:
    """What is wanted of a run of one or several studies."""

    options: Options  # what to measure
    folder: Path  # where the files go
    frameworks: Sequence[str] = ()  # those to measure; default: all that a study is about and that are installed
    earlier: Sequence[Path] = ()  # results of earlier runs to compare with
    # results of earlier runs whose cases aren't measured again, but kept beside the others.
    resumed: Sequence[Path] = ()
    verbose: bool = False  # show whole tracebacks of what failed or was left out


@dataclass(frozen=True)
class Outcome:
    """The exit status of a study, 0 if every result was right, and what was measured, if anything."""

    status: int
    result: Result | None = None


@dataclass
class _Found:
    """What the processes have told so far, and an earlier run before them."""

    before: Result | None = None
    machines: list[Machine] = field(default_factory=list)
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    ceilings: dict[tuple[str, str], Ceiling] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    expected: int = 0

    def add(self, record: Record) -> None:
        """Keep a record; of rows of the same the last counts."""
        match record:
            case Row():
                self.rows[record.key] = record
            case Machine():
                if self.before is not None:
                    check_same_machine(self.before, record)
                self.machines.append(record)
            case Ceiling():
                self.ceilings[record.framework, record.dtype] = record
            case Note():
                self.notes.append(record.text)
            case Extent():
                self.expected += record.cases

    @property
    def done(self) -> int:
        """How many cases there are rows of."""
        return len({row.task for row in self.rows.values() if row.case != ALL})


def run_studies(names: Sequence[str], run: Run) -> int:
    """Run studies one after another, and put all that they found on one page; 0 if all results were right."""
    outcomes = []
    for name in names:
        outcomes.append(run_study(name, run))
        if outcomes[-1].status == INTERRUPTED:
            break
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    if results:
        page = run.folder / ("report.html" if all(result.whole for result in results) else "report-partial.html")
        page.write_text(html_page(results), encoding="utf-8")
        with lasting():
            print(f"wrote {page}")
    return max(outcome.status for outcome in outcomes)


def run_study(name: str, run: Run) -> Outcome:
    """Measure in one process per framework, one after another; keep, draw and show what they found."""
    before = earlier_result(run.resumed, name)
    options = replace(run.options, done=() if before is None else finished(before, run.options))
    found = _begun(before, options.done)
    wanted = list(run.frameworks or filter(installed, STUDIES[name].frameworks))
    interrupted = False
    try:
        with interrupts(), progress() as told:
            for framework in wanted:
                for record in run_worker(name, framework, options):
                    found.add(record)
                    now = f"{record.task} {record.what}" if isinstance(record, Row) else ""
                    told(name, found.done, found.expected, now)
    except KeyboardInterrupt:
        interrupted = True
        found.notes.append(_INTERRUPTED)
    rows = list(found.rows.values())
    tables = STUDIES[name].tables([row for row in rows if row.case != ALL])
    # Such a row is of a process that crashed.
    ended = interrupted or any(row.case == ALL and not row.guest for row in rows)
    result = _result(name, found, tables, options, whole=not ended and _is_whole(name, run))
    other = earlier_result(run.earlier, name)
    if result is not None and other is not None:
        tables = [*tables, compared(result, other)]
    # Kept before they are shown: whoever reads may be gone, as `head` is.
    paths: list[Path] = []
    if result is not None:
        cases = "" if options.cases == "public" else f"-{Path(options.cases).stem}"
        base = report.slug(f"{name}{cases}", report.measured_on(found.machines))
        paths = report.save(run.folder / "-".join((base, *options.dtypes)), result, tables)
        paths += draw(result, run.folder / base) if result.whole else []
    with lasting():
        _show(tables, found, rows, run.verbose)
        for path in paths:
            print(f"wrote {path}")
    failed = result is None or any(row.failure and not row.guest for row in rows)
    return Outcome(INTERRUPTED if interrupted else int(failed), result)


def _begun(before: Result | None, done: Sequence[str]) -> _Found:
    """Return what an earlier run has done."""
    found = _Found(before)
    # Not on Windows.
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        found.notes.append(f"The machine was busy before: a load of {os.getloadavg()[0]:.1f}. Times are rough.")
    if before is not None:
        kept: list[Record] = [*before.ceilings, *(row for row in before.measured if row.task in done)]
        for record in kept:
            found.add(record)
        found.notes += [note for note in before.notes if note != _INTERRUPTED]
    if done and before is not None:
        found.notes.append(f"{len(done)} of the cases are of an earlier run, of {before.date}.")
        found.expected = found.done
    return found


def _is_whole(name: str, run: Run) -> bool:
    """Return whether everything is wanted that a study measures by default."""
    options = run.options
    some_peers = bool(options.peers) and not set(STUDIES[name].peers) <= set(options.peers)
    return not (run.frameworks or options.only or options.quick or options.forward_only or some_peers)


def _result(
    name: str, found: _Found, tables: Sequence[report.Table], options: Options, *, whole: bool
) -> Result | None:
    """Return what is kept of a run, if anything was measured."""
    if not found.machines or not found.done:
        return None
    machine = report.measured_on(found.machines)
    return Result(
        name,
        machine.device,
        machine.threads,
        datetime.now(timezone.utc).date().isoformat(),
        whole,
        {library: number for each in found.machines for library, number in each.versions.items()},
        tuple(dict.fromkeys(found.notes)),
        tuple(found.rows.values()),
        ceilings=tuple(found.ceilings.values()),
        environment={each.framework: each.environment for each in found.machines if each.environment},
        summaries=tuple({"title": table.title, **table.figures} for table in tables if table.figures),
        quick=options.quick,
        peers=options.peers,
    )


def _show(tables: Sequence[report.Table], found: _Found, rows: Sequence[Row], verbose: bool) -> None:
    environment = {each.framework: each.environment for each in found.machines if each.environment}
    for table in (*tables, report.skips_table(rows), report.environment_table(environment)):
        if table.cells:
            report.show(table)
    print(*dict.fromkeys(found.notes), sep="\n")
    for row in rows:
        if verbose and row.details:
            print(f"\n{row.task} {row.what}:\n{row.details.rstrip()}")
