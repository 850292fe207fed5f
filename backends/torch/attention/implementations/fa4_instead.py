"""Calls of FlashAttention-4's operators that the library refuses when they run: our own kernels do them.

What is compiled has chosen the operator already, and can't choose again.
"""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.attention.refusals import is_refusal, remember_refusal, warn_of_refusals
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton_support import why_unusable
from einops_fast.dtypes import dtype_name

__all__ = ["gradients_instead", "refused", "result_instead"]

_ORDER = 0, 3, 1, 2, 4
"""Order of axes of the canonical result, whose heads are two axes: batch, positions, heads, features."""


def refused(error: Exception) -> bool:
    """Return whether the library has refused a call that our kernels can do.

    Raises:
        RuntimeError: it has, but they can't be used.
    """
    if not is_refusal(error, Exception):
        return False
    if why_unusable() is None:
        return True
    # Not every error of the library's is one, by which callers know that another library may do the call.
    raise RuntimeError(f"FlashAttention-4 refuses this call: {error}") from error


class _Call:
    """A call as our kernels see it: the heads that share keys, and those that share none, are two axes."""

    def __init__(self, arrays: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        q, k, v, sinks, starts, kv_starts, cached, table = arrays
        scale, causal, left, right, softcap, longest_q, longest_kv = constants
        self._packed = starts is not None
        self._share = q.shape[-2] // k.shape[-2]
        found = [self.canonical(q, self._share), self.canonical(k, 1), self.canonical(v, 1)]
        batch, *heads = found[0].shape[:3]
        q_batch, k_batch, v_batch = (tuple(each.shape[:3]) for each in found)
        page_size = 0 if table is None else k.shape[1]
        kv_len = longest_kv if self._packed else page_size * table.shape[1] if page_size else k.shape[1]
        self.spec = AttentionSpec(
            (starts.shape[0] - 1 if self._packed else batch, *heads), q_batch, k_batch, v_batch,
            longest_q if self._packed else q.shape[1], kv_len, q.shape[-1], v.shape[-1], dtype_name(q.dtype), scale,
            causal, "bottom_right", (left, right), softcap, sinks=sinks is not None, varlen=self._packed,
            cache=cached is not None, page_size=page_size, lse=True, order=_ORDER,
        )  # fmt: skip
        own_sinks = None if sinks is None else sinks.detach().reshape(1, *heads)
        self.arrays = *found, None, None, None, own_sinks, None, None, starts, kv_starts, cached, table, None

    def canonical(self, array: Any, share: int) -> Any:
        """An array with axes (batch, positions, heads, features), or without the first one of packed sequences."""
        array = array.detach()
        if self._packed:
            array = array[None]
        return array.unflatten(2, (-1, share)).permute(0, 2, 3, 1, 4)

    def canonical_rows(self, array: Any) -> Any:
        """An array with axes (batch, heads, positions), likewise."""
        return (array[None] if self._packed else array).unflatten(1, (-1, self._share))

    def back(self, array: Any) -> Any:
        """The other way."""
        array = array.permute(0, 3, 1, 2, 4).flatten(2, 3)
        return array[0] if self._packed else array

    def back_rows(self, array: Any) -> Any:
        """The other way."""
        array = array.flatten(1, 2)
        return array[0] if self._packed else array

    def tell(self, error: Exception) -> None:
        """Warn once of each problem that the library refuses."""
        device = str(self.arrays[0].device)
        remember_refusal(self.spec, device, "fa4", error)
        warn_of_refusals(self.spec, device, "triton")


def result_instead(error: Exception | None, arrays: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the result and its logarithms as the forward operator does.

    Args:
        error: the library's; ``None`` for a call like one that it has refused before.
        arrays: the operator's.
        constants: what follows them.
    """
    from einops_fast.backends.torch.attention.runs import forward

    call = _Call(arrays, constants)
    if error is not None:
        call.tell(error)
    out, lse = forward(call.spec, call.arrays)
    return call.back(out).contiguous(), call.back_rows(lse).contiguous()


def gradients_instead(
    error: Exception | None,
    arrays: tuple[Any, ...],
    constants: tuple[Any, ...],
    results: tuple[Any, Any],
    cotangents: tuple[Any, Any],
) -> tuple[Any, ...]:
    """Return the gradients of q, k, v and the sinks as the backward operator does.

    Args:
        error, arrays, constants: as for :func:`result_instead`.
        results: what the forward operator returned.
        cotangents: the gradients of these; one may be ``None``.
    """
    from einops_fast.backends.torch.attention.runs import backward

    call = _Call(arrays, constants)
    if error is not None:
        call.tell(error)
    (out, lse), (d_out, d_lse), share = results, cotangents, arrays[0].shape[-2] // arrays[1].shape[-2]
    sinks = arrays[3]
    *found, _, d_sinks = backward(
        call.spec,
        call.arrays,
        call.canonical(out, share),
        call.canonical_rows(lse).contiguous(),
        None if d_out is None else call.canonical(d_out, share),
        None if d_lse is None else call.canonical_rows(d_lse),
        (True, True, True, False, sinks is not None),
    )
    # Copied, to lie as the operator's results are said to.
    copies = [torch.empty_like(like).copy_(call.back(each)) for like, each in zip(arrays, found, strict=False)]
    return (*copies, None if sinks is None else d_sinks.reshape(sinks.shape).to(sinks.dtype))
