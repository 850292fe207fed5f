"""A call as the framework's own profiler sees it: its kernels, and a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

import atexit
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.reporting.records import Note, Record, Row, phase
from einops_fast.profiles.timing.measure import reason
from einops_fast.profiles.ways import Call

LONG = 0.2  # Seconds from which on a call is watched once and not several times
LONGEST_TABLE = 30
_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")  # Categories of the events that torch.profiler records on a GPU
LONGEST_NAME = 48

# What torch's elementwise and reducing kernels do stands among their template arguments.
_DOES = {
    "direct_copy_kernel": "copy",
    "sum_functor": "sum",
    "MulFunctor": "mul",
    "CUDAFunctor_add": "add",
    "FillFunctor": "fill",
}


def watched(row: Row, framework: Framework, call: Call, folder: str = "") -> Iterator[Record]:
    """Yield the row with the kernels of its call; with a folder a trace is kept there, and torch's table beside it."""
    path = Path(folder, f"{trace_name(row)}.json") if folder else None
    calls = 1 if (row.seconds or 0.0) > LONG else 3
    try:
        times = kernel_times(framework, call, calls, path)
    except Unavailable as missing:
        told = f"no traces of {framework.name}: {missing}"
    except Exception as error:  # a trace is no reason to lose what was measured
        told = f"no trace of {trace_name(row)}: {reason(error)}"
    else:
        row, told = replace(row, kernels=summary(times), kernel_seconds=times), f"wrote {path}"
    yield row
    if path is not None:
        yield Note(told)


def kernel_times(framework: Framework, call: Call, calls: int = 3, path: Path | None = None) -> dict[str, float]:
    """Return seconds of one call by kernel (on a CPU: by operator), longest first, from a trace that may be kept."""
    if framework.name not in ("torch", "mxnet"):
        raise Unavailable(f"{framework.name} has no profiler of its own")
    with tempfile.TemporaryDirectory() as nowhere:
        kept = path or Path(nowhere, "trace.json")
        kept.parent.mkdir(parents=True, exist_ok=True)
        (_torch if framework.name == "torch" else _mxnet)(framework, call, calls, kept, path is not None)
        totals = {name: seconds / calls for name, seconds in read_kernels(kept).items() if seconds > 0}
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def summary(times: dict[str, float]) -> str:
    """Return the kernels of a call in a few words, without those that take less than a hundredth."""
    least = 0.01 * sum(times.values())
    return " + ".join(dict.fromkeys(short_name(name) for name, seconds in times.items() if seconds >= least))


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


def trace_name(row: Row) -> str:
    """Return what was traced, as the name of a file."""
    parts = (row.framework, row.dtype, row.case, row.what, phase(row.backward))
    return re.sub(r"[^\w@.-]+", "_", "-".join(parts))


def _torch(framework: Any, call: Call, calls: int, path: Path, detailed: bool) -> None:
    profiler = framework.torch.profiler
    on_gpu = framework.device == "gpu"
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    call()
    framework.synchronize()
    with profiler.profile(activities=activities, record_shapes=detailed, profile_memory=detailed) as seen:
        for _ in range(calls):
            with profiler.record_function(path.stem):
                call()
        framework.synchronize()
    seen.export_chrome_trace(str(path))
    if detailed:
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        table = seen.key_averages().table(sort_by=order, row_limit=LONGEST_TABLE)
        path.with_suffix(".txt").write_text(f"{table}\n", encoding="utf-8")


def _mxnet(framework: Any, call: Call, calls: int, path: Path, detailed: bool) -> None:
    profiler = framework.mx.profiler
    # What was profiled before is still waiting to be written.
    for file, times in ((_nowhere() / "trace.json", 0), (path, calls)):
        profiler.set_config(profile_all=True, aggregate_stats=True, filename=str(file))
        profiler.set_state("run")
        for _ in range(times):
            call()
        framework.synchronize()
        profiler.set_state("stop")
        # Finished, it could never be started again; so every file but the first is the next piece of one long list.
        profiler.dump(finished=False)
    path.write_text(json.dumps({"traceEvents": listed(path.read_text("utf-8"))}), encoding="utf-8")
    # MXNet writes a last time at exit. Not to the null device: it deletes the file first, if it may.
    profiler.set_config(profile_all=True, aggregate_stats=True, filename=str(_nowhere() / "trace.json"))


@lru_cache(maxsize=1)
def _nowhere() -> Path:
    """Make a folder that is gone before MXNet writes for the last time."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder


def listed(text: str) -> list[dict[str, Any]]:
    """Return the events in a piece of a trace: objects with whatever there is between them."""
    decoder, events = json.JSONDecoder(), []
    _, head, rest = text.partition('"traceEvents": [')
    at, text = 0, rest if head else text
    while (at := text.find("{", at)) >= 0:
        event, at = decoder.raw_decode(text, at)
        events.append(event)
    return events


# Chrome's format


def read_kernels(path: Path) -> dict[str, float]:
    """Return seconds by kernel, over a whole trace; of one from a CPU by operator, each without those that it calls."""
    spans = list(_spans(json.loads(path.read_text("utf-8"))["traceEvents"]))
    on_gpu = [span for span in spans if span.category in _GPU]
    operators = [span for span in spans if span.category == "cpu_op"]
    totals: dict[str, float] = defaultdict(float)
    if operators and not on_gpu:
        for name, seconds in _exclusive(operators):
            totals[name] += seconds
    else:
        for span in on_gpu or spans:
            totals[span.name] += span.seconds
    return dict(totals)


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
