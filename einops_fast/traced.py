"""Calls while torch.compile traces the caller: torch's own einsum, or on CUDA our operator, in plain letters.

The compiler lowers torch's einsum itself and fuses it with what is around it. Everything here either can be
traced or is marked: such a function is called while tracing, with constants, and what it returns is a constant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from einops_fast.arguments import Call, hashable, read_call

__all__ = ["call_traced", "einsum_traced"]

#: Types of devices on which our operator is called.
_WITH_OPERATOR = ("cuda",)


def call_traced(operands: Sequence[Any], out: Any, dtype: Any, order: str, casting: str, optimize: Any) -> Any:
    """:func:`einops_fast.fast_einsum` of torch tensors, or of NumPy arrays, which torch.compile turns into tensors."""
    call = read_call(operands)
    arrays = call.arrays
    letters = _letters(call.spelled, tuple([len(array.shape) for array in arrays]))
    if isinstance(arrays[0], sys.modules["numpy"].ndarray):
        return _call_numpy(letters, arrays, out, dtype, order, casting)
    if dtype is not None:
        arrays = [array.to(dtype) for array in arrays]
    result = einsum_traced(letters, arrays, optimize)
    return _ordered(result, arrays, order) if out is None else out.copy_(result)


def einsum_traced(letters: str, arrays: Sequence[Any], optimize: Any) -> Any:
    """The contraction of these tensors."""
    torch = sys.modules["torch"]
    first = arrays[0]
    if first.device.type in _WITH_OPERATOR and not callable(optimize):
        plain = torch.Tensor, torch.nn.Parameter
        floats = torch.float16, torch.bfloat16, torch.float32, torch.float64
        alike = all(array.dtype == first.dtype and array.device == first.device for array in arrays)
        if alike and first.dtype in floats and all(type(array) in plain for array in arrays):
            found = _for_operator(letters, first.device.type, optimize)
            if found is not None:
                equation, order, text = found
                return torch.ops.einops_fast.einsum(list(arrays), equation, text).permute(order)
    return torch.einsum(letters, arrays)


def _call_numpy(letters: str, arrays: Sequence[Any], out: Any, dtype: Any, order: str, casting: str) -> Any:
    torch, numpy = sys.modules["torch"], sys.modules["numpy"]
    result = numpy.einsum(letters, *arrays, dtype=dtype, casting=casting)
    if out is not None:
        out[...] = result
        return out
    if order == "K":
        return result
    return _ordered(torch.from_numpy(result), [torch.from_numpy(array) for array in arrays], order).numpy()


def _ordered(result: Any, arrays: Sequence[Any], order: str) -> Any:
    if order == "A":
        order = "F" if all(_reversed(array).is_contiguous() for array in arrays) else "C"
    if order == "F":
        return _reversed(_reversed(result).contiguous())
    return result.contiguous() if order == "C" else result


def _reversed(array: Any) -> Any:
    return array.permute(tuple(range(array.dim()))[::-1])


def _letters(spelled: Any, ranks: tuple[int, ...]) -> str:
    return Call((), spelled).subscripts(ranks).equation


def _for_operator(letters: str, device: str, optimize: Any) -> tuple[str, tuple[int, ...], str] | None:
    """What to call our operator with, and the axis order for its result; ``None`` where it isn't to be called.

    One operand is left to the compiler. Autocast and functorch don't know the operator, nor does who loads an export.
    """
    torch = sys.modules["torch"]
    terms = letters.partition("->")[0].split(",")
    if len(terms) == 1 or any(len(set(term)) < len(term) for term in terms):
        return None
    if (
        torch.compiler.is_exporting()
        or torch.is_autocast_enabled(device)
        or torch._C._are_functorch_transforms_active()
    ):
        return None
    # Imported when it is needed: importing it registers the operator.
    equation, order = import_module("einops_fast.backends.torch_ops").in_product_order(letters)
    return equation, order, str(hashable(optimize))


_letters._dynamo_marked_constant = True  # type: ignore[attr-defined]
_for_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]
