"""Einsum that is added to an array: `out = beta * out + result`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.arguments import own_arrays, read_call
from einops_fast.backends import get_backend
from einops_fast.einsum import fast_einsum, with_sizes
from einops_fast.errors import OperandError
from einops_fast.runtime.tracing import is_tracing


def accumulated(beta: Any, operands: Sequence[Any], out: Any, sizes: Mapping[str, Any], options: dict[str, Any]) -> Any:
    """Return ``out`` with ``beta`` times itself and the result of a call of these options in it."""
    if out is None:
        if operands and isinstance(operands[0], str) and re.search(r"\bbeta\b", operands[0]):  # the size of an axis
            return with_sizes(operands, {**sizes, "beta": beta}, None, **options)
        raise OperandError(f"beta={beta!r} is what out is multiplied by before the result is added: give out=, too")
    arrays = read_call(operands).arrays
    backend = get_backend("torch") if is_tracing() else own_arrays(arrays, out)[0]
    if options["dtype"] is None:
        options["dtype"] = backend.dtype_with(own_arrays(arrays)[1], out)
    run: Any = fast_einsum
    result = run(*operands, **options, **sizes)
    backend.check_out(result, out, options["casting"])
    if len(arrays) == 1:  # it may be a view of out
        result = result.clone() if hasattr(result, "clone") else result.copy()
    try:
        out *= beta
        out += result
    except (TypeError, RuntimeError) as error:
        raise OperandError(
            f"out of dtype {out.dtype} can't hold beta={beta!r} times itself and {result.dtype}: {error}"
        ) from error
    return out
