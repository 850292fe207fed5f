"""What a run of a study found, as a file: JSON for programs (and to be read back), CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import einops_fast
from einops_fast.profiles.cases import ITEM_SIZES, Case, scaled
from einops_fast.profiles.contraction.extra_cases import FAMILIES
from einops_fast.profiles.reporting.records import ALL, Ceiling, Row
from einops_fast.runtime.files import write_whole

__all__ = ["RESULTS", "ROOT", "Result", "read_or_end", "read_result", "reports_folder"]

ROOT = Path(einops_fast.__file__).parents[1]
"""The folder that holds the package: a checkout, an unpacked sdist, or site-packages."""

RESULTS = ROOT / "profiles" / "results"
"""Where the results are kept that the documents are made from; a run writes there only if ``--out`` says so."""


def reports_folder() -> Path:
    """Return the folder that a run writes to by default: one that git ignores in a checkout, else the working one."""
    in_checkout = (ROOT / "setup.cfg").is_file()
    return ROOT / "profiles" / "reports" if in_checkout else Path("einops-fast-reports")


# Older files have the ceilings in a note.
_REACHES = re.compile(r"(\w+) (\w+) reaches (\d+) GB/s in a copy and (\d+) GFLOP/s in a GEMM")


@dataclass(frozen=True)
class Result:
    """A run of one study.

    Attributes:
        study: its name.
        device: what it ran on; the GPU, if there was one.
        threads: of the CPU.
        date: ISO, UTC.
        whole: everything that the study measures by default was measured.
        quick: in three rounds.
        peers: what ours was measured against, where it wasn't the study's own choice.
        versions: by package.
        notes: what the reader has to know.
        rows: what was measured.
        ceilings: what the device reaches, by framework and dtype.
        environment: for each framework, everything that times may depend on, by name.
        summaries: of the tables, for programs.
    """

    study: str
    device: str
    threads: int
    date: str
    whole: bool
    versions: dict[str, str]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    ceilings: tuple[Ceiling, ...] = ()
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    summaries: tuple[Mapping[str, Any], ...] = ()
    quick: bool = False
    peers: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows of cases; without those that say why something was left out altogether."""
        return tuple(row for row in self.rows if row.case != ALL)

    def write_json(self, path: Path) -> Path:
        """Write what :func:`read_result` reads."""
        data = {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "ceilings": list(map(asdict, self.ceilings)),
            "rows": [row.to_dict() for row in self.rows],
        }
        # What is there may be the run that this one went on from, and a disk may be full.
        write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        return path

    def write_csv(self, path: Path) -> Path:
        """Write a line per row: every field but kernels by name and tracebacks."""
        columns = [each.name for each in fields(Row) if each.name not in ("kernel_seconds", "details")]
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            for row in self.rows:
                values = (getattr(row, name) for name in columns)
                writer.writerow(["" if value is None else value for value in values])
        return path


def read_result(path: Path) -> Result:
    """What :meth:`Result.write_json` wrote, now or in an earlier version: what that didn't keep follows from the cases.

    Raises:
        ValueError: it is no such file.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        rows = [Row(**row) for row in data["rows"]]
        notes = tuple(data["notes"])
        ceilings = [Ceiling(**each) for each in data.get("ceilings", ())] or _ceilings(notes)
        on_gpu = _on_gpu(data["device"], rows)
        return Result(
            data["study"],
            data["device"],
            data["threads"],
            data["date"],
            data["whole"],
            data["versions"],
            notes,
            tuple(_complete(row, on_gpu) for row in rows),
            tuple(ceilings),
            data.get("environment", {}),
            tuple(data.get("summaries", ())),
            data.get("quick", False),
            tuple(data.get("peers", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of a study: {error}") from None


def read_or_end(parser: ArgumentParser, paths: Sequence[Path]) -> list[Result]:
    """The results of these files; if one can't be read, the end of the process, which tells why."""
    try:
        return [read_result(path) for path in paths]
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))


def _ceilings(notes: Sequence[str]) -> list[Ceiling]:
    found = filter(None, map(_REACHES.fullmatch, notes))
    return [Ceiling(match[1], match[2], float(match[3]) * 1e9, float(match[4]) * 1e9) for match in found]


def _on_gpu(device: str, rows: Sequence[Row]) -> bool:
    return any(row.extra_bytes is not None for row in rows) or "NVIDIA" in device


def _complete(row: Row, on_gpu: bool) -> Row:
    """A row with bytes and FLOPs, if it is of a case that is known here at the same sizes."""
    if row.moved is not None or row.backward:
        return row
    case = _known(row, on_gpu)
    if case is None:
        return row
    return replace(row, moved=sum(case.elements) * ITEM_SIZES[row.dtype], flops=case.flops)


def _known(row: Row, on_gpu: bool) -> Case | None:
    for case in FAMILIES["all"]:
        if case.name == row.case:
            case = scaled(case, "gpu" if on_gpu else "cpu")
            return case if case.sizes == row.sizes and row.dtype in ITEM_SIZES else None
    return None
