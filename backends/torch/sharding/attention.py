"""Attention on DTensors: how ranks share a call, chosen once for calls that are alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from einops_fast.attention.attend import own_call
from einops_fast.attention.options import Request
from einops_fast.attention.pattern import Pattern, checked_sequence, letters_of, read_pattern
from einops_fast.attention.torch_state import outside_of_block
from einops_fast.backends.torch.sharding.local import locally
from einops_fast.backends.torch.sharding.pieces import reach_of
from einops_fast.backends.torch.sharding.placing import ANY, Placing, place, sizes_of
from einops_fast.backends.torch.sharding.sequence import SharedCall, evens_out, pieces_by_rank, runs_of
from einops_fast.errors import OperandError
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

_RING_BYTES = 1 << 24
"""Bytes of a rank's keys and values from which on they are passed on while others are computed, not gathered before."""

_PLACES_COUNT = "alibi_slopes", "cu_seqlens_q", "cache_seqlens"
"""Arrays that say something about positions in the whole sequence, which a share of the queries doesn't begin with."""


def attend_sharded(request: Request, arrays: dict[str, Any], spread: bool = False) -> Any:
    """Return the result of a call that was read, whose arrays are DTensors.

    Those that are ``spread`` have an early and a late part of the sequence on each rank already.
    """
    key: Hashable = None
    try:
        alike = tuple([
            (name, type(each), each.dtype, each.shape, each.placements, each.device_mesh)
            for name, each in arrays.items()
        ])  # fmt: skip
        key = request, spread, arrays.get("cu_seqlens_q") is arrays.get("cu_seqlens_kv"), alike
        call = _calls.get(key)
    except (AttributeError, TypeError):  # one is no DTensor, or an option can't be hashed
        call = None
    if call is None:
        own_call(arrays)
        call = _shared_call(request, arrays, spread)
        if key is not None:
            keep(_calls, key, call)
    seed = None
    if request.options.dropout_p:  # one for all ranks: that of the first one
        number, mesh = torch.randint(2**31, (1,), device=arrays["q"].device), call.placing.mesh
        seed = distribute_tensor(number, mesh, [Replicate()] * mesh.ndim).to_local()
    with outside_of_block():
        return locally(lambda *parts: call.of_rank(seed, *parts), (*arrays.values(),), call.placing, call.results)


_calls: dict[Hashable, SharedCall] = emptied_with_plans({})


def read_axes(request: Request, arrays: dict[str, Any]) -> tuple[Pattern, list[str]]:
    """Return the pattern, and the labels of the axes of each array."""
    patterns = dict(request.patterns)
    hints = tuple([each for each in (patterns.get("bias"), patterns.get("mask")) if each is not None])
    ranks = arrays["q"].ndim, arrays["k"].ndim, arrays["v"].ndim
    pattern = read_pattern(request.pattern, ranks, checked_sequence(request.sequence), hints, "block_table" in arrays)
    return pattern, [_term(pattern, name, array.ndim, patterns.get(name)) for name, array in arrays.items()]


def _shared_call(request: Request, arrays: dict[str, Any], spread: bool) -> SharedCall:
    """Return how ranks share a call."""
    packed, options = "cu_seqlens_q" in arrays, request.options
    if options.dropout_p and (packed or "block_table" in arrays):
        raise OperandError(
            f"dropout_p isn't for {'packed sequences' if packed else 'pages'} that are DTensors: give 0, or call "
            "attention on .to_local() of them"
        )
    pattern, terms = read_axes(request, arrays)
    q, k, v = (arrays[name] for name in "qkv")
    sizes = sizes_of((pattern.q, pattern.k, pattern.v), (q.shape, k.shape, v.shape))
    shared = set(pattern.result)
    if options.return_lse:
        shared -= {pattern.v_head_dim}  # or each rank would have the whole gradient of the log
    if any(name in arrays for name in ("cache_seqlens", "cu_seqlens_q")):  # the sequences, whose axis may be any
        shared &= set((pattern.heads or "")[:1]) | {pattern.v_head_dim, pattern.queries}
    placing = _place(pattern, arrays, terms, sizes, shared)
    form, found = _form(request, pattern, arrays, terms, sizes, placing, spread)
    if form != "heads" and any(name in arrays for name in _PLACES_COUNT) and not _cuts_packed(request, arrays):
        form, found = "gather", _place(pattern, arrays, terms, sizes, shared - {pattern.queries})
    return SharedCall(request, pattern, dict(zip(arrays, terms, strict=True)), sizes, found, form, spread)


def _cuts_packed(request: Request, arrays: dict[str, Any]) -> bool:
    """Whether ranks can share the tokens of packed sequences: what they see ends with the queries, or isn't bounded."""
    # Others count positions from where a sequence begins.
    if "cu_seqlens_q" not in arrays or arrays.keys() - {"q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv", "sinks"}:
        return False
    options, reach = request.options, reach_of(request.options, 0, 0)
    if not options.causal and options.window is None:
        return True
    return reach.after == 0 and arrays["cu_seqlens_q"] is arrays["cu_seqlens_kv"]


def _term(pattern: Pattern, name: str, rank: int, text: str | None) -> str:
    """Return the labels of an array's axes; :data:`ANY` for those of packed sequences, pages and caches."""
    if name in ("q", "k", "v"):
        return str(getattr(pattern, name))
    if name in ("cu_seqlens_q", "cu_seqlens_kv", "cache_seqlens", "block_table"):
        return ANY * rank
    if text is not None:
        if "packed" in text.split():
            return ANY * rank
        return letters_of(pattern.names, pattern.text, text, rank, name)
    batch, queries = pattern.result.replace(pattern.v_head_dim, ""), pattern.queries or ANY
    batch = batch.replace(queries, "")
    if name.endswith("segments"):  # their axes are the first ones of the batch
        last = min(rank, 1)
        return batch[: rank - last] + (pattern.keys if name == "kv_segments" else queries)[1 - last :]
    everything = ANY * rank + batch + (queries + pattern.keys if name in ("bias", "mask") else "")
    return everything[len(everything) - rank :]


def _place(
    pattern: Pattern, arrays: dict[str, Any], terms: Sequence[str], sizes: dict[str, int], shared: set[str]
) -> Placing:
    """Return the placing; ranks have all heads of k and v where they can't have whole groups."""
    names, given = [*arrays], [*arrays.values()]
    heads, kv_heads = pattern.heads or ("", "")
    if kv_heads and sizes[kv_heads] > 1:
        tied = [term.replace(kv_heads, heads) for term in terms]
        shapes = [
            [sizes[heads] if label == kv_heads else size for label, size in zip(term, array.shape, strict=True)]
            for term, array in zip(terms, given, strict=True)
        ]
        placing = place(given, tied, pattern.result, shared, names, shapes=shapes)
        ranks = [placing.mesh.size(dim) for dim in placing.sharing(heads)]
        if sizes[kv_heads] == sizes[heads] or sizes[kv_heads] % prod(ranks) == 0:
            return placing
    return place(given, terms, pattern.result, shared, names)


def _form(
    request: Request, pattern: Pattern, arrays: dict[str, Any], terms: Sequence[str], sizes: dict[str, int],
    placing: Placing, spread: bool,
) -> tuple[str, Placing]:  # fmt: skip
    """Choose how ranks that share queries come to the keys, by the bytes that each one receives.

    Keys that are sharded stay so until the ranks exchange them: ``'heads'`` for all of the sequence and some heads, or
    in a ``'ring'``. Otherwise they are gathered before, ``'gather'``.
    """
    dims = placing.sharing(pattern.queries or "")
    if len(dims) != 1 or (ranks := placing.mesh.size(dims[0])) == 1:
        return "gather", placing
    (dim,), keys = dims, pattern.keys
    lies = {}  # arrays of keys that are sharded by these, or may be
    for name, array, term in zip(arrays, arrays.values(), terms, strict=True):
        axis = term.find(keys)
        if axis >= 0 and pattern.queries not in term and array.shape[axis] == sizes[keys]:
            lies[name] = Shard(axis)
            own = array.placements[dim]
            if own != lies[name] and (name in "kv" or not own.is_replicate()):
                return "gather", placing
    if not {"k", "v"} <= lies.keys():
        return "gather", placing

    def changed(own: tuple[Any, ...], to: Any) -> tuple[Any, ...]:
        return (*own[:dim], to, *own[dim + 1 :])

    def passed(every: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(arrays, every, strict=True)
        return tuple([changed(own, lies[name]) if name in lies else own for name, own in pairs])

    sharded = replace(placing, targets=passed(placing.targets), gradients=passed(placing.gradients))
    if spread:
        return "ring", sharded
    part = {}  # bytes of an array that a rank has
    for name, array, target in zip(arrays, arrays.values(), sharded.targets, strict=True):
        shards = [placing.mesh.size(at) for at, each in enumerate(target) if each.is_shard()]
        part[name] = array.numel() * array.element_size() / prod(shards)
    result = part["q"] / sizes[pattern.head_dim] * sizes[pattern.v_head_dim] if part["q"] else 0.0
    block, named, options = sum([part[name] for name in lies]), dict(zip(arrays, terms, strict=True)), request.options
    along = [name for name, term in named.items() if pattern.queries in term]
    moved = sum([part[name] for name in along]) + result
    queries, lengths = sizes[pattern.queries], sizes[keys]
    received = {"gather": (ranks - 1) * block + moved * evens_out(options, queries, 0, ranks)}
    if any(name in arrays for name in (*_PLACES_COUNT, "block_table")):
        received["gather"] = (ranks - 1) * (block if _cuts_packed(request, arrays) else block + moved)
    else:
        evens = evens_out(options, queries, lengths, ranks)
        own, blocks = runs_of(queries, ranks, evens), runs_of(lengths, ranks, evens)
        pieces = pieces_by_rank(options, queries, lengths, own, blocks)
        count = max([sum(map(bool, each[:rank] + each[rank + 1 :])) for rank, each in enumerate(pieces)])
        received["ring"] = count * block + (moved + block) * evens
    call = SharedCall(request, pattern, named, sizes, sharded, "heads")
    if call.heads is not None:
        of_heads = sum([part[name] * (ranks - 1) * call.share_of_heads(name) for name in {*along, *lies}])
        received["heads"] = of_heads + result * (ranks - 1) / ranks
    form = cheapest(received, block)
    return form, placing if form == "gather" else sharded


def cheapest(received: dict[str, float], block: float) -> str:
    """Choose the form in which a rank receives the fewest bytes; ``block`` are those of one rank's keys and values.

    A ring that receives as much as is gathered takes longer where blocks are small: each is a call, and adding it up.
    """
    ring, gather = received.get("ring", inf), received["gather"]
    if received.get("heads", inf) < min(ring, gather):
        return "heads"
    return "ring" if ring < inf and (block >= _RING_BYTES or 2 * ring < gather) else "gather"
