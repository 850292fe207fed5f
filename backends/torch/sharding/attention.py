"""Attention on DTensors: ranks share batch, heads, queries or features of v; the keys are whole on each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from einops_fast.attention.attend import attend, own_call
from einops_fast.attention.options import Request
from einops_fast.attention.pattern import Pattern, checked_sequence, letters_of, read_pattern, spelled
from einops_fast.backends.torch.sharding.balance import balanced
from einops_fast.backends.torch.sharding.local import locally, share
from einops_fast.backends.torch.sharding.placing import ANY, Placing, place, sizes_of
from einops_fast.errors import OperandError

_PLACES_COUNT = "alibi_slopes", "cu_seqlens_q", "cache_seqlens"
"""Arrays that say something about positions in the whole sequence, which a share of the queries doesn't begin with."""


def attend_sharded(request: Request, arrays: dict[str, Any]) -> Any:
    """Return the result of a call that was read, whose arrays are DTensors."""
    own_call(arrays)
    if request.options.dropout_p:
        raise OperandError(
            "dropout_p isn't for DTensors, where the mesh would decide which weights are dropped: give 0, or call "
            "attention on .to_local() of them"
        )
    patterns = dict(request.patterns)
    hints = tuple([each for each in (patterns.get("bias"), patterns.get("mask")) if each is not None])
    q, k, v = (arrays[name] for name in "qkv")
    sequence, paged = checked_sequence(request.sequence), "block_table" in arrays
    pattern = read_pattern(request.pattern, (q.ndim, k.ndim, v.ndim), sequence, hints, paged)
    sizes = sizes_of((pattern.q, pattern.k, pattern.v), (q.shape, k.shape, v.shape))
    terms = [_term(pattern, name, array.ndim, patterns.get(name)) for name, array in arrays.items()]
    placing = _place(request, pattern, arrays, terms, sizes)

    def of_rank(*parts: Any) -> Any:
        own = list(parts)
        if pattern.heads and parts[0].shape[pattern.q.index(pattern.heads[0])] != sizes[pattern.heads[0]]:
            own = _own_heads(placing, pattern.heads, own, terms, sizes)
        named, dims = dict(zip(arrays, own, strict=True)), placing.sharing(pattern.queries or "")
        if not dims:
            return attend(request, named)

        def of_run(first: int, count: int, run: dict[str, Any]) -> Any:
            asked = _from_query(first, count, request, pattern, run, dict(zip(arrays, terms, strict=True)), sizes)
            return attend(asked, run)

        if _is_uneven(request, pattern, terms, placing, sizes):
            axis, axes = pattern.q.index(pattern.queries), tuple([each.index(pattern.queries) for each in labels])

            def of_part(query: Any, first: int) -> tuple[Any, ...]:
                made = of_run(first, query.shape[axis], {**named, "q": query})
                return made if isinstance(made, tuple) else (made,)

            return balanced(of_part, named["q"], axis, axes, placing.mesh, dims[0])
        return of_run(*share(placing.mesh, dims, sizes[pattern.queries]), named)

    labels = [pattern.result, pattern.result.replace(pattern.v_head_dim, "")][: 1 + request.options.return_lse]
    results = [(each, [sizes[label] for label in each]) for each in labels]
    return locally(of_rank, (*arrays.values(),), placing, results)


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
    request: Request, pattern: Pattern, arrays: dict[str, Any], terms: Sequence[str], sizes: dict[str, int]
) -> Placing:
    """Return the placing; ranks have all heads of k and v where they can't have whole groups."""
    shared = set(pattern.result)
    if request.options.return_lse:
        shared -= {pattern.v_head_dim}  # or each rank would have the whole gradient of the log
    if any(name in arrays for name in _PLACES_COUNT):
        shared -= {pattern.queries}
    if any(name in arrays for name in ("cache_seqlens", "cu_seqlens_q")):  # the sequences, whose axis may be any
        shared &= set((pattern.heads or "")[:1]) | {pattern.v_head_dim}
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


def _is_uneven(
    request: Request, pattern: Pattern, terms: Sequence[str], placing: Placing, sizes: dict[str, int]
) -> bool:
    """Whether ranks see more keys the later their queries are, and can exchange half of these.

    They can where no other array has queries.
    """
    options, dims = request.options, placing.sharing(pattern.queries or "")
    if not options.causal or options.window is not None or len(dims) != 1:
        return False
    alone = sum(pattern.queries in term for term in terms) == 1
    ranks = placing.mesh.size(dims[0])
    return alone and ranks > 1 and sizes[pattern.queries] % (2 * ranks) == 0


def _own_heads(
    placing: Placing, heads: tuple[str, str], parts: list[Any], terms: Sequence[str], sizes: dict[str, int]
) -> list[Any]:
    """Return parts with the heads of k and v that a rank's heads of q use, where it has all of them."""
    first, count = share(placing.mesh, placing.sharing(heads[0]), sizes[heads[0]])
    for at, (part, term) in enumerate(zip(parts, terms, strict=True)):
        axis = term.find(heads[1])
        if axis >= 0 and 1 < part.shape[axis] == sizes[heads[1]]:
            own = torch.arange(first, first + count, device=part.device) // (sizes[heads[0]] // sizes[heads[1]])
            parts[at] = part.index_select(axis, own)
    return parts


def _from_query(
    first: int, count: int, request: Request, pattern: Pattern, named: dict[str, Any], terms: dict[str, str],
    sizes: dict[str, int],
) -> Request:  # fmt: skip
    """Return the request for ``count`` queries from ``first`` on, whose keys are those of the whole sequence."""
    options, keys = request.options, sizes[pattern.keys]
    if not options.causal and options.window is None:
        return request
    from_end = "bottom_right" in (options.causal, options.alignment)
    shift = first + (keys - sizes[pattern.queries] if from_end else 0)
    if options.window is None and 0 < (end := shift + count) <= keys and count:
        # Without the keys behind the one that the last query faces, the last query faces the last key.
        for name, term in terms.items():
            axis = term.find(pattern.keys)
            if axis >= 0 and named[name].shape[axis] > 1:
                named[name] = named[name].narrow(axis, 0, end)
        return request._replace(options=options._replace(causal="bottom_right", alignment=None))
    before, after = options.window or (None, None)
    device = named["q"].device
    faced = torch.arange(shift, shift + count, device=device)[:, None]
    key = torch.arange(keys, device=device)[None]
    seen = key <= faced if options.causal else torch.ones(count, keys, dtype=torch.bool, device=device)
    if before is not None:
        seen = seen & (key >= faced - before)
    if after is not None:
        seen = seen & (key <= faced + after)
    labels = pattern.queries + pattern.keys
    if "mask" in named:
        term = terms["mask"]
        wanted = "".join([label for label in term if label not in labels]) + labels
        mask = named["mask"].permute([term.index(label) for label in wanted if label in term])
        for axis, label in enumerate(wanted):
            mask = mask if label in term else mask.unsqueeze(axis)
        seen, labels = seen & mask, wanted
    named["mask"] = seen
    text = " ".join([spelled(pattern, label) for label in labels])
    patterns = {**dict(request.patterns), "mask": text}
    return request._replace(
        options=options._replace(causal=False, alignment=None, window=None), patterns=tuple(patterns.items())
    )
