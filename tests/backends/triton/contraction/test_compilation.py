"""The kernels go through Triton's compiler, for GPUs that needn't be here: its interpreter forgives more."""

from pathlib import Path

import pytest
from compiling import FINISH, printed

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = (
    FINISH
    + """
import re
import sys
from dataclasses import replace
from subprocess import check_output
from tempfile import NamedTemporaryFile

from triton.tools.disasm import path_to_cuobjdump

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.ways import BoxCandidate, KernelCandidate
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.launching.compiling import untangled
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.steps import Fused
from einops_fast.planning.target import Numerics, Operand, Target

pretend(90)
on = gpu_ceilings("H200")

def spills(compiled):
    with NamedTemporaryFile() as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        # To disassemble takes longer than to compile; there's a stack where something is spilled.
        stack = re.search(rb"STACK:(\\d+)", check_output([path_to_cuobjdump(), "-res-usage", file.name]))[1]
        return check_output([path_to_cuobjdump(), "-sass", file.name]).count(b"STL") if int(stack) else 0

for case in sys.argv[1:]:
    case, _, finished = case.partition(" then ")
    dtype, equation, *texts = case.split()
    spilling = dtype == "float16"
    finish(spilling)
    shapes = [tuple(map(int, text.split("x"))) for text in texts]
    operands = [Operand(shape, contiguous_strides(shape), dtype) for shape in shapes]
    where = Target("torch", "cuda:0", on, kernels=frozenset({dtype}))
    numerics = Numerics(dtype, dtype, gemm=not dtype.startswith("int"))
    steps = make_plan(parse(equation, tuple(map(len, shapes))), operands, where, numerics).steps
    for step in steps:
        assert isinstance(step, Fused), step
        if finished:
            activation, *keeps = finished.split()
            bias = (0,) * (len(step.labels) - 1) + (1,)
            step = step.replace(any_order=False, epilogue=Epilogue(activation, bias, bool(keeps)))
        if dtype.startswith("complex"):
            step = step.replace(conjugated=(1,))
        ways = kernel_candidates(step, dtype, on)
        boxes = [way for way in ways if isinstance(way, BoxCandidate)]
        threads = [way for way in ways if way.kind is FmaTiling]
        kernels = [way for way in ways if isinstance(way, KernelCandidate) and way.kind is ContractionTiling]
        long = [way for way in kernels if dtype == "float32" and way.tiling.chunk]
        parts = [way for way in kernels if way.tiling.in_two]
        turned = [way for way in threads if isinstance(way, KernelCandidate) and way.tiling.one_by_one]
        for way in {ways[0], *boxes[:1], *boxes[-1:], *threads[:1], *turned[:1], *long[:1], *parts[:1]}:
            way.compile()
            print(dtype, equation, way.name)
            if way in kernels:
                ptx = way._kernel.compile_for(*way._kernel.declared()).asm["ptx"]
                assert untangled(ptx) == ptx
            if way in boxes and spilling:
                # Two results in pieces, with the next bias on its way, take some registers too many, once a tile.
                epilogue = way.tiling.epilogue
                some = 40 if epilogue is not None and epilogue.keeps and way.tiling.pieces > 1 else 0
                spilled = spills(way._kernel.compile_for(*way._kernel.declared()))
                assert spilled <= some, (way.name, spilled)
"""
)

CASES = [
    "bind,bjnd->bnij 8x512x4x64 8x512x4x64",  # contraction, plain
    "ik,kj->ij 4096x288 288x288",  # columns in two parts
    "bik,bjk->bij 512x100x128 512x50x128",  # rows and columns in three parts
    "bik,bjk->bij 64x100x512 64x50x512",  # the same, with totals of a long sum in float32
    "bda,dc->abc 64x96x288 96x288",  # contiguous along rows: one warp group's far from the other's
    "dbea,ec->abcd 64x64x64x64 64x64",  # another order of the result
    "acd,dbc->ab 288x64x288 288x288x64",  # on a copy, split
    "bik,bjk->ij 64x256x256 64x256x256",  # boxes, split
    "ik,jk->ij 4096x256 257x256",  # boxes of which threads write the result
    "bi,oij,bj->bo 4096x128 128x128x128 4096x128",  # a product on the way
    "bi,oij,bj->bo 4096x96 104x96x104 4096x104",  # the same, in boxes that reach beyond an axis
    "ai,ij,jk,kb->ab 4096x32 32x32 32x16 16x4096",  # a chain
    "nai,ij,nbj->abn 8x1024x24 24x17 8x1000x17",
    "adb,dc->acb 16x384x1000 384x65",  # columns in two parts, at odd places
    "bi,bj->bij 64x1024 64x1024",  # reductions
    "bij,bij->b 64x1024x1024 64x1024x1024",
    "bij,bji->ij 16x512x512 16x512x512",
]

FINISHED = [
    "abk,nk->abn 8x512x1024 4096x1024 then relu",  # applied by those who multiply
    "ak,nk->an 512x1024 4096x1024 then gelu keeps",  # beside the next tile, and in pieces; the bias is along rows
    "ak,nk->an 4096x1024 4096x1024 then gelu keeps",  # the bias along columns
    "ak,nk->an 4096x64 288x64 then silu",  # columns in two parts
]
"""Products with an epilogue."""


OF_DTYPES = {
    "float16": CASES[::2] + FINISHED,
    "float32": [CASES[at] for at in (3, 9, 11, 13, 15)],  # by threads, too
    "int8": CASES[3:4] + CASES[-2:],
    "complex64": CASES[-3:-1],  # one operand conjugated
}


def test_kernels_compile(tmp_path: Path) -> None:
    """Other GPUs than Hopper have a case of each kernel in ``test_capabilities.py``: the compiler is what differs."""
    lines = printed(PROGRAM, tmp_path, *(f"{dtype} {case}" for dtype, cases in OF_DTYPES.items() for case in cases))
    for dtype, cases in OF_DTYPES.items():
        of_dtype = [line for line in lines if line.startswith(f"{dtype} ")]
        assert any("boxes" in line for line in of_dtype) == (dtype == "float16")
        assert any("by threads" in line for line in of_dtype) == (dtype == "float32")
        assert any(" turned" in line for line in of_dtype) == (dtype == "float32")
        assert len(of_dtype) >= len(cases)
