"""Launching kernels whose arrays the hardware copies, on a CPU: what Triton's launcher is called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("triton")

from einops_fast.backends.triton.contraction.boxes.launch import Descriptor
from einops_fast.backends.triton.launching import bare_launch
from einops_fast.backends.triton.launching.mapped_launch import MappedLaunch

DESCRIPTORS = [Descriptor([8, 64], [64, 1]), None, Descriptor([4, 32], [128, 1])]
REST = (7, (1, 2))

OF_THIS_TRITON = mock.patch("triton.backends.nvidia.driver._BASE_ARGS_FORMAT", bare_launch._FORMAT, create=True)
"""As if Triton's launcher were the one that is called directly, whichever is installed."""


class _Run:
    """As Triton's launcher is built."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self) -> None:
        self.bare: list[Any] = []
        self.whole: list[Any] = []

        def launcher(*arguments: Any) -> None:
            self.bare.append(arguments)

        def inner(*arguments: Any) -> None:
            launcher(*arguments)

        self.launch = inner

    def __call__(self, *arguments: Any) -> None:
        self.whole.append(arguments)


def _compiled(run: Any, metadata: Any) -> Any:
    return SimpleNamespace(
        run=run, function="function", packed_metadata="packed", metadata=SimpleNamespace(tensordesc_meta=metadata)
    )


def test_what_describes_an_array_is_made_once_for_each_address() -> None:
    made: list[Any] = []

    def expanded(descriptor: Descriptor, metadata: Any) -> list[Any]:
        made.append((descriptor.data_ptr(), metadata["at"]))
        return [f"map of {descriptor.data_ptr()}", *descriptor.shape, *descriptor.strides]

    run = _Run()
    with OF_THIS_TRITON:
        launch = MappedLaunch(_compiled(run, [{"at": 0}, {"at": 1}]), 3, DESCRIPTORS, REST)
    with mock.patch("triton.backends.nvidia.driver.make_tensordesc_arg", expanded):
        launch(5, (160, 8, 320))
        launch(5, (160, None, 480))
        launch(6, (480, 8, 320))
        with mock.patch.object(bare_launch, "_MOST_KEPT", 2):
            launch(6, (640, 8, 320))
            launch(6, (160, 8, 320))
    assert made == [(160, 0), (320, 1), (480, 1), (480, 0), (640, 0), (160, 0)]
    assert run.whole == []
    queued = len(run.bare)
    assert launch.again(7, (160, 8, 320))
    assert not launch.again(7, (160, 8, 640))
    assert run.bare[queued:] == [(3, 1, 1, 7, *run.bare[-2][4:])]
    assert run.bare[1] == (
        *(3, 1, 1, 5, "function", False, False, None, None, "packed", None, None, None),
        *("map of 160", 8, 64, 64, 1, None, "map of 480", 4, 32, 128, 1, 7, (1, 2)),
    )


@pytest.mark.parametrize("other", [{"global_scratch_size": 8}, {"launch_cooperative_grid": True}, {"launch": print}])
def test_a_launcher_that_is_built_otherwise_gets_descriptors(other: dict[str, Any]) -> None:
    run = _Run()
    vars(run).update(other)
    MappedLaunch(_compiled(run, [{"at": 0}, {"at": 1}]), 3, DESCRIPTORS, REST)(5, (160, 8, 320))
    assert run.bare == []
    (arguments,) = run.whole
    assert arguments[:9] == (3, 1, 1, 5, "function", "packed", None, None, None)
    assert [getattr(each, "data_ptr", lambda each=each: each)() for each in arguments[9:12]] == [160, 8, 320]
    assert arguments[12:] == REST
