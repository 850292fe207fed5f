"""Few compiled kernels serve many lengths: what 40 lengths of one call are compiled for is counted, by kernel."""

from ctypes.util import find_library
from pathlib import Path

import pytest
from compiling import printed

pytest.importorskip("torch")
import triton

MOST = 8
"""Kernels of one kind for a call and its gradients of any of the lengths."""

PROGRAM = """
from collections import defaultdict

import torch

from einops_fast.backends.torch.ops import activation, cross_entropy, norm, softmax
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.launching.rehearsing import aimed_at
from fused_steps import ON, fused_step
from rehearsals import as_on_a_gpu, attention_problem, operator_problem, tensor

as_on_a_gpu()
w = tensor(1024)

def softmaxed(*shape, dim=-1, queries=None):
    return softmax.softmax(tensor(*shape), None, dim % len(shape), False, queries, 0, 1.0, None)

def loss(rows, columns):
    target = tensor(rows, dtype=torch.int64)
    return cross_entropy.cross_entropy(tensor(rows, columns), target, None, 1, -100, 0.0, 0.0, "mean")

ROWS = {
    "layer_norm, rows": lambda l: norm.norm(tensor(l, 1024), w, w, 1, 1, 1e-5, True),
    "layer_norm, columns": lambda l: norm.norm(tensor(8, 512, l), tensor(l), tensor(l), 2, 1, 1e-5, True),
    "rms_norm, rows": lambda l: norm.norm(tensor(8, l, 1024), w, None, 2, 1, 1e-5, False),
    "sum and norm, rows": lambda l: norm.dropout_add_norm(
        tensor(8, l, 1024), tensor(8, l, 1024), w, w, 2, 0.1, 1e-5, True
    ),
    "softmax, rows": lambda l: softmaxed(l, 1024),
    "softmax, columns": lambda l: softmaxed(8, 512, l),
    "softmax, causal scores": lambda l: softmaxed(4, 8, l, l, queries=2),
    "softmax, another axis": lambda l: softmaxed(8, l, 512, dim=1),
    "bias_gelu, rows": lambda l: activation.bias_activation(tensor(8, l, 1024), w, "gelu", 0.0),
    "bias_gelu, columns": lambda l: activation.bias_activation(tensor(8, 512, l), tensor(l), "gelu", 0.1),
    "cross_entropy, rows": lambda l: loss(8 * l, 32000),
    "cross_entropy, columns": lambda l: loss(1024, l),
}
ATTENTION = {
    "attention": lambda l: attention_problem(4, l, 8, 64),
    "attention, causal": lambda l: attention_problem(4, l, 8, 64, causal=True),
    "attention, dropped": lambda l: attention_problem(4, l, 8, 64, causal=True, dropout_p=0.1),
    "attention, other keys": lambda l: attention_problem(
        shapes=[(4, 512, 8, 128), (4, l, 8, 128), (4, l, 8, 128)], alignment="bottom_right", causal=True
    ),
}
EQUATIONS = {
    "bihd,bjhd->bhij": lambda l: [(4, l, 8, 64), (4, l, 8, 64)],
    "bnhd,bnhe->bhde": lambda l: [(4, l, 8, 64), (4, l, 8, 64)],
    "abcd,dbe->aec": lambda l: [(l // 8, 64, 48, 32), (32, 64, 40)],
    "bnd,bn->bd": lambda l: [(16, l, 512), (16, l)],
    "bij,bjk->bik": lambda l: [(8, l, l), (8, l, l)],
    "bij,bj->bij": lambda l: [(8, 900, l), (8, l)],
}

def launches(name, l):
    if name in EQUATIONS:
        operands = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in EQUATIONS[name](l)]
        return generic_kernel(fused_step(name, operands), "bfloat16", ON).launches()
    problem = ATTENTION[name](l) if name in ATTENTION else operator_problem(ROWS[name](l))
    return problem.rehearsed(problem.named("triton") if name in ATTENTION else problem.any_size)

with aimed_at(90):
    for name in (*ROWS, *ATTENTION, *EQUATIONS):
        # Of some equations, axes have an eighth of the length.
        for step in (10,) if name in EQUATIONS else (10, 11):
            sources = defaultdict(set)
            for length in range(300, 700, step):
                for each in launches(name, length):
                    function, *source = each.source
                    sources[function.__name__].add(tuple(source))
            for kernel, found in sources.items():
                print(name, step, kernel, len(found), sep=";")
"""


@pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and find_library("cuda") is None, reason="needs the driver's library"
)
def test_few_kernels_serve_many_lengths(tmp_path: Path) -> None:
    """Whether there are odd ones among them or not."""
    counted = [line.split(";") for line in printed(PROGRAM, tmp_path)]
    assert len({(name, step) for name, step, _, _ in counted}) == 22 + 16
    assert not [line for line in counted if int(line[-1]) > MOST]
