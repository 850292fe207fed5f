"""The "Time | Kernel" listing of apache/mxnet#18043: ``python -m einops_fast.profiles.profilers.kernel_table FILE``.

The file is one that :mod:`.trace_readers` knows. Times are sums over all calls in it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from einops_fast.profiles.profilers.trace_readers import UnknownFormat, read_kernels, short_name

__all__ = ["listing", "main"]


def listing(times: Mapping[str, float], top: int | None = None) -> str:
    """Return a line per kernel with its seconds, the longest first.

    >>> print(listing({'copy': 2e-5, 'gemm': 1.5e-3}))
         Time | Kernel
    --------- | ------
     1.500 ms | gemm
     0.020 ms | copy
    """
    lines = [f"{seconds * 1e3:6.3f} ms | {name}" for name, seconds in Counter(times).most_common(top)]
    return "\n".join(["     Time | Kernel", "--------- | ------", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the listing of a file: 0, or 2 if it can't be read."""
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.profilers.kernel_table",
        description="List kernels by time, from a profiler's file.",
    )
    parser.add_argument("file", type=Path, help="a Chrome trace, or CSV or SQLite of nsys, ncu or nvprof")
    parser.add_argument("--short", action="store_true", help="names without namespaces and template arguments")
    options = parser.parse_args(arguments)
    times: Counter[str] = Counter()
    try:
        for name, seconds in read_kernels(options.file).items():
            times[short_name(name) if options.short else name] += seconds
    except (OSError, UnknownFormat) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    print(listing(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
