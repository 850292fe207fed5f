"""Where the time of a call goes, as far as the framework's own profiler can tell."""

from __future__ import annotations

import atexit
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any

from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.ways import Call

__all__ = ["calls_to_watch", "configure", "kernel_times", "short_name", "summary", "watched"]

LONG = 0.2
"""Seconds from which on a call is watched once and not several times."""

LONGEST_NAME = 48

# What torch's elementwise and reducing kernels do stands among their template arguments.
_DOES = {
    "direct_copy_kernel": "copy",
    "sum_functor": "sum",
    "MulFunctor": "mul",
    "CUDAFunctor_add": "add",
    "FillFunctor": "fill",
}


def kernel_times(framework: Framework, call: Callable[[], Any], calls: int = 3) -> list[tuple[float, str]]:
    """Seconds of one call by kernel (on a CPU: by operator), longest first.

    Raises:
        Unavailable: the framework has no profiler.
    """
    if framework.name == "torch":
        totals = _torch(framework, call, calls)
    elif framework.name == "mxnet":
        totals = _mxnet(framework, call, calls)
    else:
        raise Unavailable(f"{framework.name} has no profiler of its own")
    return sorted(((seconds / calls, name) for seconds, name in totals if seconds > 0), reverse=True)


def watched(row: Row, framework: Framework, call: Call) -> Row:
    """The row with the kernels of a call; what can't be seen was measured all the same."""
    with suppress(Exception):
        times = kernel_times(framework, call, calls_to_watch(row))
        seconds: dict[str, float] = {}
        for each, name in times:
            seconds[name] = seconds.get(name, 0.0) + each
        row = replace(row, kernels=summary(times), kernel_seconds=seconds)
    return row


def calls_to_watch(row: Row) -> int:
    """How many calls a profiler is to see."""
    return 1 if (row.seconds or 0.0) > LONG else 3


def summary(times: Sequence[tuple[float, str]]) -> str:
    """The kernels of a call in a few words, longest first; without those that take less than a hundredth."""
    whole = sum(seconds for seconds, _ in times)
    return " + ".join(dict.fromkeys(short_name(name) for seconds, name in times if seconds >= 0.01 * whole))


def short_name(name: str) -> str:
    """What a kernel is called, without namespaces, template arguments and parameters."""
    if name.startswith(("Memcpy", "Memset")):
        return name.partition(" (")[0].lower()
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    inner = re.search(r"\bcutlass\w*_\w*gemm\w*", plain)
    short = inner.group() if inner else re.split("[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1]
    if short.endswith(("elementwise_kernel", "reduce_kernel")):
        short = next((does for part, does in _DOES.items() if part in plain), short)
    return short if len(short) <= LONGEST_NAME else f"{short[: LONGEST_NAME - 1]}…"


def _torch(framework: Any, call: Callable[[], Any], calls: int) -> list[tuple[float, str]]:
    profiler = framework.torch.profiler
    on_gpu = framework.device == "gpu"
    activity = profiler.ProfilerActivity.CUDA if on_gpu else profiler.ProfilerActivity.CPU
    with profiler.profile(activities=[activity]) as trace:
        for _ in range(calls):
            call()
        framework.synchronize()
    return [
        ((event.self_device_time_total if on_gpu else event.self_cpu_time_total) * 1e-6, event.key)
        for event in trace.key_averages()
    ]


def _mxnet(framework: Any, call: Callable[[], Any], calls: int) -> list[tuple[float, str]]:
    profiler = framework.mx.profiler
    configure(profiler)
    # What was profiled before, for a trace, is still in the sums.
    profiler.dumps(reset=True)
    profiler.set_state("run")
    for _ in range(calls):
        call()
    framework.synchronize()
    profiler.set_state("stop")
    operators = json.loads(profiler.dumps(reset=True, format="json"))["Time"].get("operator", {})
    return [(entry["Total"] * 1e-3, name) for name, entry in operators.items()]


def configure(profiler: Any, path: Path | None = None) -> None:
    """Set MXNet's profiler up, to write its trace to a file, or nowhere.

    A trace is written at exit whether or not anyone asks for it. Not to the null device: the profiler deletes the file
    first, and that of the whole machine, too, if it may.
    """
    profiler.set_config(profile_all=True, aggregate_stats=True, filename=str(path or _nowhere() / "trace.json"))


@lru_cache(maxsize=1)
def _nowhere() -> Path:
    """A folder that is gone before MXNet writes for the last time."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(rmtree, folder, ignore_errors=True)
    return folder
