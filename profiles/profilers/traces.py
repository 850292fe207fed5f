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
from typing import Any

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
        watch = _torch if framework.name == "torch" else _mxnet
        totals = watch(framework, call, calls, kept, path is not None)
    each = {name: seconds / calls for name, seconds in totals.items() if seconds > 0}
    return dict(sorted(each.items(), key=lambda item: -item[1]))


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


def _torch(framework: Any, call: Call, calls: int, path: Path, detailed: bool) -> dict[str, float]:
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
    if on_gpu:
        return read_kernels(path)
    # Operators without those that they call, and without the range around them all.
    return {each.key: each.self_cpu_time_total * 1e-6 for each in seen.key_averages() if each.key != path.stem}


def _mxnet(framework: Any, call: Call, calls: int, path: Path, detailed: bool) -> dict[str, float]:
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
    return read_kernels(path)


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
    """Return seconds by kernel, over a whole trace; where it has no GPU's, by whatever it has."""
    spans = list(_spans(json.loads(path.read_text("utf-8"))["traceEvents"]))
    totals: dict[str, float] = defaultdict(float)
    for name, _, seconds in [span for span in spans if span[1] in _GPU] or spans:
        totals[name] += seconds
    return dict(totals)


def _spans(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    """Yield name, category and seconds of complete events (``X``) and of beginnings with their ends (``B``, ``E``)."""
    begun: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for event in events:
        kind, name, category = event.get("ph"), str(event.get("name")), str(event.get("cat", ""))
        starts, time = begun[event.get("pid"), event.get("tid"), name], float(event.get("ts", 0.0))
        if kind == "X":
            yield name, category, float(event.get("dur", 0.0)) * 1e-6
        elif kind == "B":
            starts.append(time)
        elif kind == "E" and starts:
            yield name, category, (time - starts.pop()) * 1e-6
