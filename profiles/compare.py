"""Run studies over frameworks, show their tables, and keep them as files. Ctrl-C keeps what is done."""

from __future__ import annotations

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

__all__ = ["Run", "run_studies", "run_study"]

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


@dataclass
class _Found:
    """What the processes have told so far, and an earlier run before them."""

    before: Result | None = None
    machines: list[Machine] = field(default_factory=list)
    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)  # of the same the last counts
    ceilings: dict[tuple[str, str], Ceiling] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    expected: int = 0

    def add(self, record: Record) -> None:
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
    def measured(self) -> list[Row]:
        return [row for row in self.rows.values() if row.case != ALL]

    @property
    def done(self) -> int:
        """How many cases there are rows of."""
        return len({row.task for row in self.measured})

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        """What times may depend on, by framework."""
        return {each.framework: each.environment for each in self.machines if each.environment}


def run_studies(names: Sequence[str], run: Run) -> int:
    """Run studies one after another, and put all that they found on one page; 0 if all results were right."""
    statuses, results = [], []
    for name in names:
        status, result = run_study(name, run)
        statuses.append(status)
        results += [] if result is None else [result]
        if status == INTERRUPTED:
            break
    if results:
        page = run.folder / ("report.html" if all(result.whole for result in results) else "report-partial.html")
        page.write_text(html_page(results), encoding="utf-8")
        with lasting():
            print(f"wrote {page}")
    return max(statuses)


def run_study(name: str, run: Run) -> tuple[int, Result | None]:
    """Measure in one process per framework; return 0 if every result was right, and what was found, if anything."""
    study = STUDIES[name]
    before = earlier_result(run.resumed, name)
    options = replace(run.options, done=() if before is None else finished(before, run.options))
    found = _Found(before) if before is None else _resumed(before, options.done)
    interrupted = False
    try:
        with progress() as told:
            for framework in run.frameworks or filter(installed, study.frameworks):
                for record in run_worker(name, framework, options):
                    found.add(record)
                    now = f"{record.task} {record.what}" if isinstance(record, Row) else ""
                    told(name, found.done, found.expected, now)
    except KeyboardInterrupt:
        interrupted = True
        found.notes.append(_INTERRUPTED)
    tables = study.tables(found.measured)
    result = None
    paths: list[Path] = []
    # Kept before they are shown: whoever reads may be gone, as `head` is.
    if found.machines and found.done:
        machine = report.measured_on(found.machines)
        result = _result(name, found, machine, options, whole=not interrupted and _is_whole(name, run, found))
        other = earlier_result(run.earlier, name)
        tables += [] if other is None else [compared(result, other)]
        cases = "" if options.cases == "public" else f"-{Path(options.cases).stem}"
        base = report.slug(f"{name}{cases}", machine)
        paths = report.save(run.folder / "-".join((base, *options.dtypes)), result, tables)
        paths += draw(result, run.folder / base) if result.whole else []
    rows = list(found.rows.values())
    with lasting():
        _show([*tables, report.skips_table(rows), report.environment_table(found.environment)], found, run.verbose)
        for path in paths:
            print(f"wrote {path}")
    failed = result is None or any(row.failure and not row.guest for row in rows)
    return INTERRUPTED if interrupted else int(failed), result


def _resumed(before: Result, done: Sequence[str]) -> _Found:
    """Return what an earlier run has done."""
    found = _Found(before)
    kept: list[Record] = [*before.ceilings, *(row for row in before.measured if row.task in done)]
    for record in kept:
        found.add(record)
    found.notes += [note for note in before.notes if note != _INTERRUPTED]
    if done:
        found.notes.append(f"{len(done)} of the cases are of an earlier run, of {before.date}.")
        found.expected = found.done
    return found


def _is_whole(name: str, run: Run, found: _Found) -> bool:
    """Return whether all was measured that a study measures by default."""
    options = run.options
    some_peers = bool(options.peers) and not set(STUDIES[name].peers) <= set(options.peers)
    crashed = any(row.case == ALL and not row.guest for row in found.rows.values())
    return not (crashed or run.frameworks or options.only or options.quick or options.forward_only or some_peers)


def _result(name: str, found: _Found, machine: Machine, options: Options, *, whole: bool) -> Result:
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
        environment=found.environment,
        quick=options.quick,
        peers=options.peers,
    )


def _show(tables: Sequence[report.Table], found: _Found, verbose: bool) -> None:
    for table in tables:
        if table.cells:
            report.show(table)
    print(*dict.fromkeys(found.notes), sep="\n")
    for row in found.rows.values():
        if verbose and row.details:
            print(f"\n{row.task} {row.what}:\n{row.details.rstrip()}")
