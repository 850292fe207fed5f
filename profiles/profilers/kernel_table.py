"""The "Time | Kernel" listing of apache/mxnet#18043, from what any profiler has written.

``python -m einops_fast.profiles.profilers.kernel_table FILE`` takes

- a Chrome trace (``--trace``, torch.profiler, MXNet's profiler, Perfetto's JSON), also gzipped;
- ``nsys stats --format csv`` of its reports ``cuda_gpu_kern_sum`` and ``cuda_gpu_trace``;
- the SQLite file of ``nsys export --type sqlite``, or of nvprof's ``-o``;
- ``ncu --csv``, with ``--page raw`` or not;
- ``nvprof --csv``, its summary or ``--print-gpu-trace``.

Times are sums over all calls in the file; ``--calls N`` divides them by the number of calls that were recorded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from einops_fast.profiles.profilers.trace_readers import UnknownFormat, read_kernels, short_name

__all__ = ["listing", "main"]


def listing(times: Mapping[str, float], top: int | None = None) -> str:
    """The listing: a line per kernel with its seconds, the longest first.

    >>> print(listing({'copy': 2e-5, 'gemm': 1.5e-3}))
         Time | Kernel
    --------- | ------
     1.500 ms | gemm
     0.020 ms | copy
    """
    ordered = sorted(times.items(), key=lambda each: -each[1])[:top]
    lines = [f"{seconds * 1e3:6.3f} ms | {name}" for name, seconds in ordered]
    return "\n".join(["     Time | Kernel", "--------- | ------", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the listing of a file: 0, or 2 if it can't be read."""
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.profilers.kernel_table",
        description="List kernels by time, from a profiler's file.",
    )
    parser.add_argument("file", type=Path, help="a Chrome trace, or CSV or SQLite of nsys, ncu or nvprof")
    parser.add_argument("--top", type=int, default=None, metavar="N", help="the most lines; default: all")
    parser.add_argument("--calls", type=int, default=1, metavar="N", help="how many calls the file is of")
    parser.add_argument("--short", action="store_true", help="names without namespaces and template arguments")
    options = parser.parse_args(arguments)
    if options.calls < 1:
        parser.error("--calls is a number from 1 on")
    try:
        totals = read_kernels(options.file)
    except (OSError, UnknownFormat) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    shown: dict[str, float] = {}
    for name, seconds in totals.items():
        told = short_name(name) if options.short else name
        shown[told] = shown.get(told, 0.0) + seconds / options.calls
    print(listing(shown, options.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
