"""A rehearsal lists what a call and its gradients launch; that is compiled for a GPU in a process that has none."""

from ctypes.util import find_library
from pathlib import Path

import pytest
from compiling import FINISH, printed

pytest.importorskip("torch")
import triton

PROGRAM = (
    FINISH
    + """
import torch

from einops_fast.backends.torch.ops import activation, cross_entropy, norm, softmax
from einops_fast.backends.triton.launching.rehearsing import aimed_at
from rehearsals import as_on_a_gpu, attention_problem, operator_problem, tensor

as_on_a_gpu()
x, w, target = tensor(4, 100, 256), tensor(256), tensor(100, dtype=torch.int64)
CALLS = {
    "norm": norm.norm(x, w, w, 2, 1, 1e-5, True),
    "dropped norm": norm.dropout_add_norm(x, x, w, None, 2, 0.1, 1e-5, False),
    "softmax": softmax.softmax(x, None, 2, False, None, 0, 1.0, None),
    "activation": activation.bias_activation(x, w, "gelu", 0.0),
    "loss": cross_entropy.cross_entropy(tensor(100, 512), target, None, 1, -100, 0.0, 0.0, "mean"),
}

with aimed_at(90):
    named = {name: ("kernels", operator_problem(calls)) for name, calls in CALLS.items()}
    named["attention"] = "triton", attention_problem(2, 300, 4, 64)
    named["dropped attention"] = "triton", attention_problem(2, 300, 4, 64, dropout_p=0.1)
    problems = {name: (problem.named(way), problem) for name, (way, problem) in named.items()}
    for name, (way, problem) in problems.items():
        launches = problem.rehearsed(way)
        print(name, *sorted({each.call.function.__name__ for each in launches}), sep=",")
        assert not problem.is_loaded(way)
    finish(False)
    way, problem = problems["softmax"]
    for each in problem.rehearsed(way):
        each.compile()
    print(problem.is_loaded(way), problems["norm"][1].is_loaded(way), problem.saves() > 0)
"""
)


# Triton 3.6 links what launches a kernel against the driver.
pytestmark = pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and find_library("cuda") is None, reason="needs the driver's library"
)


def test_all_that_a_call_launches_is_listed(tmp_path: Path) -> None:
    *listed, loaded = printed(PROGRAM, tmp_path)
    assert [line.split(",") for line in listed] == [
        ["norm", "column_sums_kernel", "norm_gradient_kernel", "norm_kernel"],
        ["dropped norm", "column_sums_kernel", "norm_gradient_kernel", "norm_kernel"],
        ["softmax", "softmax_gradient_kernel", "softmax_kernel"],
        ["activation", "activation_gradient_kernel", "activation_kernel", "column_sums_kernel"],
        ["loss", "cross_entropy_gradient_kernel", "cross_entropy_kernel", "loss_sums_kernel", "loss_total_kernel"],
        ["attention", "delta_kernel", "hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"],
        ["dropped attention", "delta_kernel", "forward_kernel", "keys_kernel", "queries_kernel"],
    ]
    assert loaded == "True False True"


ORDERS = """
import sys
from einops_fast.backends.triton.attention.general.forward import forward_kernel
from einops_fast.backends.triton.attention.general.gradients import keys_kernel, queries_kernel
from einops_fast.backends.triton.attention.hopper.forward import hopper_kernel
from einops_fast.backends.triton.attention.hopper.keys_gradient import hopper_keys_kernel
from einops_fast.backends.triton.attention.hopper.queries_gradient import hopper_queries_kernel
from einops_fast.backends.triton.launching.compiling import named

kernels = [hopper_kernel, hopper_keys_kernel, hopper_queries_kernel, forward_kernel, keys_kernel, queries_kernel]
for kernel in kernels[::STEP]:
    named(kernel)
for kernel in kernels:
    print(kernel.cache_key)
"""


def test_a_kernel_has_one_key_in_all_processes(tmp_path: Path) -> None:
    """Else what was compiled elsewhere isn't found, and the kernel is compiled once more."""
    forwards, backwards = (printed(ORDERS.replace("STEP", step), tmp_path) for step in ("1", "-1"))
    assert forwards == backwards
    assert len(set(forwards)) == 6


FOUND = """
import os
import sys
from pathlib import Path

import torch
import triton

from fused_steps import ON, fused_step

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.launching.rehearsing import aimed_at, compile_elsewhere

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    step = fused_step("ik,kj->ij", (torch.zeros(512, 256), torch.zeros(256, 384)))
    compiled = triton.compile

    def reported(source, **options):
        print("compiled", source.name)
        return compiled(source, **options)

    triton.compile = reported
    with aimed_at(90):
        launches = kernel_candidates(step, "float32", ON)[0].launches()
        compile_elsewhere(launches).result()
        # What inductor does, in the midst of a program.
        other = folder / "ptxas"
        other.write_text("#!/bin/sh\\ntest $1 = --version && echo release 99.1")
        other.chmod(0o755)
        os.environ |= {"TRITON_PTXAS_PATH": str(other), "TRITON_CACHE_DIR": str(folder / "inductor")}
        if REMOVED:
            for file in folder.rglob("*.json"):
                file.unlink()
            del os.environ["TRITON_PTXAS_PATH"]
        for each in launches:
            each.compile()
            print(each.is_loaded())
    with aimed_at(80):
        print(*[each.is_loaded() for each in launches])
"""


@pytest.mark.parametrize(("removed", "compiled"), [("0", 0), ("1", 1)])
def test_what_other_processes_have_compiled_is_found(removed: str, compiled: int, tmp_path: Path) -> None:
    """Whatever assembler and cache inductor has Triton take meanwhile; what is gone is compiled once more.

    What is loaded for one architecture isn't for another.
    """
    lines = printed(FOUND.replace("REMOVED", removed), tmp_path, str(tmp_path))
    assert [line.split()[0] for line in lines] == ["compiled"] * compiled + ["True", "False"]
