"""What a run of a study found, as a file: JSON for programs (and to be read back), CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import einops_fast
from einops_fast.profiles.reporting.records import ALL, Ceiling, Machine, Note, Options, Record, Row
from einops_fast.runtime.files import write_whole

# The folder that holds the package: a checkout, an unpacked sdist, or site-packages.
ROOT = Path(einops_fast.__file__).parents[1]

# Where the results are kept that the documents are made from; a run writes there only if ``--out`` says so.
RESULTS = ROOT / "profiles" / "results"
ROW_FIELDS = [each.name for each in fields(Row)]


def reports_folder() -> Path:
    """Return the folder that a run writes to by default: one that git ignores in a checkout, else the working one."""
    in_checkout = (ROOT / "setup.cfg").is_file()
    return ROOT / "profiles" / "reports" if in_checkout else Path("einops-fast-reports")


@dataclass(frozen=True)
class Result:
    """A run of one study."""

    study: str
    device: str  # what it ran on; the GPU, if there was one
    threads: int
    date: str  # ISO, UTC
    whole: bool  # everything that the study measures by default was measured
    versions: dict[str, str]  # by package
    notes: tuple[str, ...]  # what the reader has to know
    rows: tuple[Row, ...]
    ceilings: tuple[Ceiling, ...] = ()
    # for each framework, everything that times may depend on, by name.
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    quick: bool = False  # in three rounds
    peers: tuple[str, ...] = ()  # what ours was measured against, where it wasn't the study's own choice
    gpu: bool = False  # the device is one

    @classmethod
    def of(cls, study: str, records: Sequence[Record], options: Options, *, whole: bool) -> Result:
        """Return what the records of a run tell; of rows of the same the last counts."""
        machines = [record for record in records if isinstance(record, Machine)]
        machine = next((each for each in machines if each.gpu), (*machines, Machine("", 0, {}))[0])
        rows = {record.key: record for record in records if isinstance(record, Row)}
        crashed = any(row.case == ALL and not row.guest for row in rows.values())
        return cls(
            study,
            machine.device,
            machine.threads,
            datetime.now(timezone.utc).date().isoformat(),
            whole and not crashed,
            {library: number for each in machines for library, number in each.versions.items()},
            tuple(dict.fromkeys(record.text for record in records if isinstance(record, Note))),
            tuple(rows.values()),
            tuple({(each.framework, each.dtype): each for each in records if isinstance(each, Ceiling)}.values()),
            {each.framework: each.environment for each in machines if each.environment},
            options.quick,
            options.peers,
            machine.gpu,
        )

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows of cases; without those that say why something was left out altogether."""
        return tuple(row for row in self.rows if row.case != ALL)

    @property
    def doubts(self) -> list[str]:
        """Why the times are rough: other work, or few rounds."""
        few = ["Times are rough: three rounds were measured."] if self.quick else []
        return [*few, *(note for note in self.notes if re.search("rough|busy", note))]

    @property
    def title(self) -> str:
        """The study, where it ran, and against which versions of the frameworks."""
        names = {"torch": "torch", "numpy": "NumPy", "mxnet": "MXNet", "cupy": "CuPy"}
        measured = {row.framework for row in self.rows}
        names = {name: told for name, told in names.items() if name in measured}
        if "torch" in measured:
            names |= {"triton": "Triton", "liger": "Liger-Kernel", "quack": "QuACK"}
        versions = [(name.split("-")[0], number.split("+")[0]) for name, number in self.versions.items()]
        told = [f"{names[name]} {number}" for name, number in versions if name in names]
        return ", ".join([f"{self.study}: {self.device}", f"CPU threads: {self.threads}", *told])

    @property
    def kept(self) -> bool:
        """Whether a device was found and anything was measured, for files and the page."""
        return bool(self.device and self.measured)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON takes them, without fields of rows that say nothing."""
        rows = [
            {name: value for name, value in vars(row).items() if value not in (None, "", {}) and value is not False}
            for row in self.rows
        ]
        return {**vars(self), "ceilings": list(map(asdict, self.ceilings)), "rows": rows}

    def write_json(self, path: Path) -> Path:
        """Write what :func:`read_result` reads."""
        # An earlier run stays whole where the disk is full.
        write_whole(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")
        return path

    def write_csv(self, path: Path) -> Path:
        """Write a line per row: every field but kernels by name and tracebacks."""
        columns = [name for name in ROW_FIELDS if name not in ("kernel_seconds", "phases", "details")]
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(map(vars, self.rows))
        return path


def read_result(path: Path) -> Result:
    """Return what :meth:`Result.write_json` wrote, now or in an earlier version, which may have kept less or more."""
    try:
        data = json.loads(path.read_text("utf-8"))
        data.pop("summaries", None)
        rows = [{name: value for name, value in row.items() if name in ROW_FIELDS} for row in data.pop("rows")]
        data |= {name: tuple(data.get(name, ())) for name in ("notes", "peers")}
        data["ceilings"] = tuple(Ceiling(**each) for each in data.get("ceilings", ()))
        return Result(**data, rows=tuple(Row(**row) for row in rows))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of a study: {error}") from None
