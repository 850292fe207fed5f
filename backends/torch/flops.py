"""FLOPs of our operators for torch's ``FlopCounterMode``: those of the products, as ``explain`` counts them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

__all__ = ["count_flops", "register_flop_formulas"]

_waiting: dict[str, Callable[..., int]] = {}

_WITH_OPERATORS = ("einsum.ops", "ops.fused", "attention.implementations.fa4_ops")
_OF_KERNELS = ("attention.ops",)  # which can't be imported without Triton


def count_flops(name: str, formula: Callable[..., int]) -> None:
    """Keep a formula for the operator ``einops_fast::name``, which gets the arguments of a call."""
    _waiting[name] = formula


def register_flop_formulas() -> None:
    """Have torch's ``FlopCounterMode`` count our operators, forward and backward: call it before a counter is made.

    What is counted is what :func:`einops_fast.explain` and :func:`einops_fast.explain_attention` count: of attention,
    only the products with keys that a query sees. Operators are what torch.compile, ``make_fx`` and tensors without
    values see of us. Calls on a CPU are counted without this, as the products by which torch does them. Calls that
    launch our kernels at once, on a GPU, go past torch's counter.

    Example:
        >>> import torch
        >>> from torch.utils.flop_counter import FlopCounterMode
        >>> from einops_fast import nn
        >>> nn.register_flop_formulas()
        >>> a, b = torch.ones(4, 8), torch.ones(8, 2)
        >>> with FlopCounterMode(display=False) as counter:
        ...     product = torch.ops.einops_fast.einsum([a, b], "ij,jk->ik", "auto", None, None)
        >>> counter.get_total_flops()
        128
    """
    from torch.utils.flop_counter import register_flop_formula

    for name in (*_WITH_OPERATORS, *(_OF_KERNELS if find_spec("triton") else ())):
        import_module(f"einops_fast.backends.torch.{name}")
    while _waiting:
        name, formula = _waiting.popitem()
        register_flop_formula(getattr(torch.ops.einops_fast, name), get_raw=True)(_of_arguments(formula))


def _of_arguments(formula: Callable[..., int]) -> Callable[..., int]:
    def flops(*arguments: Any, out_val: Any = None, **options: Any) -> int:
        return formula(*arguments, **options)

    return flops
