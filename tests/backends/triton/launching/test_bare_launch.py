"""What a GPU's driver is called with, past Triton's launcher and by it, is the same; a driver without a GPU tells."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from compiling import FINISH
from python_process import SUPPORT, run_python

pytest.importorskip("triton")

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
HEADER = Path(sysconfig.get_path("include"), "Python.h")

# Triton decides when its functions are defined whether they're interpreted: hence a process of its own.
PROGRAM = (
    FINISH
    + """
import ctypes
import os
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.runtime import driver

finish(False)
driver.set_active(SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    launcher_cls=CudaLauncher,
    utils=CudaUtils(),
))

from fused_steps import ON, fused_step

from einops_fast import ops
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.torch.attention.layouts import extras_of
from einops_fast.backends.triton.attention import plan as attention_plan
from einops_fast.backends.torch import operator as torch_operator
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.launching import bare_launch, kernel_call
from einops_fast.backends.triton.contraction.candidates import kernel_candidates

cuda = ctypes.CDLL("libcuda.so.1")
SIZES = {"i1": 4, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8, "nvTmaDesc": 128}


def flat(kinds):
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from flat(kind)
        elif kind.startswith("tensordesc"):
            axes = kind[kind.index("[") : kind.index("]")].count(",") + 1
            yield from ["nvTmaDesc", *["i32"] * axes, *["i64"] * axes]
        elif kind != "constexpr":
            yield kind


def watched(compiled):
    found = launch_of(compiled)
    # Two addresses of memory that Triton may give a kernel come last.
    sizes = [8 if kind.startswith("*") else SIZES[kind] for kind in [*flat(compiled.src.signature.values()), "*", "*"]]
    given = (ctypes.c_size_t * len(sizes))(*sizes)

    def queue(*arguments):
        before = cuda.seen()
        cuda.expect(len(sizes), given)
        found.queue(*arguments)
        assert cuda.seen() == before + 1
        into = ctypes.create_string_buffer(1 << 15)
        print(side, compiled.name, found.bare, into.raw[: cuda.copy_launch(into)].hex())

    return found._replace(queue=queue)


# The child compiles what the parent then finds on disk.
child = os.fork()
side = "by" if child else "past"
if child:
    assert os.waitpid(child, 0)[1] == 0
    bare_launch._bare = lambda compiled: None
launch_of, kernel_call.launch_of = bare_launch.launch_of, watched


class Numbered(TorchMemory):
    # Addresses that are the same in every run, which torch's needn't be.

    def __init__(self):
        super().__init__()
        self.kept = []

    def pointer(self, array):
        places = [each.data_ptr() for each in self.kept]
        if array.data_ptr() not in places:
            places.append(array.data_ptr())
            self.kept.append(array)
        return 1 + places.index(array.data_ptr()) << 40

    def stream(self, device):
        return 77


memory = torch_operator.MEMORY = torch_attention_runs.MEMORY = Numbered()
torch_operator.on_gpu = lambda tensor: True
TorchMemory.processors = lambda self, device: ((9, 0), 132)
TorchMemory.limits = lambda self, device: (232448, 132)


def half(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


for equation, *operands in (
    ("ik,kj->ij", half(512, 256), half(256, 384)),
    ("ij,ij->i", half(300, 500), half(300, 500)),
    ("ik,kj->ij", torch.zeros(512, 256), torch.zeros(256, 384)),
):
    dtype = str(operands[0].dtype).removeprefix("torch.")
    for way in {way.kind: way for way in kernel_candidates(fused_step(equation, operands), dtype, ON)}.values():
        run = way.run(memory, 0)
        run(*operands)
        run(*operands)
q, k, of_bias = half(2, 3, 512, 64), half(2, 3, 512, 64), (2, 3, 512, 512)
for on_hopper, bias, sinks in ((True, None, None), (False, half(*of_bias), torch.zeros(1, 3))):
    attention_plan.suits_hopper = lambda *of: on_hopper
    spec = AttentionSpec(
        (2, 3), (2, 3), (2, 3), (2, 3), 512, 512, 64, 64, "bfloat16", 0.1, causal=True,
        bias=of_bias if bias is not None else None, sinks=sinks is not None,
    )
    arrays = tuple(vars(AttentionInputs(q, k, k, bias, sinks=sinks)).values())
    torch_attention_runs.call_of(spec, arrays, lambda: spec).forward(*arrays[:3], extras_of(arrays))
ops.softmax(torch.zeros(70, 65536))
"""
)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch with CUDA would take the driver for a GPU's")
@pytest.mark.skipif(not (COMPILER and HEADER.exists()), reason="needs a C compiler, and Python's headers")
def test_kernels_are_queued_as_by_triton(tmp_path: Path) -> None:
    import triton

    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    made = [str(COMPILER), "-shared", "-fPIC", "-I", str(headers), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*made, str(SUPPORT / "fake_cuda.c")], check=True)
    variables = {"TRITON_INTERPRET": 0, "TRITON_DISABLE_LINE_INFO": 1, "EINOPS_FAST_AUTOTUNE": "never"}
    variables |= dict.fromkeys(("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH"), tmp_path)
    variables["TRITON_CACHE_DIR"] = tmp_path / "cache"
    lines = [line.split() for line in run_python("-c", PROGRAM, path=[SUPPORT], **variables).stdout.splitlines()]
    past, by = ([line for way, *line in lines if way == wanted] for wanted in ("past", "by"))
    # One of each sort of launch and more: of boxes, of addresses, of tuples of these, of clusters.
    kernels = {"box", "contract", "fma", "reduce", "hopper", "forward", "softmax_cluster"}
    assert {name.removesuffix("_kernel") for name, *_ in past} == kernels
    assert {bare for _, bare, _ in past} == {"True"}
    assert {bare for _, bare, _ in by} == {"False"}
    assert [(name, launch) for name, _, launch in past] == [(name, launch) for name, _, launch in by]
