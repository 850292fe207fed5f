"""Run studies over frameworks, show their tables, and keep them as files. Ctrl-C keeps what is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from einops_fast.profiles.frameworks import installed
from einops_fast.profiles.reporting.earlier import check_same_machine, compared, earlier_result, finished
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.plots import draw
from einops_fast.profiles.reporting.records import ALL, Ceiling, Extent, Machine, Note, Options, Record, Row
from einops_fast.profiles.reporting.report import (
    Table,
    console,
    environment_table,
    measured_on,
    print_table,
    save,
    skips_table,
    slug,
)
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.limits import interrupts
from einops_fast.profiles.timing.progress import Progress
from einops_fast.profiles.worker import run_worker

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Outcome", "Run", "run_studies", "run_study"]

_INTERRUPTED = "Interrupted: what is missing was not measured."

INTERRUPTED = 130
"""The exit status of a run that Ctrl-C ended, as a shell has it."""


@dataclass(frozen=True)
class Run:
    """What is wanted of a run of one or several studies.

    Attributes:
        options: what to measure.
        folder: where the files go.
        frameworks: those to measure; default: all that a study is about and that are installed.
        earlier: results of earlier runs to compare with.
        resumed: results of earlier runs whose cases aren't measured again, but kept beside the others.
        verbose: show whole tracebacks of what failed or was left out.
    """

    options: Options
    folder: Path
    frameworks: Sequence[str] = ()
    earlier: Sequence[Path] = ()
    resumed: Sequence[Path] = ()
    verbose: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a study.

    Attributes:
        status: an exit status: 0 if every result was right.
        interrupted: by Ctrl-C; nothing more is wanted.
        result: what was measured, if anything.
        paths: the files that were written.
    """

    status: int
    interrupted: bool = False
    result: Result | None = None
    paths: tuple[Path, ...] = ()


@dataclass
class _Found:
    """What the processes have told so far, and an earlier run before them."""

    before: Result | None = None
    machines: list[Machine] = field(default_factory=list)
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    ceilings: dict[tuple[str, str], Ceiling] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, before: Result | None, done: Sequence[str]) -> _Found:
        """What an earlier run has done."""
        if before is None:
            return cls()
        rows = [row for row in before.measured if row.task in done]
        ceilings = {(each.framework, each.dtype): each for each in before.ceilings}
        notes = [note for note in before.notes if note != _INTERRUPTED]
        if done:
            notes.append(f"{len(done)} of the cases are of an earlier run, of {before.date}.")
        return cls(before, [], {row.key: row for row in rows}, ceilings, notes)

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        """What times may depend on, by framework."""
        return {each.framework: each.environment for each in self.machines if each.environment}


def run_studies(names: Sequence[str], run: Run) -> int:
    """Run studies one after another, and put all that they found on one page.

    Raises:
        ValueError: a result to go on from isn't of the same kind of run.

    Returns:
        An exit status: 0 if every result of every study was right.
    """
    outcomes = []
    for name in names:
        outcomes.append(run_study(name, run))
        if outcomes[-1].interrupted:
            break
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    if results:
        page = run.folder / ("report.html" if all(result.whole for result in results) else "report-partial.html")
        page.write_text(html_page(results), encoding="utf-8")
        console().print(f"wrote {page}", highlight=False)
    return max(outcome.status for outcome in outcomes)


def run_study(name: str, run: Run) -> Outcome:
    """Measure in one process per framework, one after another."""
    study = STUDIES[name]
    to = console()
    before = earlier_result(run.resumed, name)
    done = () if before is None else finished(before, run.options)
    options = replace(run.options, done=done)
    found = _Found.of(before, done)
    # Not on Windows.
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        found.notes.append(f"The machine was busy before: a load of {os.getloadavg()[0]:.1f}. Times are rough.")
    wanted = list(run.frameworks or filter(installed, study.frameworks))
    try:
        with interrupts(), Progress(to, name, wanted) as progress:
            for framework in wanted:
                progress.begin(framework)
                for record in run_worker(name, framework, options):
                    _keep(record, found, progress)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
        found.notes.append(_INTERRUPTED)
    found.notes = list(dict.fromkeys(found.notes))
    rows = list(found.rows.values())
    # Such a row is of a process that crashed.
    ended = interrupted or any(row.case == ALL and not row.guest for row in rows)
    whole = not ended and _is_whole(run, study.peers)
    tables = study.tables([row for row in rows if row.case != ALL])
    result = _result(name, found, rows, tables, whole, options) if found.machines else None
    other = earlier_result(run.earlier, name)
    if result is not None and other is not None:
        tables = [*tables, compared(result, other)]
    # Kept before they are shown: whoever reads may be gone, as `head` is.
    paths: list[Path] = []
    if result is not None and result.measured:
        base = slug(f"{name}{_family(options)}", measured_on(found.machines))
        paths = save(run.folder / "-".join((base, *options.dtypes)), result, tables)
        if whole:
            paths += draw(result.measured, run.folder / base, result.ceilings, study=name)
    _show(to, tables, found, rows, run.verbose)
    for path in paths:
        to.print(f"wrote {path}", highlight=False)
    failed = any(row.failure and not row.guest for row in rows)
    nothing = result is None or not result.measured
    status = INTERRUPTED if interrupted else int(failed or nothing)
    return Outcome(status, interrupted, None if nothing else result, tuple(paths))


def _keep(record: Record, found: _Found, progress: Progress) -> None:
    match record:
        case Row():
            found.rows[record.key] = record
            progress.measured(record)
        case Machine():
            if found.before is not None:
                check_same_machine(found.before, record)
            found.machines.append(record)
        case Extent():
            progress.expect(record.cases)
        case Ceiling():
            found.ceilings[record.framework, record.dtype] = record
        case Note():
            found.notes.append(record.text)


def _is_whole(run: Run, peers: Sequence[str]) -> bool:
    options = run.options
    some_peers = bool(options.peers) and not set(peers) <= set(options.peers)
    return not (run.frameworks or options.only or options.quick or options.forward_only or some_peers)


def _family(options: Options) -> str:
    """What the names of files say about the cases: nothing of the public ones, the file's name of others."""
    return "" if options.cases == "public" else f"-{Path(options.cases).stem}"


def _result(
    name: str, found: _Found, rows: Sequence[Row], tables: Sequence[Table], whole: bool, options: Options
) -> Result:
    machine = measured_on(found.machines)
    return Result(
        name,
        machine.device,
        machine.threads,
        datetime.now(timezone.utc).date().isoformat(),
        whole,
        {library: number for each in found.machines for library, number in each.versions.items()},
        tuple(found.notes),
        tuple(rows),
        ceilings=tuple(found.ceilings.values()),
        environment=found.environment,
        summaries=tuple({"title": table.title, **table.figures} for table in tables if table.figures),
        quick=options.quick,
        peers=options.peers,
    )


def _show(to: Console, tables: Sequence[Table], found: _Found, rows: Sequence[Row], verbose: bool) -> None:
    for table in tables:
        print_table(to, table)
    skips = skips_table(rows)
    if skips.cells:
        print_table(to, skips)
    if found.environment:
        print_table(to, environment_table(found.environment))
    for note in found.notes:
        to.print(note, highlight=False, markup=False)
    if verbose:
        for row in rows:
            if row.details:
                to.print(f"\n{row.framework} {row.dtype} {row.case} {row.what}:", highlight=False, markup=False)
                to.print(row.details.rstrip(), highlight=False, markup=False)
