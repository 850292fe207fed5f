"""What the machine that Python runs on offers: threads and memory."""

from __future__ import annotations

import os
import sys


def cpu_threads() -> int:
    """Threads that a CPU library will use, as the usual environment variables and the affinity mask say."""
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def free_memory() -> int:
    """Bytes of memory that can still be taken; a very large number where the system doesn't say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
