"""Kernels are compiled for a GPU in a process that has none."""

from __future__ import annotations

from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from compiling import FINISH, printed

pytest.importorskip("torch")
triton: Any = pytest.importorskip("triton")

PROGRAM = (
    FINISH
    + """
import pickle

import torch
import triton

from fused_steps import ON, fused_step

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.launching.rehearsing import aimed_at
from einops_fast.backends.triton.launching.rehearsing import _compile

finish(False)
compile = triton.compile

def reported(source, target, options):
    print(source.name, target.arch)
    return compile(source, target=target, options=options)

triton.compile = reported
step = fused_step("ik,kj->ij", (torch.zeros(512, 256), torch.zeros(256, 384)))
with aimed_at(80):
    (kernel,) = kernel_candidates(step, "float32", ON)[0].launches()
    function, *source = kernel.call.source_for(*kernel.arrays)
    source = pickle.loads(pickle.dumps(source))
for arch in (80, 80, 90):
    _compile(arch, function.__module__, function.__name__, *source)
"""
)


@pytest.mark.skipif(
    triton.__version__.startswith("3.6.") and find_library("cuda") is None,
    reason="Triton 3.6 links what launches a kernel against the driver",
)
def test_a_process_without_a_gpu_compiles_for_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each architecture."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "support"))
    kernels = [line.split() for line in printed(PROGRAM, tmp_path)]
    assert [arch for _, arch in kernels] == ["80", "90"]
    assert len({name for name, _ in kernels}) == 1
