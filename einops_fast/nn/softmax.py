"""`Softmax` and `LogSoftmax`, as torch has them, with masks."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.errors import ShapeError
from einops_fast.ops.axes import check_axis
from einops_fast.ops.softmax import check_dtype, check_options

__all__ = ["LogSoftmax", "Softmax"]


class _WithOptions(nn.Module):
    def __init__(
        self,
        dim: Any = None,
        *,
        pattern: str | None = None,
        causal: bool | str = False,
        temperature: float = 1.0,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim)
        check_axis(dim, pattern)
        check_options(causal, temperature)
        check_dtype(dtype)
        self.options = {"pattern": pattern, "causal": causal, "temperature": temperature, "dtype": dtype}


def _dim(module: nn.Module, input: Tensor) -> Any:
    """The axis that a module was given; without one, torch's module takes the last axis of two at most."""
    dim, options = cast(Any, module.dim), cast(dict[str, Any], module.options)
    if dim is None and options.get("pattern") is None and input.dim() > 2:
        raise ShapeError(
            f"{type(module).__name__} has no dim, which an input of {input.dim()} axes needs: torch's module would "
            f"take axis {0 if input.dim() == 3 else 1}, the function softmax the last one"
        )
    return dim


class Softmax(_WithOptions, nn.Softmax):
    """:class:`torch.nn.Softmax` by :func:`einops_fast.ops.softmax`.

    Args:
        dim: the axis, as a number or as a name in ``pattern``; if ``None``, the last one. Inputs of more than two axes
            need it, or a ``pattern``: without, torch's module would take another axis.
        pattern, causal, temperature, dtype: as for the function, for every call.

    Raises:
        SubscriptsError, ShapeError: ``dim`` or ``pattern`` is wrong, as far as can be told without an input.
        EinsumError: another option is wrong.
        ShapeError: from the call, where ``dim`` is missing.

    Example:
        >>> import torch
        >>> from einops_fast.nn import Softmax
        >>> Softmax(dim=-1, causal=True)(torch.zeros(2, 2)).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.softmax(input, _dim(self, input), mask=mask, **self.options)
        return found


class LogSoftmax(_WithOptions, nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax` by :func:`einops_fast.ops.log_softmax`; the arguments are those of :class:`Softmax`.

    Example:
        >>> import torch
        >>> from einops_fast.nn import LogSoftmax
        >>> LogSoftmax(dim=-1)(torch.zeros(1, 1)).tolist()
        [[0.0]]
    """

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logarithm of the softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.log_softmax(input, _dim(self, input), mask=mask, **self.options)
        return found
