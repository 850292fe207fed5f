"""A call as the framework's profiler saw it: a trace for chrome://tracing or Perfetto, and the profiler's own table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.profilers.kernels import calls_to_watch, configure
from einops_fast.profiles.reporting.records import Note, Row
from einops_fast.profiles.timing.measure import reason
from einops_fast.profiles.timing.ranges import phase, ranged
from einops_fast.profiles.ways import Call

__all__ = ["listed", "trace_name", "write_trace"]

LONGEST_TABLE = 30


def write_trace(folder: str, row: Row, framework: Framework, call: Call) -> Iterator[Note]:
    """Record a few calls and write the trace, as JSON, and torch's table beside it, as text.

    Args:
        folder: where to.
        row: what the call is of; the files are named after it.
        framework: whose profiler records.
        call: takes no arguments.

    Yields:
        What was written, or why nothing was.
    """
    path = Path(folder, f"{trace_name(row)}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if framework.name == "torch":
            _torch(framework, call, path, row)
        elif framework.name == "mxnet":
            _mxnet(framework, call, path, row)
        else:
            raise Unavailable(f"{framework.name} has no profiler of its own")
    except Unavailable as missing:
        yield Note(f"no traces of {framework.name}: {missing}")
    except Exception as error:  # a trace is no reason to lose what was measured
        yield Note(f"no trace of {trace_name(row)}: {reason(error)}")
    else:
        yield Note(f"wrote {path}")


def trace_name(row: Row) -> str:
    """What was traced, as the name of a file.

    >>> trace_name(Row('torch', 'mx1', 'fast_einsum', 'float32', backward=True))
    'torch-float32-mx1-fast_einsum-backward'
    """
    parts = (row.framework, row.dtype, row.case, row.what, phase(row.backward))
    return re.sub(r"[^\w@.-]+", "_", "-".join(parts))


def _torch(framework: Any, call: Call, path: Path, row: Row) -> None:
    profiler = framework.torch.profiler
    on_gpu = framework.device == "gpu"
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    call()
    framework.synchronize()
    with profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as seen:
        for _ in range(calls_to_watch(row)):
            with profiler.record_function(trace_name(row)), ranged(trace_name(row)):
                call()
        framework.synchronize()
    seen.export_chrome_trace(str(path))
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = seen.key_averages().table(sort_by=order, row_limit=LONGEST_TABLE)
    path.with_suffix(".txt").write_text(f"{table}\n", encoding="utf-8")


def _mxnet(framework: Any, call: Call, path: Path, row: Row) -> None:
    profiler = framework.mx.profiler
    # What was profiled before is still waiting to be written.
    configure(profiler)
    profiler.set_state("run")
    profiler.set_state("stop")
    profiler.dump(finished=False)
    configure(profiler, path)
    profiler.set_state("run")
    for _ in range(calls_to_watch(row)):
        call()
    framework.synchronize()
    profiler.set_state("stop")
    # Finished, it could never be started again; so every file but the first is the next piece of one long list.
    profiler.dump(finished=False)
    path.write_text(json.dumps({"traceEvents": listed(path.read_text("utf-8"))}), encoding="utf-8")


def listed(text: str) -> list[dict[str, Any]]:
    """The events in a piece of a trace: objects with whatever there is between them.

    >>> listed('{"traceEvents": [ {"name": "a"}\\n,\\n\\n {"name": "b"},')
    [{'name': 'a'}, {'name': 'b'}]
    """
    decoder, events = json.JSONDecoder(), []
    _, head, rest = text.partition('"traceEvents": [')
    at, text = 0, rest if head else text
    while (at := text.find("{", at)) >= 0:
        event, at = decoder.raw_decode(text, at)
        events.append(event)
    return events
