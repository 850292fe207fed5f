"""Times of work as a GPU has it, whatever the host takes to queue it."""

from collections.abc import Callable

import pytest

from einops_fast.backends import clock


@pytest.mark.parametrize(
    ("host", "piece", "runs", "expected", "pieces"),
    [
        (2e-4, 6e-5, 3, 1e-4, [1, 5, 5, 5]),  # a run that waited for the host doesn't count
        (0.5, 1.0, 2, 1e-4, [1, 1]),
        (1.0, 0.0, 2, 1.0, [1, 64, 64]),  # what waits for the GPU itself counts in the end
        (1.0, 1e-9, 2, 1.0, [1, 64, 64]),
    ],
)
def test_runs_are_timed_behind_other_work(
    host: float, piece: float, runs: int, expected: float, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's work takes 100 µs, unless it waits for the host; events are read when all has passed."""
    device, now, queued, asked = [0.0], [0.0], [0], list[int]()

    class Event:
        def record(self) -> None:
            self.at = device[0]

    def overwrite() -> None:
        queued[0] += 1
        device[0] += piece

    def run() -> None:
        now[0] += host
        device[0] += max(1e-4, host - queued[0] * piece)

    def synchronize() -> None:
        asked.append(queued[0])
        queued[0] = 0

    def elapsed(first: Event, second: Event) -> float:
        assert queued[0] == 0
        return 1e3 * (second.at - first.at)

    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    new: Callable[[], Event] = Event
    found = clock.gpu_times(run, runs, overwrite, new, elapsed, synchronize)
    assert found == pytest.approx([expected] * runs)
    assert asked == pieces
