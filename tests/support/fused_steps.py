"""Single steps that kernels of ours can do, as plans have them on a GPU, wherever the operands are."""

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.planning.cost import is_integer
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused
from einops_fast.planning.target import Numerics, Operand, Target

ON = gpu_ceilings("H200")
KERNEL_DTYPES = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def fused_step(equation: str, operands: Sequence[Any]) -> Fused:
    """The only step of a plan for these tensors."""
    dtype = str(operands[0].dtype).removeprefix("torch.")
    kernels = frozenset((*KERNEL_DTYPES, *COMPLEX, *INTEGERS))
    target = Target("torch", "cuda:0", ON, kernels=kernels, drops_expanded=False)
    described = [Operand(tuple(each.shape), tuple(each.stride()), dtype) for each in operands]
    subscripts = parse(equation, tuple(each.dim() for each in operands))
    numerics = Numerics(dtype, dtype, gemm=not is_integer(dtype))
    steps = make_plan(subscripts, described, target, numerics).steps
    fused = [step for step in steps if isinstance(step, Fused)]
    assert len(fused) == 1, steps
    return fused[0]
