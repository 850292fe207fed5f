"""A tile a second time, as it was read, so that nobody keeps what was made of it the first time.

Numbers of 16 bits are computed with in 32, in twice as many registers. If they are wanted again later, the compiler
rather keeps those than to convert them once more, though registers are what there is too little of.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["again"]


@gluon.jit
def again(value):
    """The same, but for all that the compiler knows it is something else."""
    if value.dtype == gl.uint32:
        value = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], value.dtype, is_pure=False, pack=1)
    elif value.dtype.primitive_bitwidth == 16:
        value = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], value.dtype, is_pure=False, pack=2)
    return value
