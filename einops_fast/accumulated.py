"""Einsum that is added to an array: `out = beta * out + result`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.arguments import own_arrays, read_call
from einops_fast.einsum import fast_einsum, plan_call, with_an_axis_each, with_sizes
from einops_fast.errors import OperandError
from einops_fast.limited import einsum_within
from einops_fast.planning.compositions import composition
from einops_fast.runtime.limits import limit_now
from einops_fast.runtime.settings import settings
from einops_fast.runtime.traced import traced_backend
from einops_fast.runtime.tracing import is_tracing
from einops_fast.written import split_as_result, write_in_place


def accumulated(beta: Any, operands: Sequence[Any], out: Any, sizes: Mapping[str, Any], options: dict[str, Any]) -> Any:
    """Return ``out`` with ``beta`` times itself and the result of a call of these options in it."""
    if out is None:
        if operands and isinstance(operands[0], str) and re.search(r"\bbeta\b", operands[0]):  # the size of an axis
            return with_sizes(operands, {**sizes, "beta": beta}, None, **options)
        raise OperandError(f"beta={beta!r} is what out is multiplied by before the result is added: give out=, too")
    if not is_tracing() and (sizes or composition(operands[0]) is not None):
        found, parts = with_an_axis_each(read_call(operands), sizes)
        target = None if found is None else split_as_result(found, parts, out)
        if found is not None and target is not None:
            accumulated(beta, (found.letters, *parts), target, {}, options)
            return out
    if not (is_tracing() or sizes or options["memory_limit"] is not None or limit_now()):
        asked = [options[name] for name in ("dtype", "order", "casting", "optimize")]
        try:
            with settings(options["autotune"], options["precision"]):
                if write_in_place(operands, out, beta, asked, plan_call):
                    return out
        except (TypeError, RuntimeError) as error:
            raise _no_sum(beta, out, out.dtype, error) from error
    arrays = read_call(operands).arrays
    backend = traced_backend("torch") if is_tracing() else own_arrays(arrays, out)[0]
    if options["dtype"] is None:
        own = arrays if is_tracing() else own_arrays(arrays)[1]
        options["dtype"] = backend.dtype_with(own, out)
    limit = options.pop("memory_limit")
    run: Any = fast_einsum
    if limit is not None or (not is_tracing() and limit_now()):
        result = einsum_within(limit, operands, sizes, out, options, beta)
    else:
        result = run(*operands, **options, **sizes)
    if result is out:
        return out
    backend.check_out(result, out, options["casting"])
    if len(arrays) == 1:  # it may be a view of out
        result = result.clone() if hasattr(result, "clone") else result.copy()
    try:
        out *= beta
        out += result
    except (TypeError, RuntimeError) as error:
        raise _no_sum(beta, out, result.dtype, error) from error
    return out


def _no_sum(beta: Any, out: Any, dtype: Any, error: Exception) -> OperandError:
    return OperandError(f"out of dtype {out.dtype} can't hold beta={beta!r} times itself and {dtype}: {error}")
