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
import torch
import triton

from fused_steps import ON, fused_step

from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.deciding import compile_for
from einops_fast.backends.triton.launching.elsewhere import aimed_at

finish(False)
compile = triton.compile

def reported(source, target, options):
    print(source.name, target.arch)
    return compile(source, target=target, options=options)

triton.compile = reported
step = fused_step("ik,kj->ij", (torch.zeros(512, 256), torch.zeros(256, 384)))
with aimed_at(80):
    name = kernel_candidates(step, "float32", ON)[0].name
for arch in (80, 80, 90):
    compile_for(arch, name, step, "float32", ON, "ieee", True)
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
