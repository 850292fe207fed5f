"""The launcher on a CPU: what Triton's launcher is called with, and kernels that the compiler would change."""

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from fake_memory import FakeMemory

from einops_fast.backends.triton.launching import bare_launch, compiling, kernel_call
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall, KernelCall

ARRAYS = Array("float16", (8, 64), (64, 1), (8, 64)), None, Array("float16", (4, 32), (128, 1), (4, 32))
TAIL = (7, (1, 2))


class _Memory(FakeMemory):
    """Arrays are their addresses."""

    def pointer(self, array: Any) -> int:
        return array if isinstance(array, int) else array.data_ptr()

    def stream(self, device: int) -> int:
        return 5 + device

    def seconds(self, run: Any, device: int, repeat: int) -> list[float]:
        raise AssertionError


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel with two boxes, as if on a GPU."""
    monkeypatch.setattr(kernel_call, "interpreted", lambda: False)
    return DeclaredCall(None, (3, 1), ARRAYS, TAIL, {}, {})


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
