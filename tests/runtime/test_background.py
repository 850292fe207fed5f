"""Work in other processes: what comes back, what is lost, and when the processes end."""

import operator
import os
import subprocess
import sys
import time

import pytest

from einops_fast.runtime import background

pytestmark = pytest.mark.skipif(not background.available(), reason="needs fork")


def test_results_and_what_goes_wrong() -> None:
    ten = [background.submit(operator.mul, at, at) for at in range(10)]
    broken = background.submit(operator.truediv, 1, 0)
    dead = background.submit(os._exit, 3)
    assert [each.result(60) for each in ten] == [at * at for at in range(10)]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        broken.result(60)
    with pytest.raises(RuntimeError, match="has died"):
        dead.result(60)
    # The others are done nevertheless, whatever is printed.
    assert background.submit(print, "printed").result(60) is None


def test_the_server_that_was_killed_is_started_again() -> None:
    background.submit(operator.add, 1, 1).result(60)
    process = background._server._process
    assert process is not None
    lost = background.submit(time.sleep, 60)
    process.kill()
    with pytest.raises(RuntimeError, match="has ended"):
        lost.result(60)
    process.wait(60)
    assert background.submit(operator.add, 2, 2).result(60) == 4


def test_a_fork_has_no_server() -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(theirs, b"yes" if background.available() else b"no")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(ours, 3) == b"no"


ENDS = """
import os, time
from einops_fast.runtime import background
pid = background.submit(os.getppid).result(60)
background.submit(time.sleep, 600)
time.sleep(0.2)
print(pid, flush=True)
os._exit(0) if {violently} else None
"""


@pytest.mark.parametrize("violently", [False, True])
def test_it_ends_with_the_program(violently: bool) -> None:
    program = [sys.executable, "-c", ENDS.format(violently=violently)]
    server = int(subprocess.run(program, capture_output=True, text=True, check=True, timeout=120).stdout)
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{server}") and not _zombie(server):
        assert time.monotonic() < end
        time.sleep(0.05)


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
