"""Kernels of each family become machine code for every generation of GPUs, none of which needs to be here."""

from pathlib import Path

import pytest
from compiling import FINISH, printed

from einops_fast.backends.capabilities import CLUSTERS, EARLY, GENERATIONS, HOPPER

pytest.importorskip("torch")

from einops_fast.backends.triton.attention.general.tilings import shared_memory
from einops_fast.backends.triton.rows import cluster_tilings

CAPABILITIES = ("80", "86", "89", "100", "120")
"""9.0 has tests with more kernels beside those of each family."""

LOWERED = "86", "89"
"""What ptxas makes of these is as for 8.0: to lower it to LLVM's language takes half of the time."""

PROGRAM = (
    FINISH
    + """
import os
import sys

import torch

import einops_fast
from einops_fast import ops
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch import operator as torch_operator
from einops_fast.backends.torch.attention import runs
from einops_fast.backends.torch.attention.layouts import extras_of
from einops_fast.backends.torch.memory import TorchMemory
# Before the children of this process would import them, each by itself.
from einops_fast.backends.torch.ops import activation, norm, softmax
import torch.fx.experimental.symbolic_shapes
from einops_fast.backends.triton.attention.general.tilings import shared_memory
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import copies_boxes, follow_early
from fused_steps import ON, fused_step

compile = KernelCall.compile_for
einops_fast.autotune("never")


def contractions():
    found = set()
    for equation, dtype, left, right in (
        ("ik,kj->ij", torch.float16, (128, 128), (128, 128)),
        ("ik,kj->ij", torch.float32, (128, 128), (128, 128)),
        ("ik,kj->ij", torch.int64, (128, 128), (128, 128)),
        ("bij,bj->bi", torch.float16, (64, 64, 64), (64, 64)),
    ):
        step = fused_step(equation, (torch.zeros(left, dtype=dtype), torch.zeros(right, dtype=dtype)))
        for way in kernel_candidates(step, str(dtype).removeprefix("torch."), ON):
            family = type(way), getattr(way, "kind", None), dtype == torch.int64
            if family not in found and not way.name.startswith("copy"):
                found.add(family)
                way.compile()


def rows():
    x = torch.zeros(64, 256, dtype=torch.bfloat16, requires_grad=True)
    found = ops.softmax(ops.dropout_bias_activation(ops.rms_norm(x), x[0], "gelu", 0.1))
    found.backward(found.detach())


def attention(gradients):
    for length, keys in ((1, 512), (64, 64)):
        batch = 2, 4, 2
        spec = AttentionSpec(batch, batch, batch, batch, length, keys, 32, 32, "bfloat16", 0.1)
        q, k, v = (torch.zeros(*batch, rows, 32, dtype=torch.bfloat16) for rows in (length, keys, keys))
        arrays = tuple(vars(AttentionInputs(q, k, v)).values())
        call, extras = runs.call_of(spec, arrays, lambda: spec), extras_of(arrays)
        out, lse = call.forward(q, k, v, extras)
        if gradients:
            call.backward(q, k, v, extras, out, lse, out, lse, (True, True, True, False, False))


def work(capability):
    on = divmod(int(capability), 10)
    pretend(int(capability))
    torch_operator.on_gpu = lambda tensor: True
    TorchMemory.processors = lambda self, device: (on, 132)
    TorchMemory.limits = lambda self, device: (shared_memory(on), 132)

    def reported(self, *arrays):
        compiled = compile(self, *arrays)
        fits = compiled.metadata.shared <= shared_memory(on)
        sys.stdout.write(f"{capability} {self.function.fn.__name__} {fits} {len(compiled.asm['cubin']) > 0}\\n")
        return compiled

    KernelCall.compile_for = reported
    finish(capability not in lowered)
    sys.stdout.write(f"{capability} asked {copies_boxes()} {follow_early()}\\n")
    contractions()
    rows()
    attention(gradients=capability == "80")


lowered = sys.argv[1].split(",")
children = []
for capability in sys.argv[2:]:
    child = os.fork()
    if not child:
        status = 1
        try:
            work(capability)
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""
)


FAMILIES = {"contract_kernel", "fma_kernel", "reduce_kernel", "norm_kernel", "norm_gradient_kernel", "softmax_kernel"}
FAMILIES |= {"softmax_gradient_kernel", "forward_kernel", "combine_kernel", "short_forward_kernel"}
FAMILIES |= {"activation_kernel", "activation_gradient_kernel", "column_sums_kernel"}
GRADIENTS = {"delta_kernel", "keys_kernel", "queries_kernel", "short_gradients_kernel"}


def test_kernels_become_machine_code(tmp_path: Path) -> None:
    """By one program, which starts Triton once."""
    lines = printed(PROGRAM, tmp_path, ",".join(LOWERED), *CAPABILITIES)
    for capability in CAPABILITIES:
        on = divmod(int(capability), 10)
        asked, *compiled = [line.split()[1:] for line in lines if line.startswith(f"{capability} ")]
        assert asked == ["asked", str(HOPPER.has(on)), str(EARLY.has(on))]
        assert {name for name, _, _ in compiled} == FAMILIES | (GRADIENTS if capability == "80" else set())
        # They fit, and there is code.
        assert all(each[1:] == ["True", str(capability not in LOWERED)] for each in compiled), compiled


@pytest.mark.parametrize("capability", GENERATIONS)
def test_clusters_need_their_memory(capability: tuple[int, int]) -> None:
    assert CLUSTERS.has(capability) == (shared_memory(capability) >= cluster_tilings._SHARED)
