"""FLOPs of our operators for torch's ``FlopCounterMode``: those of the products, as ``explain`` counts them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch

formulas: dict[str, Callable[..., int]] = {}
"""By the names of operators what counts a call from its arguments, for those that torch's counter doesn't know yet."""

_OPERATORS = ("einsum.ops", "ops.fused")
_OF_KERNELS = ("attention.ops",)  # which can't be imported without Triton


def register_flop_formulas() -> None:
    """Have torch's ``FlopCounterMode`` count our operators, forward and backward: call it before a counter is made.

    What is counted is what :func:`einops_fast.explain` and :func:`einops_fast.explain_attention` count: of attention,
    only the products with keys that a query sees. Operators are what graphs of ``torch.export`` and of torch.compile's
    backends call, and calls of ours on tensors without values. Calls on a CPU are counted without this, as the products
    by which torch does them. Calls that launch our kernels at once, on a GPU, go past torch's counter.

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

    for name in (*_OPERATORS, *(_OF_KERNELS if find_spec("triton") else ())):
        import_module(f"einops_fast.backends.torch.{name}")
    while formulas:
        name, formula = formulas.popitem()
        register_flop_formula(getattr(torch.ops.einops_fast, name), get_raw=True)(_of_arguments(formula))


def _of_arguments(formula: Callable[..., int]) -> Callable[..., int]:
    return lambda *arguments, out_val=None, **options: formula(*arguments, **options)
