"""Observing in several processes: each call is counted once, by the process that made it."""

import multiprocessing
import os

import pytest
from python_process import run_python

from einops_fast import metrics

SCRIPT = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor

def call(count):
    import numpy as np
    from einops_fast import fast_einsum
    for _ in range(count):
        fast_einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4)))
    return os.getpid()

def everything(how, before):
    if before:
        call(before)
    if how == "os":
        if not os.fork():
            call(3)
            sys.exit(0)
        os.wait()
        return
    context = multiprocessing.get_context(how)
    process = context.Process(target=call, args=(3,))
    process.start()
    process.join()
    assert process.exitcode == 0
    with context.Pool(2) as pool:  # whose end terminates them
        pool.map(call, [1, 2, 1])
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(call, [1, 1]))

if __name__ == "__main__":
    everything(sys.argv[1], int(sys.argv[2]))
"""

RECORDING = """
if __name__ == "__main__":
    from einops_fast import metrics
    with metrics.record("out"):
        everything(sys.argv[1], int(sys.argv[2]))
    if os.fork():
        os.wait()
    else:  # has nothing to write, nor what was written
        process = multiprocessing.get_context("fork").Process(target=call, args=(1,))
        process.start()
        process.join()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(SCRIPT)
    return tmp_path


METHODS = [*multiprocessing.get_all_start_methods(), *(["os"] if hasattr(os, "fork") else [])]


def counted(folder):
    return sum(int(row["calls"]) for row in metrics.read(folder / "out")["plans"])


@pytest.mark.parametrize("before", [0, 2], ids=["imported in the children", "called before"])
@pytest.mark.parametrize("how", METHODS)
def test_the_environment_counts_each_call_once(how, before, program):
    run_python("program.py", how, before, cwd=program, **{metrics.VARIABLE: "plans:out"})
    assert counted(program) == before + (3 if how == "os" else 9)
    files = {path.name.split("-")[1] for path in (program / "out").iterdir()}
    assert len(files) >= (2 if before else 1)


FORKS = [how for how in METHODS if how in ("os", "fork")]


@pytest.mark.parametrize("how", FORKS)
def test_a_block_counts_each_call_once(how, program):
    text = SCRIPT[: SCRIPT.index("\nif __name__")] + RECORDING
    (program / "program.py").write_text(text)
    run_python("program.py", how, 2, cwd=program)
    assert counted(program) == 2 + (3 if how == "os" else 9)


@pytest.mark.parametrize("how", FORKS)
def test_run_profiles_each_process(how, program):
    done = run_python("-m", "einops_fast", "run", "--profile", "program.py", how, 2, cwd=program)
    totals = [int(line.split()[0]) for line in done.stderr.splitlines() if " took " in line]
    assert sum(totals) == 2 + (3 if how == "os" else 9)
    assert done.stderr.count("process ") == len(totals) - 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_that_calls_nothing_prints_nothing():
    code = "import os; os.fork() and os.wait()"
    done = run_python("-m", "einops_fast", "run", "--profile", "-c", code)
    hint = "--patch sends a framework's own through it"
    assert done.stderr == f"\nno einsum went through einops_fast; {hint}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_profile_sees_late_threads_and_exit_handlers():
    code = (
        "import atexit, threading, numpy as np; f = lambda: np.einsum('ij,jk', np.ones((9, 9)), np.ones((9, 9)))\n"
        "atexit.register(f); threading.Thread(target=lambda: (threading.main_thread().join(), f())).start()"
    )
    done = run_python("-m", "einops_fast", "run", "--profile", "--patch", "numpy", "-c", code)
    assert "\n2 calls took " in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fusions_are_those_of_one_process():
    code = (
        "import os, einops_fast\nfrom einops_fast.compiler.report import Fusion, tell\n"
        "with einops_fast.profile() as seen, einops_fast.fusions() as log:\n"
        "    tell(Fusion('attention', 'here', 'pattern'))\n"
        "    child = not os.fork()\n"
        "    if not child: os.wait()\n"
        "    else: tell(Fusion('attention', 'there', reason='unknown'))\n"
        "    print([each.where for each in (*log.fused, *log.missed)], flush=True)\n"
    )
    assert run_python("-c", code).stdout == "['there']\n['here']\n"
