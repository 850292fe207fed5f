"""Einsum within a memory limit: what doesn't fit is contracted in pieces, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from time import monotonic
from typing import Any

from einops_fast.arguments import (
    hashable,
    is_dispatched,
    is_handed_over,
    known_backend,
    own_arrays,
    read_call,
    read_options,
)
from einops_fast.backends import Backend
from einops_fast.chunked import chunked_einsum, has_chunks
from einops_fast.einsum import fast_einsum, plan_call, with_sizes
from einops_fast.errors import OperandError
from einops_fast.observing.observers import observed
from einops_fast.observing.progress import progress
from einops_fast.planning.compositions import composition
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.destinations import overlaps
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.planning.parts import Rest
from einops_fast.planning.path import FEW, Network, Path, candidate_paths, with_slices
from einops_fast.planning.peaks import whole_peak
from einops_fast.planning.plan import Plan, compile_plan, make_plan
from einops_fast.planning.slicing import Slicing, cheapest_slicing
from einops_fast.planning.target import Operand
from einops_fast.planning.trees import Tree, annealed_trees, depth_first
from einops_fast.runtime.limits import current_limit, limit_now, read_bytes, unlimited
from einops_fast.runtime.loops import in_loops
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.settings import settings
from einops_fast.runtime.tracing import is_tracing
from einops_fast.runtime.tuning import current_mode
from einops_fast.written import write_in_place

_UNASKED = 16.0
"""How many times the FLOPs pieces that nobody asked for may take; with more, memory has run out."""

_UNSEEN = 2.0
"""Seconds after which somebody who waits at a terminal is told how far a call is."""


@dataclass(frozen=True)
class Pieces:
    """A contraction in pieces: takes the operands, and returns the result."""

    slicing: Slicing
    backend: Backend
    dtype: Any
    casting: str

    def contract(self, operands: Sequence[Any]) -> Any:
        """Return the piece of the result that pieces of the operands make."""
        subscripts = self.slicing.subscripts
        options: dict[str, Any] = {"dtype": self.dtype, "casting": self.casting, "optimize": self.slicing.rest.path}
        with unlimited():
            return fast_einsum(subscripts.equation, *operands, **options)

    def __call__(self, *operands: Any) -> Any:
        return self._run(*operands)

    def write(self, operands: Sequence[Any], out: Any, beta: Any) -> bool:
        """Write the result to ``out``, or add it to so many times that, and return whether that could be done."""
        slicing, numerics = self.slicing, self.slicing.piece.numerics
        target = self.backend.destination(out, operands)
        # Who observes is told of operands; where gradients are recorded, pieces aren't what runs.
        if target is None or observed() or self.backend.in_pieces(self, operands) is not self:
            return False
        if slicing.is_whole:
            options = self.dtype, "K", self.casting, slicing.rest.path
            with unlimited():
                return write_in_place((slicing.subscripts.equation, *operands), target, beta, options, plan_call)
        layout = self.backend.inspect(target)
        shape = tuple([slicing.sizes[label] for label in slicing.subscripts.output])
        fits = layout.shape == shape and layout.dtype == numerics.compute == numerics.result and not overlaps(layout)
        if not fits or layout.dtype in ("float16", "bfloat16"):
            return False
        self._run(*operands, target, beta)
        return True

    @cached_property
    def _run(self) -> Any:
        """The steps of a piece, in loops, compiled."""
        slicing, backend = self.slicing, self.backend
        rest, piece = slicing.rest, slicing.piece
        # A plan that is replaced by one call, or recorded, would leave the loops out.
        target = piece.target.replace(drops_expanded=False, gradients=False)
        turn = partial(in_loops, slicing, backend, _shown)
        run = compile_plan(piece.replace(target=target), backend, turn)
        if not rest.parts:
            return run
        parts = [
            (part.operands, partial(fast_einsum, part.equation, optimize=part.path, order="C")) for part in rest.parts
        ]

        def after_parts(*operands: Any) -> Any:
            made = [part(*[operands[at] for at in positions]) for positions, part in parts]
            return run(*made, *[operands[at] for at in rest.others], *operands[len(slicing.subscripts.inputs) :])

        return after_parts


@contextmanager
def _shown(slicing: Slicing, count: int) -> Iterator[Callable[[], None]]:
    """Show somebody who waits at a terminal how far a call is, of so many pieces; what this gives is told of each."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _nothing
        return
    begin, done, text = monotonic(), 0, f"einsum {slicing.subscripts.text}"
    with progress() as told:

        def tell() -> None:
            nonlocal done
            done += 1
            if monotonic() - begin > _UNSEEN:
                told(text, done, count)

        yield tell


def _nothing() -> None:
    pass


_pieces: dict[Hashable, Pieces] = emptied_with_plans({})


def einsum_within(*arguments: Any) -> Any:
    """Return what :func:`_einsum_within` does; in a function that torch compiles, outside of its graphs."""
    run = _uncompiled() if "torch._dynamo" in sys.modules else _einsum_within
    return run(*arguments)


def _uncompiled() -> Any:
    return sys.modules["torch"].compiler.disable(_einsum_within, reason="calls with memory_limit run eagerly")


# To import torch's compiler takes a second, and who calls this eagerly may have no use for it.
for _each in (einsum_within, _uncompiled):
    _each._torchdynamo_disable = True  # type: ignore[attr-defined]


def _einsum_within(
    memory_limit: Any, operands: Sequence[Any], sizes: Mapping[str, int], out: Any, options: dict[str, Any],
    beta: Any = 0,
) -> Any:  # fmt: skip
    """Return what :func:`einops_fast.fast_einsum` does within a limit; ``None`` for that of the block around the call.

    ``options`` are its other arguments. With ``beta`` it is ``out``, or the result that is to be added to it.
    """
    limit = current_limit() if memory_limit is None else read_bytes(memory_limit)
    planned = dict(options)
    mode, precision = current_mode(planned.pop("autotune", None)), planned.pop("precision", None)
    if mode in ("wait", "always"):
        mode = "auto"  # to measure ways beside the call takes memory: for their results, and to empty the cache
    try:
        with unlimited(), settings(mode, precision):
            return _limited(limit, operands, sizes, out, beta, **planned)
    except _NoPieces:
        if memory_limit is not None:
            raise
    run: Any = fast_einsum
    with unlimited():
        return run(*operands, out=None if beta else out, **options, **sizes)


class _NoPieces(OperandError):
    """A call can't be contracted in pieces at all."""


def _limited(limit: int, operands: Sequence[Any], sizes: Mapping[str, int], out: Any, beta: Any, dtype: Any, order: Any,
             casting: Any, optimize: Any) -> Any:  # fmt: skip
    call = read_call(operands)
    backend, arrays = known_backend(call.arrays, out), call.arrays
    if is_tracing() or (backend is not None and backend.is_recording(arrays)):
        raise _NoPieces("memory_limit isn't for code that is traced: what it's compiled to allocates otherwise")
    chunked = backend is None and has_chunks(arrays)
    if backend is None and not chunked and (is_dispatched([*arrays, out]) or is_handed_over(arrays)):
        raise _NoPieces("memory_limit isn't for arrays of no backend, whose einsum is their own")
    if sizes or composition(call.spelled) is not None:
        options = {"dtype": dtype, "order": order, "casting": casting, "optimize": optimize}
        return with_sizes(operands, sizes, None if beta else out, memory_limit=limit, **options)
    order = read_options(order, casting)
    if chunked:
        return chunked_einsum(call, None if beta else out, dtype, order, casting, optimize, limit)
    backend, arrays = own_arrays(arrays, out)
    if out is not None and dtype is None:
        dtype = backend.dtype_with(arrays, out)
    key = (hashable(call.spelled), dtype, casting, hashable(optimize), limit), backend.signature(arrays)
    pieces = _pieces.get(key)
    if pieces is None:
        subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
        own = backend.own_way(
            subscripts, arrays, dtype=dtype, casting=casting, optimize=optimize, order=order, memory_limit=limit
        )
        if own is not None:
            return own(*arrays) if out is None or beta else backend.finish(own(*arrays), out, order, casting)
        slicing = slicing_of(subscripts, backend, arrays, dtype, casting, optimize, limit)
        pieces = Pieces(slicing, backend, dtype, casting)
        keep(_pieces, key, pieces)
    if out is not None and pieces.write(arrays, out, beta):
        return out
    result = pieces.contract(arrays) if pieces.slicing.is_whole else backend.in_pieces(pieces, arrays)(*arrays)
    return result if (out is None and order == "K") or beta else backend.finish(result, out, order, casting)


def answer(failure: Exception, operands: Sequence[Any], out: Any, options: dict[str, Any]) -> Any:
    """Contract in pieces, within the free memory, what was out of memory; raise what failed if that is of no use."""
    call = read_call(operands)
    backend, arrays = own_arrays(call.arrays, out)
    room = backend.room(arrays)
    try:
        if room is None or limit_now() == 0:  # nobody knows, or this is a piece
            raise _NoPieces("")
        subscripts = call.subscripts(tuple([len(array.shape) for array in arrays]))
        plan = options["dtype"], options["casting"], options["optimize"]
        free = room * max([ITEM_SIZES.get(backend.inspect(array).dtype, 8) for array in arrays])
        peak = slicing_of(subscripts, backend, arrays, *plan, limit=sys.maxsize).peak
        # What didn't fit takes less than is free where memory is in fragments, or others have taken it.
        limit = min(free, peak // 2)
        if slicing_of(subscripts, backend, arrays, *plan, limit=limit).overhead > _UNASKED:
            raise _NoPieces("")
        return _einsum_within(limit, operands, {}, out, options)
    except (MemoryError, RuntimeError):  # EinsumError among them
        raise failure from None


def in_slices(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return what contracts operands in the slices of a tree."""
    dtype, casting = options["dtype"], options["casting"]
    slicing = slicing_of(subscripts, backend, arrays, dtype, casting, options["optimize"], sys.maxsize)
    pieces = Pieces(slicing, backend, dtype, casting)
    return (lambda *operands: pieces.contract(operands)) if slicing.is_whole else backend.in_pieces(pieces, arrays)


def slicing_of(
    subscripts: Subscripts, backend: Backend, arrays: Sequence[Any], dtype: Any, casting: str, optimize: Any, limit: int
) -> Slicing:
    """Return how a contraction is cut so that it allocates no more than a limit, in bytes."""
    target, operands = backend.target(arrays), [backend.inspect(array) for array in arrays]
    numerics = backend.numerics_of(subscripts, arrays, dtype, casting)
    sizes = bind_sizes(subscripts, [operand.shape for operand in operands])
    if numerics.whole:
        raise _NoPieces("memory_limit isn't for dtypes whose contraction is left to the framework's own einsum")
    optimize, begun = with_slices(optimize, subscripts, sizes)

    def plan_of(rest: Rest, extents: Mapping[str, int]) -> Plan:
        parts = [tuple([sizes[label] for label in term]) for term in rest.subscripts.inputs[: len(rest.parts)]]
        arrays = [Operand(shape, contiguous_strides(shape), numerics.compute) for shape in parts]
        arrays += [operands[at] for at in rest.others]
        dropped = {label for label, extent in extents.items() if extent == 1}
        inputs, cut = [], []
        for term, array in zip(rest.subscripts.inputs, arrays, strict=True):
            axes = [each for each in zip(term, array.shape, array.strides, strict=True) if each[0] not in dropped]
            inputs.append("".join([label for label, _, _ in axes]))
            shape = tuple([min(size, extents.get(label, size)) for label, size, _ in axes])
            cut.append(Operand(shape, tuple([stride for _, _, stride in axes]), array.dtype))
        output = "".join([label for label in rest.subscripts.output if label not in dropped])
        return make_plan(
            rest.subscripts._replace(inputs=tuple(inputs), output=output), cut, target, numerics, rest.path
        )

    network, trained, trees = Network(subscripts.inputs, subscripts.output, sizes), target.gradients, list[Tree]()
    plans: dict[Path, Plan] = {}

    def add_plans(room: int | None) -> None:
        for path in candidate_paths(subscripts, sizes, optimize, room):
            ordered = depth_first(network, path)
            if ordered not in plans:
                plans[ordered] = make_plan(subscripts, operands, target, numerics, ordered)

    # Fewest FLOPs, and small intermediates: which of them is cut cheaper is seen when both are.
    add_plans(None)
    if begun or min([whole_peak(plan, trained) for plan in plans.values()]) > limit:
        if len(operands) > 2 and optimize in ("auto", True):
            rate = target.ceilings.gemm_rate(numerics.compute) / 2
            trees = annealed_trees(network, [*plans], trained, limit / ITEM_SIZES.get(numerics.compute, 8), rate)
        if len(operands) <= FEW or not trees:
            add_plans(limit // 8)
    return cheapest_slicing(subscripts, [*plans.values()], limit, trained, begun, plan_of, trees)
