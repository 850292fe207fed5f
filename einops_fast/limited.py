"""Einsum within a memory limit: what doesn't fit is contracted in pieces, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any

from einops_fast.arguments import hashable, own_arrays, read_call, read_options
from einops_fast.backends import Backend
from einops_fast.einsum import fast_einsum, settings, with_sizes
from einops_fast.errors import EinsumError, OperandError
from einops_fast.observing.progress import progress
from einops_fast.planning.compositions import composition
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.path import Path, candidate_paths
from einops_fast.planning.plan import Plan, make_plan
from einops_fast.planning.slicing import Slicing, cheapest_slicing, read_bytes
from einops_fast.planning.steps import Cast
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.tracing import is_tracing

__all__ = ["Pieces", "einsum_within", "slicing_of"]

_UNSEEN = 2.0
"""Seconds after which somebody who waits at a terminal is told how far a call is."""

_slicings: dict[Hashable, Slicing] = emptied_with_plans({})


@dataclass(frozen=True)
class Pieces:
    """A contraction in pieces: takes the operands, and returns the result."""

    slicing: Slicing
    backend: Backend
    dtype: Any
    casting: str

    def contract(self, parts: Sequence[Any]) -> Any:
        """Return the piece of the result that parts of the operands make."""
        subscripts = self.slicing.subscripts
        equation = f"{','.join(subscripts.inputs)}->{subscripts.output}"
        options: dict[str, Any] = {"dtype": self.dtype, "casting": self.casting, "optimize": self.slicing.piece.path}
        return fast_einsum(equation, *parts, **options)

    def __call__(self, *operands: Any) -> Any:
        slicing, backend = self.slicing, self.backend
        shape = tuple([slicing.sizes[label] for label in slicing.subscripts.output])
        whole, narrow = None, ""
        begin, count = monotonic(), slicing.count
        with progress() if sys.stderr is not None and sys.stderr.isatty() else nullcontext() as told:
            for done, (given, at) in enumerate(slicing.pieces([operand.shape for operand in operands])):
                part = self.contract([operand[index] for operand, index in zip(operands, given, strict=True)])
                if whole is None:
                    whole, narrow = backend.sums_of(part, shape, wide=slicing.adds), backend.inspect(part).dtype
                if slicing.adds:
                    whole[at] += part
                else:
                    whole[at] = part
                del part
                if told is not None and monotonic() - begin > _UNSEEN:
                    told(f"einsum {slicing.subscripts.text}", done + 1, count)
        answer = backend.answer(len(shape))
        if backend.inspect(whole).dtype != narrow:
            whole = backend.cast(Cast((0,), slicing.subscripts.output, shape, narrow))(whole)
        return whole if answer is None else answer(whole)


def einsum_within(*arguments: Any) -> Any:
    """Return what :func:`_einsum_within` does; in a function that torch compiles, outside of its graphs."""
    run = _uncompiled() if "torch._dynamo" in sys.modules else _einsum_within
    return run(*arguments)


def _uncompiled() -> Any:
    return sys.modules["torch"].compiler.disable(_einsum_within, reason="calls with memory_limit run eagerly")


# To import torch's compiler takes a second, and who calls this eagerly may have no use for it.
for _each in (einsum_within, _uncompiled):
    _each._torchdynamo_disable = True  # type: ignore[attr-defined]


def _einsum_within(memory_limit: Any, operands: Sequence[Any], sizes: Mapping[str, int], out: Any,
                  options: dict[str, Any], autotune: Any, precision: Any) -> Any:  # fmt: skip
    """Return what :func:`einops_fast.fast_einsum` does within a limit; its other arguments are as there.

    Args:
        memory_limit: bytes, or a text such as ``'2GiB'``.
        operands, sizes, out, autotune, precision: as there.
        options: its dtype, order, casting and optimize.
    """
    limit = read_bytes(memory_limit)
    if is_tracing():
        raise OperandError("memory_limit isn't for code that is traced: what it's compiled to allocates otherwise")
    with settings(autotune, precision):
        call = read_call(operands)
        if sizes or composition(call.spelled) is not None:
            return with_sizes(operands, sizes, out, memory_limit=limit, **options)
        backend, arrays = own_arrays(call.arrays, out)
        if backend.is_recording(arrays):
            raise OperandError("memory_limit isn't for code that is traced: arrays have other sizes when it runs")
        dtype, casting, optimize = options["dtype"], options["casting"], options["optimize"]
        if out is not None and dtype is None:
            dtype = backend.dtype_with(arrays, out)
        order = read_options(options["order"], casting)
        subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
        own = backend.own_way(
            subscripts, arrays, dtype=dtype, casting=casting, optimize=optimize, order=order, memory_limit=limit
        )
        if own is not None:
            return own(*arrays) if out is None else backend.finish(own(*arrays), out, order, casting)
        key = (hashable(call.spelled), dtype, casting, hashable(optimize), limit), backend.signature(arrays)
        slicing = _slicings.get(key)
        if slicing is None:
            slicing = slicing_of(subscripts, backend, arrays, dtype, casting, optimize, limit)
            keep(_slicings, key, slicing)
        pieces = Pieces(slicing, backend, dtype, casting)
        result = backend.in_pieces(pieces, arrays)(*arrays) if slicing.extents else pieces.contract(arrays)
    return result if out is None and order == "K" else backend.finish(result, out, order, casting)


def slicing_of(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any, limit: int
) -> Slicing:
    """Return how a contraction is cut so that it allocates no more than a limit, in bytes."""
    target, operands = backend.target(arrays), [backend.inspect(array) for array in arrays]
    numerics = backend.numerics_of(subscripts, arrays, dtype, casting)
    sizes = bind_sizes(subscripts, [operand.shape for operand in operands])
    if numerics.whole:
        raise EinsumError("memory_limit isn't for dtypes whose contraction is left to the framework's own einsum")

    def plan_of(extents: Mapping[str, int], path: Path) -> Plan:
        cut = []
        for term, operand in zip(subscripts.inputs, operands, strict=True):
            axes = zip(term, operand.shape, strict=True)
            cut.append(operand.replace(shape=tuple([min(size, extents[label]) for label, size in axes])))
        return make_plan(subscripts, cut, target, numerics, path)

    # Fewest FLOPs, and small intermediates: which of them is cut cheaper is seen when both are.
    paths = {path: None for room in (None, limit // 8) for path in candidate_paths(subscripts, sizes, optimize, room)}
    plans = [plan_of(sizes, path) for path in paths]
    return cheapest_slicing(plans, limit, plan_of, target.gradients)
