"""The profiles measure what they say they do: results are checked, then timed in turns. No test asserts a time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from einops_fast.profiles import frameworks
from einops_fast.profiles.cases import PROBLEMS, Case
from einops_fast.profiles.einsum.study import by_hand
from einops_fast.profiles.timing import accuracy, measure
from einops_fast.profiles.timing.clocks import EventClock, HostClock
from einops_fast.profiles.ways import Way, inputs

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "einops_fast" / "profiles" / "profile_einsum.py"

SMALL = Case("small", "bik,bjk->bij", ((2, 3, 4), (2, 5, 4)))


def einsum(*operands):
    return np.einsum(SMALL.equation, *operands)


# Accuracy


@pytest.mark.parametrize("work", [accuracy.REFERENCE_WORK, 20], ids=["whole", "on a grid"])
def test_reference_finds_one_wrong_element(monkeypatch, work):
    monkeypatch.setattr(accuracy, "REFERENCE_WORK", work)
    values = accuracy.random_values(SMALL.shapes, 0)
    reference = accuracy.Reference(SMALL, values)
    result = einsum(*values)
    assert reference.error(result, np.asarray) < 1e-14
    result[-1, -1, -1] += 0.5
    assert reference.error(result, np.asarray) == pytest.approx(0.5 / 2)
    assert reference.error(result.transpose(0, 2, 1), np.asarray) == np.inf
    assert reference.error(np.full_like(result, np.nan), np.asarray) == np.inf


# The runner


def test_runner_excludes_what_is_wrong(numpy):
    def broken(*operands):
        raise OverflowError("too much\nof it")

    bound = []

    def greedy(call, *operands):
        bound.append(True)
        if len(bound) > 1:
            raise MemoryError("no room for more")
        return lambda: call(*operands)

    ways = [
        Way("native", einsum, numpy),
        Way("right", lambda a, b: a @ b.swapaxes(1, 2), numpy),
        Way("wrong", lambda a, b: einsum(a, b) * 1.001, numpy),
        Way("broken", broken, numpy),
        Way("greedy", einsum, numpy, prepare=greedy),
    ]
    native, right, wrong, *raised = measure.compare(SMALL, ways, "float32", effort=measure.QUICK)
    assert native.speedup == 1
    assert not right.failure
    assert right.seconds > 0
    assert right.speedup > 0
    assert wrong.failure.startswith("wrong: error")
    assert [each.failure for each in raised] == ["OverflowError: too much", "MemoryError: no room for more"]
    assert all(each.seconds is None is each.speedup for each in (wrong, *raised))


def test_times_are_not_taken_on_checked_inputs(numpy):
    seen = []

    def remember(*operands):
        seen.append(operands[0].tobytes())
        return einsum(*operands)

    measure.compare(SMALL, [Way("native", remember, numpy)], "float32", effort=measure.QUICK)
    assert seen[0] not in seen[1:]
    assert len(set(seen)) == 2


def test_the_host_queues_a_whole_call_while_a_cache_is_emptied(numpy, monkeypatch):
    """A GPU in name only."""
    flushed = []
    monkeypatch.setattr(numpy, "device", "gpu")
    monkeypatch.setattr(numpy, "clock", lambda *, flushes: flushed.append(flushes) or HostClock(numpy.synchronize))
    way = Way("native", lambda *operands: time.sleep(0.001) or einsum(*operands), numpy)
    [timing] = measure.time_ways(
        measure.check(SMALL, [way], "float32"),
        lambda: inputs(SMALL, numpy, "float32", 1),
        measure.QUICK,
        hiding_launches=1e12,
    )
    assert timing.host > 0
    assert 1 < flushed[0] <= measure.MOST_FLUSHES


# Clocks and rounds


def test_event_clock_flushes_before_each_call():
    log = []

    class Event:
        def record(self):
            log.append("event")

    clock = EventClock(Event, lambda start, end: 4.0, lambda: log.append("flush"), lambda: log.append("wait"))
    assert clock.sample(lambda: log.append("call"), 2) == 0.004
    assert log == ["flush", "event", "call", "event"] * 2 + ["wait"]


class ScriptedClock:
    """A call says how long it takes."""

    sample_seconds = 1.0
    most_calls = 1

    def sample(self, call, calls):
        return call()


def test_a_way_far_behind_stops_early():
    effort = measure.Effort(rounds=12, seconds=60.0, warm_up=0.0, lost=2.0)
    times = measure.time_calls([lambda: 1.0, lambda: 1.9, lambda: 2.1], ScriptedClock(), effort)
    assert [len(rounds) for rounds in times] == [12, 12, 5]


def test_rounds_until_a_device_has_settled_do_not_count():
    begun = time.perf_counter()

    def slows_down():
        time.sleep(0.001)
        return 1.0 if time.perf_counter() - begun < 0.05 else 2.0

    effort = measure.Effort(rounds=4, seconds=60.0, warm_up=0.0, settling=0.1)
    assert measure.time_calls([slows_down, slows_down], ScriptedClock(), effort) == [[2.0] * 4] * 2


def test_ratios_are_of_the_rounds_that_both_have():
    ours = measure.Timing("ours", rounds=(2.0, 4.0, 6.0, 100.0))
    peer = measure.Timing("peer", rounds=(1.0, 1.0, 2.0))
    assert measure.paired_ratio(ours, peer) == 3.0
    assert measure.paired_ratio(ours, measure.Timing("failed", failure="wrong")) is None


# Frameworks and modes


@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet"])
def test_by_hand_is_einsum(name):
    if not frameworks.installed(name):
        pytest.skip(f"{name} isn't installed")
    framework = frameworks.load(name, "cpu", 1)
    for case in PROBLEMS:
        small = case.with_extents({"b": 2, "n": 3, "i": 4, "j": 5, "d": 6})
        ways = [
            Way("native", lambda *operands, case=case: framework.einsum(case.equation, *operands), framework),
            Way("by hand", by_hand(framework, case.problem), framework),
        ]
        assert [timing.failure for timing in measure.check(small, ways, "float32")] == ["", ""]


def test_unavailable_says_why(numpy):
    turned = Case("", "ij,jk->ik", ((2, 3), (3, 4)), memory=("ji", "jk"))
    if frameworks.installed("mxnet"):
        with pytest.raises(frameworks.Unavailable, match="strides"):
            inputs(turned, frameworks.load("mxnet", "cpu", 1), "float32", 0)
    with pytest.raises(frameworks.Unavailable, match="on cpu only"):
        frameworks.load("numpy", "gpu")
    with pytest.raises(frameworks.Unavailable, match="bfloat16"):
        numpy.array(np.ones(2), "bfloat16")
    with pytest.raises(frameworks.Unavailable, match="autograd"):
        numpy.track(np.ones(2))


def test_threads_are_set_before_a_framework_is_imported():
    code = (
        "import sys, einops_fast.profiles.frameworks, einops_fast.profiles.cases;"
        "print({'numpy', 'torch', 'mxnet', 'cupy', 'rich'} & set(sys.modules))"
    )
    root = {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **root}, text=True) == "set()\n"


# The script


def run_script(tmp_path, *arguments):
    command = [sys.executable, str(SCRIPT), *arguments, "--problem", "0", "--device", "cpu", "--threads", "1"]
    # Elsewhere and without help, as a user or a profiler starts it.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True)


@pytest.mark.parametrize(("framework", "mode"), [("numpy", "einsum_optimize"), ("torch", "no_einsum")])
def test_script(tmp_path, framework, mode):
    if not frameworks.installed(framework):
        pytest.skip(f"{framework} isn't installed")
    backward = ["--backward"] if framework == "torch" else []
    done = run_script(tmp_path, "--framework", framework, "--mode", mode, "--repeat", "1", *backward)
    assert done.returncode == 0, done.stderr
    assert "64×8×100×128, 64×8×50×128 -> 64×8×100×50" in done.stdout
    assert "median of 1 calls" in done.stdout
    assert "result: right" in done.stdout
    assert ("forward and backward: " in done.stdout) == bool(backward)
    assert not list(tmp_path.iterdir())


def test_script_says_what_it_cannot_run(tmp_path):
    done = run_script(tmp_path, "--framework", "numpy", "--mode", "einsum", "--backward")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "can't run: numpy has no autograd\n"
