"""The launcher on a CPU: what Triton's launcher is called with, and kernels that the compiler would change."""

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from fake_memory import FakeMemory

from einops_fast.backends.triton.launching import bare_launch, compiling, kernel_call
from einops_fast.backends.triton.launching.arrays import Array, Descriptor
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall, KernelCall

ARRAYS = Array("float16", (8, 64), (64, 1), (8, 64)), None, Array("float16", (4, 32), (128, 1), (4, 32))
TAIL = (7, (1, 2))

OF_THIS_TRITON = mock.patch("triton.backends.nvidia.driver._BASE_ARGS_FORMAT", bare_launch._FORMAT, create=True)
"""As if Triton's launcher were the one that is called directly, whichever is installed."""


class _Memory(FakeMemory):
    """Arrays are their addresses."""

    def pointer(self, array: Any) -> int:
        return array if isinstance(array, int) else array.data_ptr()

    def stream(self, device: int) -> int:
        return 5 + device

    def seconds(self, run: Any, device: int, repeat: int) -> list[float]:
        raise AssertionError


class _Run:
    """As Triton's launcher is built."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self, **others: Any) -> None:
        self.bare: list[Any] = []
        self.whole: list[Any] = []

        def launcher(*arguments: Any) -> None:
            self.bare.append(arguments)

        def inner(*arguments: Any) -> None:
            launcher(*arguments)

        self.launch = inner
        vars(self).update(others)

    def __call__(self, *arguments: Any) -> None:
        self.whole.append(arguments)


def _compiled(run: Any, boxes: Any) -> Any:
    return mock.Mock(run=run, function="function", packed_metadata="packed", metadata=mock.Mock(tensordesc_meta=boxes))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel with two boxes, as if on a GPU."""
    monkeypatch.setattr(kernel_call, "interpreted", lambda: False)
    return DeclaredCall(None, (3, 1), ARRAYS, TAIL, {}, {})


def test_what_describes_an_array_is_made_once_for_each_address(call: Any) -> None:
    made: list[Any] = []

    def expanded(descriptor: Descriptor, metadata: Any) -> list[Any]:
        made.append((descriptor.data_ptr(), metadata["at"]))
        return [f"map of {descriptor.data_ptr()}", *descriptor.shape, *descriptor.strides]

    run, memory = _Run(), _Memory()
    compiled = mock.patch.object(call, "compile_for", return_value=_compiled(run, [{"at": 0}, {"at": 2}]))
    with OF_THIS_TRITON, compiled, mock.patch("triton.backends.nvidia.driver.make_tensordesc_arg", expanded):
        assert call(memory, 0, 160, None, 320)
        assert call(memory, 0, 160, None, 480)
        assert call(memory, 0, 480, None, 320)
        assert made == [(160, 0), (320, 2), (480, 2), (480, 0)]
        assert call(memory, 0, 160, None, 480)
        assert len(made) == 4
        with mock.patch.object(kernel_call, "_MOST_KEPT", 2):
            call(memory, 0, 640, None, 320)
            call(memory, 0, 160, None, 320)
    assert made[4:] == [(640, 0), (160, 0)]
    assert run.whole == []
    assert run.bare[1] == run.bare[3]
    assert run.bare[1] == (
        *(3, 1, 1, 5, "function", False, False, None, None, "packed", None, None, None),
        *("map of 160", 8, 64, 64, 1, None, "map of 480", 4, 32, 128, 1, *TAIL),
    )


@pytest.mark.parametrize("other", [{"global_scratch_size": 8}, {"launch_cooperative_grid": True}, {"launch": print}])
def test_a_launcher_that_is_built_otherwise_gets_descriptors(call: Any, other: dict[str, Any]) -> None:
    run = _Run(**other)
    with mock.patch.object(call, "compile_for", return_value=_compiled(run, [{"at": 0}, {"at": 1}])) as compile:
        assert call(_Memory(), 0, 160, None, 320)
        call.grid = (0, 1, 1)
        assert call(_Memory(), 0, 160, None, 480)
    assert compile.call_count == 1  # a grid without programs isn't queued
    assert run.bare == []
    (arguments,) = run.whole
    assert arguments[:9] == (3, 1, 1, 5, "function", "packed", None, None, None)
    assert [getattr(each, "data_ptr", lambda each=each: each)() for each in arguments[9:12]] == [160, None, 320]
    assert arguments[12:] == TAIL


def test_odd_addresses(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hardware copies no box from there; a kernel that takes addresses is compiled for them."""
    launch = bare_launch.Launch(lambda *given: None, (), True, False)
    monkeypatch.setattr(kernel_call, "launch_of", lambda compiled: launch)
    assert not call(_Memory(), 0, 160, None, 322)
    address = Array("float16")
    call = DeclaredCall(None, (3, 1), ((address, address), address), (), {}, {}, order=((0, 2), 1))
    with mock.patch.object(call, "compile_for") as compile:
        for addresses in ((16, 32, 48), (16, 32, 50), (32, 32, 48), (17, 32, 48)):
            assert call(_Memory(), 0, *addresses)
    odd = address._replace(aligned=False)
    assert compile.call_args_list == [mock.call((address, address), address), mock.call((odd, odd), odd)]


class _Places(NamedTuple):
    rows: int
    scale: float


@pytest.mark.parametrize("even", [None, (), ("rows",)])
def test_signatures_are_those_of_triton(even: Any) -> None:
    """Of arrays, numbers and tuples of these; where fields are named, they alone are known to be even."""
    numbers = (1, 16, 17, True, 0.5, 1 << 31, (1, 32), _Places(48, 2.0))
    names = ["x", "several", *(f"n{at}" for at in range(len(numbers))), "tiling"]
    free = {"n1"}
    function = mock.Mock(arg_names=names, params=[mock.Mock(do_not_specialize=name in free) for name in names])
    x, odd = Array(torch.bfloat16), Array("bool", aligned=False)
    types, constants, aligned = compiling.signature(function, (x, (odd, None, x), *numbers), ("t",), even)
    every = even is None
    assert dict(types) == {
        **{"x": "*bf16", "several": ("*u1", "constexpr", "*bf16"), "n0": "constexpr" if every else "i32", "n1": "i32"},
        **{"n2": "i32", "n3": "u1", "n4": "fp32", "n5": "i64", "n6": ("constexpr" if every else "i32", "i32")},
        **{"n7": _Places("i32", "fp32"), "tiling": "constexpr"},  # type: ignore[arg-type]
    }
    assert dict(constants) == {(1, 1): None, (10,): "t", **({(2,): 1, (8, 0): 1} if every else {})}
    found = {(0,), (1, 2)}
    assert {*aligned} == found | ({(7,), (8, 1), (9, 0)} if every else {(9, 0)} if even else set())


def test_arrays_of_another_dtype_are_other_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_call, "interpreted", lambda: False)
    queued: list[Any] = []
    monkeypatch.setattr(
        kernel_call,
        "launch_of",
        lambda compiled: bare_launch.Launch(lambda *given: queued.append(given), (), True, False),
    )
    call = KernelCall(None, (2, 3), (4,), {"block": 8}, 4, 1)
    memory = _Memory()
    with mock.patch.object(call, "compile_for") as compile:
        for dtype in (torch.float32, torch.float32, torch.int32):
            array = torch.empty(0, dtype=dtype)
            call(memory, 0, array, (array, None))
    assert [described[0].dtype for described, _ in compile.call_args_list] == [torch.float32, torch.int32]
    assert queued == [(2, 3, 1, 5, 0, (0, None), 4, 8)] * 3
