"""Plans for a GPU that needn't be here."""

from typing import Any

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import Plan, make_plan
from einops_fast.planning.target import Numerics, Operand, Target

TARGET = Target("pure", "cuda:0", gpu_ceilings("H200"), kernels=frozenset({"float16", "float32"}))


def plan(equation: str, dtype: str = "float16", optimize: Any = "auto", **sizes: int) -> Plan:
    """The plan for operands in C order."""
    terms = equation.partition("->")[0].split(",")
    shapes = [tuple(sizes[label] for label in term) for term in terms]
    operands = [Operand(shape, contiguous_strides(shape), dtype) for shape in shapes]
    return make_plan(parse(equation, tuple(map(len, terms))), operands, TARGET, Numerics(dtype, dtype), optimize)
