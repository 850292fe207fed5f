"""One way to compute one of the three problems of apache/mxnet#18043, for a profiler to look at.

A plain script::

    python profiles/profile_einsum.py --framework torch --mode fast_einsum --problem 1
    nsys profile -t cuda,nvtx -c cudaProfilerApi python profiles/profile_einsum.py --framework torch --mode einsum
    ncu --profile-from-start off python profiles/profile_einsum.py --framework cupy --mode einsum --problem 2

(nvprof takes ``--profile-from-start off`` too.) Only the measured calls are recorded, each in an NVTX range.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from ctypes import CDLL
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

# In an sdist this file lies in the package, in a checkout beside it: whatever else is installed isn't meant.
sys.path.insert(0, str(next(path for path in Path(__file__).resolve().parents if (path / "einops_fast").is_dir())))

# These import no framework; what does comes after the number of threads is set.
from einops_fast.profiles import frameworks
from einops_fast.profiles.cases import ITEM_SIZES, MODES, PROBLEMS
from einops_fast.runtime.background import processors

if TYPE_CHECKING:
    from einops_fast.profiles.frameworks import Framework

ENOUGH_SECONDS = 2.0
MOST_CALLS = 100


def main(arguments: list[str] | None = None) -> int:
    """Run one mode of one problem: 0 if its result is right, 1 if it is wrong, 2 if it can't run here."""
    options = _parser().parse_args(arguments)
    threads = options.threads or processors()
    os.environ.update(frameworks.thread_environment(threads))
    device = options.device or frameworks.default_device(options.framework)
    case = PROBLEMS[options.problem]

    from einops_fast.profiles.einsum.study import EinsumStudy
    from einops_fast.profiles.reporting.records import phase
    from einops_fast.profiles.study import Task
    from einops_fast.profiles.ways import bind

    study = EinsumStudy()
    try:
        framework = frameworks.load(options.framework, device, threads)
        task = Task(framework, case, options.dtype, options.backward)
        ways = [study.way(task, name) for name in dict.fromkeys((study.native, options.mode))]
        checked, way = study.check(task, ways)[-1], ways[-1]
        call = bind(way, study.inputs(task, 1))
    except frameworks.Unavailable as reason:
        print(f"can't run: {reason}", file=sys.stderr)
        return 2

    print(f"problem {case.problem}: {case.equation}  {case.sizes}  {options.dtype}")
    version = framework.versions()[framework.name]
    print(f"{options.mode}: {framework.name} {version}, {framework.device_name()}, CPU threads: {threads}")
    if checked.error is None:
        print(f"failed: {checked.failure}")
        return 1
    with way.around():
        label = f"{case.name}/{options.mode}/{phase(options.backward)}"
        times = _measure(call, framework, label, options.repeat)
        direction = "forward and backward" if options.backward else "forward"
        middle, best = (f"{pick(times) * 1e3:.3f} ms" for pick in (median, min))
        print(f"{direction}: {middle} (median of {len(times)} calls, best {best})")
        print(f"result: {checked.failure or f'right (error {checked.error:.1e})'}")
    return 1 if checked.failure else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Profile one problem of apache/mxnet#18043.")
    parser.add_argument("--framework", choices=tuple(frameworks.FRAMEWORKS), required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--problem", type=int, choices=range(len(PROBLEMS)), default=0)
    parser.add_argument("--device", choices=("cpu", "gpu"), help="default: gpu where that works")
    parser.add_argument("--dtype", choices=tuple(ITEM_SIZES), default="float32")
    parser.add_argument("--backward", action="store_true", help="forward and backward; check the gradients")
    parser.add_argument("--repeat", type=int, help="measured calls; default: about two seconds of them")
    parser.add_argument("--threads", type=int, help="CPU threads of every framework; default: all")
    return parser


def _measure(call: Callable[[], Any], framework: Framework, label: str, repeat: int | None) -> list[float]:
    """Return the seconds of each measured call; a profiler outside records these calls and nothing else."""
    clock = framework.clock(flushes=0)
    warm_up = [clock.sample(call, 1) for _ in range(2)]
    if repeat is None:
        repeat = max(3, min(MOST_CALLS, int(ENOUGH_SECONDS / warm_up[-1])))
    ranged = partial(import_module("nvtx").annotate, label) if find_spec("nvtx") is not None else nullcontext
    times = []
    _tell("cuProfilerStart")
    for _ in range(repeat):
        with ranged():
            times.append(clock.sample(call, 1))
    _tell("cuProfilerStop")
    return times


def _tell(switch: str) -> None:
    """Call the driver, which every framework shares; without a profiler nobody listens, without a GPU there is none."""
    with suppress(OSError):
        getattr(CDLL("libcuda.so.1"), switch)()


if __name__ == "__main__":
    sys.exit(main())
