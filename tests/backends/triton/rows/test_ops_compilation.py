"""The operators' kernels go through Triton's compiler, with the tiles of large problems, for absent GPUs."""

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

pretend(90)

from einops_fast import ops
from einops_fast.backends.torch import operator as torch_operator
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.launching.kernel_call import KernelCall

torch_operator.on_gpu = lambda tensor: True
TorchMemory.limits = lambda self, device: (232448, 132)
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
for case in sys.argv[1:]:
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
    "log_softmax float32 64 65536",
    "layer_norm bfloat16 64 1024 finished",
    "layer_norm float64 2 1000000",
    "cross_entropy bfloat16 64 50257 finished",
    "linear_cross_entropy bfloat16 4096 8",
    "plain float16 512 2048",
    "dropped bfloat16 64 4096",
    "rms_norm bfloat16 200 2048",
]
"""What is called, the dtype and the sizes. Of all tilings that compete, one of each kind is compiled."""

LONG = {"plain bfloat16 70 65536 finished": 4, "plain float32 70 50000": 4, "dropped bfloat16 70 65536": 2}
"""Long rows, whose last parts are whole ones, or not; and how many kernels are clusters'."""

WIDE = [
    "plain float32 600 1004",
    "softmax bfloat16 600 1000",
    "layer_norm bfloat16 9000 192",  # several rows to a warp, in pieces
    "strided bfloat16 300 1000",  # neighbours are in different rows
    "strided_norm bfloat16 1000 520",
    "plain bfloat16 600 50257",  # of its norm, not all is
]
"""Rows that are no multiples of 16, and are read in vectors all the same."""


def test_kernels_compile(tmp_path: Path) -> None:
    """Other GPUs than Hopper have a case of each kernel in ``test_capabilities.py``: the compiler is what differs."""
    lines = printed(PROGRAM, tmp_path, *CASES, *LONG, *WIDE)
    for case in (*CASES, *LONG, *WIDE):
        ran = [line for line in lines if line.startswith(f"{case} |")]
        assert len(ran) >= 2
        if case in LONG:
            assert len({line.split()[-3] for line in ran if "_cluster_kernel" in line}) == LONG[case]
        if case in WIDE:
            ran = [line for line in ran if "softmax" in line or case != WIDE[-1]]
            assert all(line.startswith(f"{case} | wide ") for line in ran), ran
