"""All operators that torch has to know: for programs that were exported or traced elsewhere, and for what counts calls.

Each is registered by itself when something is traced that calls it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

_OPERATORS = ("einsum.ops", "ops.fused")
_OF_KERNELS = ("attention.ops",)  # which can't be imported without Triton


def register_operators() -> None:
    """Have torch know our operators: call it before a process loads a program that another one has exported.

    Programs that ``torch.export`` or ``torch.jit.trace`` made on a GPU call them by name, as
    ``torch.ops.einops_fast.softmax``.

    Example:
        >>> import torch
        >>> from einops_fast import nn
        >>> nn.register_operators()
        >>> torch.ops.einops_fast.einsum([torch.ones(4, 8), torch.ones(8, 2)], "ij,jk->ik", "auto", None, None).shape
        torch.Size([4, 2])
    """
    from einops_fast.backends.torch.operator import registered

    for name in (*_OPERATORS, *(_OF_KERNELS if find_spec("triton") else ())):
        import_module(f"einops_fast.backends.torch.{name}")
    registered()
