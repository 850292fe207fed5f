"""The operators' kernels go through Triton's compiler, with the tiles of large problems, for absent GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import FINISH, printed

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = (
    FINISH
    + """
import sys
from dataclasses import fields, is_dataclass
from threading import Lock

import torch

pretend(int(sys.argv[1]))

from einops_fast import ops
from einops_fast.backends.torch import operator as torch_operator
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.launching.kernel_call import KernelCall

torch_operator.on_gpu = lambda tensor: True
TorchMemory.limits = lambda self, device: {"80": (166912, 108), "90": (232448, 132)}[sys.argv[1]]
compile = KernelCall.compile_for
lock, seen = Lock(), {}

def kind(value):
    # All but how large tiles are.
    if is_dataclass(value):
        return type(value), *[kind(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, tuple):
        return tuple(map(kind, value))
    return value > 1 if type(value) is int else value

def reported(self, *arrays):
    name, warps = self.function.fn.__name__, self.options["num_warps"]
    key = case, name, kind((arrays, self.tail, *self.constants.values(), *self.options.values()))
    # Threads compile side by side.
    with lock:
        if key not in seen:
            seen[key] = compile(self, *arrays)
            # 16 bytes at once, at once or by a copy that goes on beside.
            ptx = seen[key].asm["ptx"]
            wide = "wide" if "ld.global.v4" in ptx or ", 0x10, " in ptx else "narrow"
            print(case, "|", wide, name, warps, seen[key].metadata.shared)
        return seen[key]

KernelCall.compile_for = reported
for case in sys.argv[2:]:
    name, dtype, *sizes = case.removesuffix(" finished").split()
    finish(case.endswith(" finished"))
    dtype = getattr(torch, dtype)
    sizes = [*map(int, sizes)]
    x = torch.zeros(sizes, dtype=dtype, requires_grad=True)
    rows = sizes[-1]
    weight, bias = (torch.zeros(rows, dtype=dtype, requires_grad=True) for _ in range(2))
    found = {
        "softmax": lambda: ops.softmax(x, causal=True, mask=bias),
        "log_softmax": lambda: ops.log_softmax(x, mask=bias > 0),
        "strided": lambda: ops.softmax(x, 0),
        "layer_norm": lambda: ops.layer_norm(x, weight=weight, bias=bias),
        "gelu": lambda: ops.dropout_bias_activation(x, bias, "gelu", 0.1) + ops.bias_gelu(x, approximate="tanh"),
        "plain": lambda: ops.softmax(x) + ops.layer_norm(x),
        "cross_entropy": lambda: ops.cross_entropy(x, x[..., 0].long(), bias.detach(), -100, "sum", 0.1),
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(x, x, x[..., 0].long()),
        "rms_norm": lambda: ops.rms_norm(x, weight=weight),
        "strided_norm": lambda: ops.layer_norm(x.T, dim=1),
        "dropped": lambda: sum(ops.dropout_add_layer_norm(x, x, weight, bias, 0.1)),
    }[name]()
    found.backward(found.detach())
"""
)

CASES = [
    "gelu bfloat16 512 4096 finished",
    "softmax bfloat16 64 1000",
    "log_softmax float32 64 65536",
    "layer_norm bfloat16 64 1024 finished",
    "layer_norm float64 2 1000000",
    "cross_entropy bfloat16 64 50257",
    "linear_cross_entropy bfloat16 4096 8",
    "plain float16 512 2048",
    "dropped bfloat16 64 4096",
    "rms_norm bfloat16 200 2048",
    "cross_entropy bfloat16 300 4096",
]
"""What is called, the dtype and the sizes. Of all tilings that compete, one of each kind is compiled."""

LONG = {
    "plain bfloat16 70 65536 finished": 4,
    "plain float32 70 50000": 4,
    "plain bfloat16 70 151936": 2,
    "dropped bfloat16 70 65536": 2,
}
"""Long rows, whose last parts are whole ones, or not; and how many kernels are clusters'."""


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile(capability: int, tmp_path: Path) -> None:
    cases = [*CASES, *LONG] if capability == 90 else CASES[:2]
    lines = printed(PROGRAM, tmp_path, str(capability), *cases)
    for case in cases:
        ran = [line for line in lines if line.startswith(f"{case} |")]
        assert len(ran) >= 2
        if case in LONG:
            assert len({line.split()[-3] for line in ran if "_cluster_kernel" in line}) == LONG[case]


WIDE = [
    "plain float32 600 1004",
    "softmax bfloat16 600 1000",
    "layer_norm bfloat16 9000 192",  # several rows to a warp, in pieces
    "log_softmax bfloat16 600 1000",
    "strided bfloat16 300 1000",  # neighbours are in different rows
    "strided float32 300 1024",
    "strided_norm bfloat16 1000 520",
]


def test_rows_that_are_no_multiples_of_16_are_read_in_vectors(tmp_path: Path) -> None:
    long = "plain bfloat16 600 50257"
    lines = printed(PROGRAM, tmp_path, "90", *WIDE, long)
    for case in (*WIDE, long):
        of_case = [line for line in lines if line.startswith(f"{case} |") and (case != long or "softmax" in line)]
        assert of_case
        assert all(line.startswith(f"{case} | wide ") for line in of_case), of_case
