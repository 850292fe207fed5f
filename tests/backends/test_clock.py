"""Times of work as a GPU has it, whatever the host takes to queue it."""

import pytest

pytest.importorskip("triton")

from einops_fast.backends.clock import Sample, gpu_times, times_behind


def test_a_run_that_waited_for_the_host_does_not_count() -> None:
    asked: list[int] = []

    def sample(pieces: int) -> Sample:
        asked.append(pieces)
        ahead = pieces * 60e-6
        # What the GPU does takes 100 µs, unless it waits for the host.
        return Sample(ahead, 200e-6, max(100e-6, 200e-6 - ahead))

    assert times_behind(sample, 3) == [100e-6] * 3
    assert asked == [1, 5, 5, 5]


def test_a_quick_host_costs_nothing() -> None:
    asked: list[int] = []
    assert times_behind(lambda pieces: asked.append(pieces) or Sample(1.0, 0.5, 2.0), 2) == [2.0, 2.0]
    assert asked == [1, 1]


@pytest.mark.parametrize("ahead", [0.0, 1e-9])
def test_what_waits_for_the_gpu_itself_counts_in_the_end(ahead: float) -> None:
    asked: list[int] = []
    assert times_behind(lambda pieces: asked.append(pieces) or Sample(ahead, 1.0, 2.0), 2) == [2.0, 2.0]
    assert asked == [1, 64, 64]


def test_events_are_read_when_all_has_passed() -> None:
    now, queued, synchronized = [0.0], [], []

    class Event:
        def record(self) -> None:
            self.at = now[0]

    def work(milliseconds: float) -> None:
        queued.append(milliseconds)
        now[0] += milliseconds

    def elapsed(first: Event, second: Event) -> float:
        return second.at - first.at

    overwrite, run = lambda: work(1e6), lambda: work(250.0)
    assert gpu_times(run, 3, overwrite, Event, elapsed, lambda: synchronized.append(len(queued))) == [0.25] * 3
    assert queued == [1e6, 250.0] * 3
    assert synchronized == [2, 4, 6]
