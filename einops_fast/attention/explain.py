"""`explain_attention`: what a call would do, and what it would cost, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from einops_fast.attention.arguments import read_call
from einops_fast.attention.attend import attention, own_call, plan_of
from einops_fast.attention.options import Options
from einops_fast.attention.packed import of_nested_tensors
from einops_fast.errors import OperandError
from einops_fast.vocabulary import check_names

if TYPE_CHECKING:
    from einops_fast.attention.explanation import AttentionExplanation

__all__ = ["explain_attention"]


def explain_attention(*operands: Any, **options: Any) -> AttentionExplanation:
    """Return what :func:`einops_fast.attention` would do with these arguments, without doing or measuring it.

    Args:
        operands, options: as for :func:`einops_fast.attention`.

    Raises:
        EinsumError: as :func:`einops_fast.attention` would.

    Example:
        >>> import numpy as np
        >>> from einops_fast import explain_attention
        >>> q = k = v = np.ones((2, 5, 8, 16), 'float32')
        >>> e = explain_attention('b i h d, b j h d, b j h e -> b i h e', q, k, v)
        >>> e.implementation, e.flops
        ('math', 25600)
    """
    check_names(attention, options)
    asked = Options._make([options.get(name, usual) for name, usual in Options._field_defaults.items()])
    request, arrays = read_call(operands, options.get("layout"), options.get("sequence"), asked, options)
    text = request.pattern
    if getattr(arrays["q"], "is_nested", False) is True:
        _, request, arrays = of_nested_tensors().packed_call(request, arrays)
    backend, arrays = own_call(arrays)
    if backend.attend is not None:
        raise OperandError(f"explain_attention explains what one device does: give parts, not a {backend.name} of all")
    plan = plan_of(request, arrays, backend.name)
    # Few programs explain anything: none should wait for this when it imports the package.
    from einops_fast.attention.explanation import explanation_of_attention

    return explanation_of_attention(text, plan, (*arrays.values(),))
