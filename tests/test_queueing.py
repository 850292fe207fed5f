"""Times of GPU work don't depend on the host that queues it."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from einops_fast.backends.triton.queueing import Sample, times_behind


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
