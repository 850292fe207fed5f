"""What kernels need of torch, where that was built for GPUs and there is none."""

import pytest
from python_process import run_python

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = """
import torch

def ask(*_):
    raise RuntimeError("Found no NVIDIA driver on your system.")

torch.version.cuda = "13.0"
torch._C._cuda_getDevice = torch._C._cuda_getCurrentRawStream = torch.cuda.is_current_stream_capturing = ask

from einops_fast.backends.torch.memory import TorchMemory

memory = TorchMemory()
assert (memory.current_device(), memory.stream(0), memory.capturing()) == (0, 0, False)
"""


def test_the_interpreter_asks_no_gpu() -> None:
    """Whether Triton interprets is read when modules are imported: hence a new process."""
    run_python("-c", PROGRAM, TRITON_INTERPRET=1)
