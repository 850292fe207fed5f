"""What kernels need of torch, where that was built for GPUs and there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
