"""`softmax` and `log_softmax`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from einops_fast.annotations import ArrayT, Causal
from einops_fast.attention.torch_state import plain_mask
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.errors import EinsumError, OperandError, ShapeError
from einops_fast.ops.axes import axis_of, length
from einops_fast.ops.checks import check_mask, check_values
from einops_fast.ops.dispatch import computed, function_for
from einops_fast.runtime.tracing import is_tracing
from einops_fast.vocabulary import respelled


def softmax(
    input: ArrayT,
    dim: int | str | None = None,
    *,
    pattern: str | None = None,
    mask: Any = None,
    causal: Causal = False,
    temperature: float = 1.0,
    dtype: Any = None,
    **unknown: NoReturn,
) -> ArrayT:
    """``exp(s) / sum(exp(s))`` along one axis, of ``s = input / temperature + mask``.

    On a GPU one kernel reads ``input`` with whatever strides it has, and the mask as it is broadcast. Sums are kept in
    float32 at least. Rows that fit are read once, longer ones twice, with the maximum and the sum kept up to date as
    in Milakov and Gimelshein (2018), https://arxiv.org/abs/1805.02867.

    Args:
        input: any shape; floating-point.
        dim: the axis, as a number or as a name in ``pattern``; the last one if ``None``.
        pattern: names of all axes, in letters or words: ``'b i j'``.
        mask: broadcastable to ``input``: boolean, True where an element takes part, or numbers that are added, of which
            ``-inf`` hides. Added numbers have a gradient. Or torch's ``CausalBias``.
        causal: elements after the row's own position take no part. Positions are those along the last one of the other
            axes: ``True`` or ``'top_left'`` where its first faces the first element, ``'bottom_right'`` where the last
            faces the last.
        temperature: what the input is divided by; a positive number.
        dtype: of the result, a floating-point type such as ``torch.float32``; that of ``input`` if ``None``, under
            autocast float32.

    Returns:
        An array of the same shape, which lies in memory in the order of ``input``. A row of which a mask hides all is
        zeros, without gradients. Without any mask, NaN and infinities give what they give in torch.

    Raises:
        SubscriptsError, ShapeError: there is no such axis, or the mask doesn't fit.
        OperandError: the mask has integers, or isn't where the input is; causal of a jagged tensor.
        EinsumError: another option is wrong.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> ops.softmax(np.zeros((2, 3, 4)), 'i', pattern='b i j')[0, :, 0].round(2).tolist()
        [0.33, 0.33, 0.33]
        >>> ops.softmax(np.zeros((2, 2)), causal=True).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    if unknown:
        return respelled(softmax, unknown, locals())
    mask = mask if mask is None else plain_mask(mask, input)
    return computed(_read, (input, mask), False, dim, pattern, causal, temperature, dtype)


def log_softmax(
    input: ArrayT,
    dim: int | str | None = None,
    *,
    pattern: str | None = None,
    mask: Any = None,
    causal: Causal = False,
    temperature: float = 1.0,
    dtype: Any = None,
    **unknown: NoReturn,
) -> ArrayT:
    """The logarithm of :func:`softmax`, ``s - log(sum(exp(s)))``, with the same arguments and errors.

    What a mask hides is ``-inf``, without gradients.

    Example:
        >>> import numpy as np
        >>> from einops_fast import ops
        >>> ops.log_softmax(np.zeros((1, 4))).round(3).tolist()
        [[-1.386, -1.386, -1.386, -1.386]]
    """
    if unknown:
        return respelled(log_softmax, unknown, locals())
    mask = mask if mask is None else plain_mask(mask, input)
    return computed(_read, (input, mask), True, dim, pattern, causal, temperature, dtype)


def _read(
    array: Any, mask: Any, log: bool, dim: Any, pattern: str | None, causal: bool | str, temperature: float, dtype: Any
) -> Callable[..., Any]:
    """Check the arguments of :func:`softmax` or :func:`log_softmax`, and return what computes such arrays."""
    function = function_for("softmax", array, "log_softmax" if log else "softmax", mask=mask)
    shape = array.shape
    rank = len(shape)
    wanted = None if dtype is None else check_dtype(dtype)
    check_options(causal, temperature)
    check_mask("mask", mask, "input", shape)
    if not rank and dim in (None, 0, -1) and not causal:
        run = function(array.reshape((1,)), mask, 0, log, None, 0, 1.0 / temperature, wanted)
        return lambda array, mask: run(array.reshape((1,)), mask)[0]
    axis = axis_of(dim, pattern, rank)
    queries, shift = None, 0
    if causal:
        if getattr(array, "is_nested", False):
            raise OperandError("causal needs rows of one length, and the input is a jagged tensor: give a mask")
        if rank < 2:
            raise ShapeError(f"causal needs an axis of positions beside the one that is summed over, not shape {shape}")
        queries = rank - 1 if axis < rank - 1 else rank - 2
        if causal == "bottom_right":
            shift = length(array, axis) - length(array, queries)
    return function(array, mask, axis, log, queries, shift, 1.0 / temperature, wanted)


def check_dtype(dtype: Any) -> str | None:
    """The name of a floating-point type, or ``None`` for ``None``; EinsumError if it is none."""
    wanted = None if dtype is None else "float64" if dtype is float else dtype_name(dtype)
    if wanted is not None and wanted not in FLOATS:
        raise EinsumError(f"dtype is a floating-point type, one of {', '.join(FLOATS)}, not {dtype!r}")
    return wanted


def check_options(causal: bool | str, temperature: float) -> None:
    """Raise EinsumError if an option is wrong."""
    if not is_tracing() and hasattr(temperature, "ndim") and not isinstance(temperature, np.generic):
        raise EinsumError("temperature is a number, not an array: divide the input by that")
    check_values(causal=causal, temperature=temperature)
