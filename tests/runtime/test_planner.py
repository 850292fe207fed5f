"""The thread that finds out what to compile, and Triton's library, which it has loaded beside the program."""

import sys

import pytest
from python_process import run_python

LOADED = """
import sys
import threading
from pathlib import Path

from einops_fast.runtime.planner import planner

def library() -> bool:
    return "libtriton.so" in Path("/proc/self/maps").read_text()

done = threading.Event()
seen = []

def work() -> None:
    seen.append((library(), "triton" in sys.modules))
    import triton
    done.set()

assert not library()
planner().put(work)
assert done.wait(60) and seen == [(True, False)]
"""

WITHOUT = """
import sys

from einops_fast.backends.triton_support import load_library

sys.modules["triton"] = None
load_library()
del sys.modules["triton"]
sys.path[:] = []
load_library()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux only")
def test_the_linker_loads_triton_before_it_is_imported() -> None:
    pytest.importorskip("triton")
    run_python("-c", LOADED)


def test_without_triton_nothing_is_loaded() -> None:
    run_python("-c", WITHOUT)
