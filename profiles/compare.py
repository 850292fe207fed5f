"""Run a study over frameworks, show its tables, and keep them as files. Ctrl-C keeps what is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from einops_fast.profiles.frameworks import installed
from einops_fast.profiles.limits import interrupts
from einops_fast.profiles.peers import PEERS
from einops_fast.profiles.plots import draw
from einops_fast.profiles.records import Machine, Options, Row
from einops_fast.profiles.report import console, measured_on, print_table, save, slug
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.worker import run_worker

__all__ = ["RESULTS", "run_study"]

RESULTS = Path(__file__).resolve().parent / "results"


def run_study(name: str, options: Options, *, frameworks: Sequence[str] = (), folder: Path = RESULTS) -> int:
    """Measure in one process per framework, one after another.

    Args:
        name: one of :data:`~einops_fast.profiles.studies.STUDIES`.
        options: what to measure.
        frameworks: those to measure; default: all that the study is about and that are installed.
        folder: where the files go.

    Returns:
        An exit status: 0 if every result was right.
    """
    study = STUDIES[name]
    to = console()
    machines: list[Machine] = []
    measured: dict[tuple[object, ...], Row] = {}
    notes: list[str] = []
    # Not on Windows.
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5:
        notes.append(f"The machine was busy before: a load of {os.getloadavg()[0]:.1f}. Times are rough.")
    some_peers = bool(options.peers) and set(options.peers) != set(PEERS)
    whole = not (frameworks or options.only or options.quick or some_peers)
    try:
        with interrupts(), to.status(name) as status:
            for framework in frameworks or filter(installed, study.frameworks):
                status.update(f"{name}: {framework}")
                for record in run_worker(name, framework, options):
                    if isinstance(record, Row):
                        measured[record.key] = record
                        status.update(f"{name}: {framework} {record.dtype} {record.case} {record.what}")
                    elif isinstance(record, Machine):
                        machines.append(record)
                    else:
                        notes.append(record.text)
    except KeyboardInterrupt:
        whole = False
        notes.append("Interrupted: what is missing was not measured.")
    rows = list(measured.values())
    tables = study.tables(rows)
    for table in tables:
        print_table(to, table)
    for note in notes:
        to.print(note, highlight=False, markup=False)
    if rows:
        family = "" if options.cases == "public" else f"-{options.cases}"
        base = slug(f"{name}{family}", measured_on(machines))
        stem = folder / "-".join((base, *options.dtypes, *(["backward"] if options.backward else [])))
        paths = save(stem, name, machines, rows, tables, notes, whole=whole)
        if whole:
            paths += draw(rows, folder / base)
        for path in paths:
            to.print(f"wrote {path}", highlight=False)
    return 1 if not rows or any(row.failure and not row.guest for row in rows) else 0
