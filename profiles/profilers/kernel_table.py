"""The "Time | Kernel" listing of apache/mxnet#18043, from what any profiler has written.

``python -m einops_fast.profiles.profilers.kernel_table FILE`` sums up the times of all calls in a file. It reads Chrome
traces, also gzipped (``--trace``, torch.profiler, MXNet's profiler, Perfetto's JSON), ``nsys stats --format csv``, the
SQLite of ``nsys export``, and ``ncu --csv``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msecond", "millisecond"), 1e-3),
    **dict.fromkeys(("us", "µs", "usecond", "microsecond"), 1e-6),
    **dict.fromkeys(("ns", "nsecond", "nanosecond"), 1e-9),
}

_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")  # Categories of the events that torch.profiler records on a GPU
TIMES = ("gpu__time_duration.sum", "Total Time", "Duration")  # What columns of times begin with

KERNELS_OF_NSYS = """
SELECT name.value, kernel.end - kernel.start
FROM CUPTI_ACTIVITY_KIND_KERNEL kernel JOIN StringIds name ON name.id = kernel.demangledName
"""

LONGEST_NAME = 48

# What torch's elementwise and reducing kernels do stands among their template arguments.
_DOES = {
    "direct_copy_kernel": "copy",
    "sum_functor": "sum",
    "MulFunctor": "mul",
    "CUDAFunctor_add": "add",
    "FillFunctor": "fill",
}


def short_name(name: str) -> str:
    """Return what a kernel is called, without namespaces, template arguments and parameters."""
    if name.startswith(("Memcpy", "Memset")):
        return name.partition(" (")[0].lower()
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    inner = re.search(r"\bcutlass\w*_\w*gemm\w*", plain)
    short = inner.group() if inner else re.split("[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1]
    if short.endswith(("elementwise_kernel", "reduce_kernel")):
        short = next((does for part, does in _DOES.items() if part in plain), short)
    return short if len(short) <= LONGEST_NAME else f"{short[: LONGEST_NAME - 1]}…"


def read_kernels(path: Path) -> dict[str, float]:
    """Return seconds by kernel, over the whole file; of a trace from a CPU, by operator. ValueError of other files."""
    data = path.read_bytes()
    found: Iterable[tuple[str, float]]
    if data.startswith(b"SQLite format 3"):
        found = _from_sqlite(path)
    else:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        text = data.decode("utf-8", "replace").lstrip("\ufeff")
        found = _from_trace(text) if text.lstrip()[:1] in ("{", "[") else _from_csv(text)
    totals: dict[str, float] = defaultdict(float)
    for name, seconds in found:
        totals[name] += seconds
    if not totals:
        raise ValueError("there are no kernels in it")
    return dict(totals)


def _from_trace(text: str) -> Iterator[tuple[str, float]]:
    """Chrome's format: complete events (``X``), or pairs of beginnings and ends (``B``, ``E``)."""
    try:
        trace = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it begins like JSON, but isn't: {error}") from None
    events = trace.get("traceEvents", []) if isinstance(trace, dict) else trace
    spans = list(_spans([event for event in events if isinstance(event, dict)]))
    on_gpu = [span for span in spans if span.category in _GPU]
    operators = [span for span in spans if span.category == "cpu_op"]
    if on_gpu or not operators:
        yield from ((span.name, span.seconds) for span in on_gpu or spans)
    else:
        # Without a GPU, operators by themselves: what they call is theirs no more.
        yield from _exclusive(operators)


class Span(NamedTuple):
    """Something that lasts."""

    thread: tuple[Any, Any]
    start: float  # seconds
    seconds: float
    name: str
    category: str


def _spans(events: Sequence[Mapping[str, Any]]) -> Iterator[Span]:
    begun: dict[tuple[Any, str], list[float]] = defaultdict(list)
    for event in events:
        kind, name, category = event.get("ph"), str(event.get("name")), str(event.get("cat", ""))
        thread, time = (event.get("pid"), event.get("tid")), float(event.get("ts", 0.0)) * 1e-6
        starts = begun[thread, name]
        if kind == "X":
            yield Span(thread, time, float(event.get("dur", 0.0)) * 1e-6, name, category)
        elif kind == "B":
            starts.append(time)
        elif kind == "E" and starts:
            start = starts.pop()
            yield Span(thread, start, time - start, name, category)


def _exclusive(operators: Sequence[Span]) -> Iterator[tuple[str, float]]:
    """Yield the times of operators of torch on a CPU, each without those that it calls."""
    stacks: dict[Any, list[Span]] = defaultdict(list)
    # Of those that begin together, the longest calls the others.
    for span in sorted(operators, key=lambda span: (span.start, -span.seconds)):
        stack = stacks[span.thread]
        while stack and stack[-1].start + stack[-1].seconds <= span.start:
            stack.pop()
        yield span.name, span.seconds
        if stack:
            yield stack[-1].name, -span.seconds
        stack.append(span)


def _from_sqlite(path: Path) -> list[tuple[str, float]]:
    """CUPTI's activities as nsys exports them: names stand in a table of strings."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            found = database.execute(KERNELS_OF_NSYS)
        except sqlite3.OperationalError:
            raise ValueError("this database has no kernels of CUDA") from None
        return [(str(name), nanoseconds * 1e-9) for name, nanoseconds in found]


def _from_csv(text: str) -> Iterator[tuple[str, float]]:
    """Units stand in the head of nsys's table, in the first line of ncu's raw page, in each line of its details."""
    lines = [line for line in text.splitlines() if line.strip()]
    # The first line with a column of names is the head; what stands above it is the profiler's talk.
    heads = enumerate(csv.reader(lines))
    begin = next((at for at, head in heads if "Kernel Name" in head or ("Name" in head and len(head) > 2)), None)
    if begin is None:
        raise ValueError("no line of it names the columns of a table that is known")
    table = csv.DictReader(lines[begin:])
    rows = [row for row in table if None not in row.values()]
    head = table.fieldnames or ()
    named = "Kernel Name" if "Kernel Name" in head else "Name"
    timed = next((column for column in head if column.startswith(TIMES)), "")
    if "Metric Name" in head:
        cells = [(row[named], row["Metric Value"], row["Metric Unit"]) for row in rows if row["Metric Name"] in TIMES]
    elif not timed or not rows:
        raise ValueError(f"none of its columns is a time (ncu has to collect {TIMES[0]}): {', '.join(head)}")
    elif told := timed.partition("(")[2].rstrip(")"):
        cells = [(row[named], row[timed], told) for row in rows]
    else:
        cells = [(row[named], row[timed], rows[0][timed]) for row in rows[1:]]
    for name, value, unit in cells:
        if unit not in _SECONDS:
            raise ValueError(f"{unit!r} is no unit of time")
        yield name, float(value.replace(",", "")) * _SECONDS[unit]


# The command


def listing(times: Mapping[str, float]) -> str:
    """Return a line per kernel with its seconds, the longest first."""
    lines = [f"{seconds * 1e3:6.3f} ms | {name}" for name, seconds in sorted(times.items(), key=lambda item: -item[1])]
    return "\n".join(["     Time | Kernel", "--------- | ------", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the listing of a file: 0, or 2 if it can't be read."""
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.profilers.kernel_table",
        description="List kernels by time, from a profiler's file.",
    )
    parser.add_argument("file", type=Path, help="a Chrome trace, CSV of nsys or ncu, or SQLite of nsys")
    parser.add_argument("--short", action="store_true", help="names without namespaces and template arguments")
    options = parser.parse_args(arguments)
    times: dict[str, float] = defaultdict(float)
    try:
        for name, seconds in read_kernels(options.file).items():
            times[short_name(name) if options.short else name] += seconds
    except (OSError, ValueError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    print(listing(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
