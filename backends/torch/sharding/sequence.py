"""Attention whose sequence ranks share: each computes the queries that it has, or some heads of all, by exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Shard

from einops_fast.attention.attend import attend
from einops_fast.attention.options import Options, Request
from einops_fast.attention.pattern import Pattern, spelled
from einops_fast.backends.torch.sharding.exchange import begin, exchanged, rearranged
from einops_fast.backends.torch.sharding.local import share, tied
from einops_fast.backends.torch.sharding.pieces import Piece, Runs, kept, merged, pieces_of, reach_of
from einops_fast.backends.torch.sharding.placing import Placing

Spans = Sequence[tuple[int, int]]
"""Of each rank, where its part of an axis begins, and how long that is."""


class SharedCall:
    """A call, and the part of it that each rank does.

    Where ranks share the queries, ``form`` says how they come to the keys: ``'gather'``, each has all of them already;
    ``'ring'``, blocks of keys are received while others are computed; ``'heads'``, parts of the sequence are exchanged
    for heads of the whole one.
    """

    def __init__(
        self, request: Request, pattern: Pattern, terms: dict[str, str], sizes: dict[str, int], placing: Placing,
        form: str, spread: bool = False,
    ) -> None:  # fmt: skip
        self.request, self.pattern, self.terms, self.sizes = request, pattern, terms, sizes
        self.placing, self.form, self._mesh = placing, form, placing.mesh
        self._queries, self._keys = pattern.queries, pattern.keys
        self._dims = placing.sharing(pattern.queries) if pattern.queries else []
        self._targets = dict(zip(terms, placing.targets, strict=True))
        self._labels = [pattern.result, pattern.result.replace(pattern.v_head_dim, "")]
        asked = self._labels[: 1 + request.options.return_lse]
        self.results = [(each, [sizes[label] for label in each]) for each in asked]
        # Arrays that are sharded by positions, and where; none, nor ranks, if several dimensions of the mesh do that.
        self._axes: dict[str, int] = {}
        self._ranks, self.heads = 0, None
        if len(self._dims) == 1:
            self._axes = {
                name: at.dim for name, each in self._targets.items() if (at := each[self._dims[0]]).is_shard()
            }
            self._ranks, self.heads = self._mesh.size(self._dims[0]), self._sharable_heads()
        runs = self._dims and form != "heads" and "cu_seqlens_q" not in terms
        self._shares = self._shared_runs(spread) if runs else None

    def of_rank(self, seed: Any, *parts: Any) -> Any:
        """Return this rank's part of the result, or of both, from its parts of the arrays."""
        named = dict(zip(self.terms, self._own_heads(parts), strict=True))
        if not self._dims:
            return self._attend(self.request, named, seed, *self._everything())
        if self.form == "heads":
            return self._by_heads(named, seed)
        received: list[Any] = []
        found = attend(*self._packed(named)) if self._shares is None else self._by_runs(named, seed, received)
        # A rank whose queries see nothing adds up the gradients of all arrays, too, or the others would wait for it.
        others = [*received, *[part for part in parts if part.requires_grad]]
        several = tuple([tied(each, others) for each in (found if isinstance(found, tuple) else (found,))])
        return several if isinstance(found, tuple) else several[0]

    def _everything(self) -> tuple[Runs, Runs]:
        return [(0, self.sizes.get(self._queries, 1))], [(0, self.sizes[self._keys])]

    def _start(self, label: str) -> int:
        """Return where this rank's part of the batch or of heads begins."""
        start = share(self._mesh, self.placing.sharing(label), self.sizes[label])[0]
        if self.form == "heads" and self.heads is not None and label == self.heads[0]:
            start += self.heads[1][label][self._mesh.get_local_rank(self._dims[0])][0]
        return start

    def _own_heads(self, parts: Sequence[Any]) -> list[Any]:
        """Return parts with the heads of k and v that a rank's heads of q use, where it has all of them."""
        own, heads = list(parts), self.pattern.heads
        if heads is None or not (dims := self.placing.sharing(heads[0])):
            return own
        sizes = self.sizes
        first, count = share(self._mesh, dims, sizes[heads[0]])
        for at, (part, term) in enumerate(zip(parts, self.terms.values(), strict=True)):
            axis = term.find(heads[1])
            if count < sizes[heads[0]] and axis >= 0 and 1 < part.shape[axis] == sizes[heads[1]]:
                index = torch.arange(first, first + count, device=part.device) // (sizes[heads[0]] // sizes[heads[1]])
                own[at] = part.index_select(axis, index)
        return own

    # Heads of the whole sequence.

    def _sharable_heads(self) -> tuple[str, dict[str, Spans]] | None:
        """Return an axis of q that ranks can share evenly in place of the queries, and what each has of its labels."""
        pattern, ranks = self.pattern, self._mesh.size(self._dims[0])
        both = [label for label in self._labels[1] if label in pattern.q and label in pattern.k]
        pairs = [*zip(both, both, strict=True)]
        if pattern.heads is not None:
            pairs.insert(0, pattern.heads)
        for label, other in pairs:
            there = prod([self._mesh.size(dim) for dim in self.placing.sharing(label)])
            if self.sizes[label] % (there * ranks) or not self.sizes[label]:
                continue
            count = self.sizes[label] // (there * ranks)
            shards = self._targets["k"].count(Shard(pattern.k.index(other)))
            group = 1 if there > 1 and not shards else self.sizes[label] // max(self.sizes[other], 1)
            if count % group == 0 or group % count == 0:
                spans = [(rank * count, count) for rank in range(ranks)]
                of_keys = [(start // group, max(count // group, 1)) for start, _ in spans]
                return label, {other: of_keys, label: spans}
        return None

    def share_of_heads(self, name: str) -> float:
        """Return which part of an array a rank sends to each other one for some heads of the whole sequence."""
        assert self.heads is not None
        for label, spans in self.heads[1].items():
            if label in self.terms[name]:
                return spans[0][1] / (sum(spans[-1]) or 1)
        return 1.0

    def _by_heads(self, named: dict[str, Any], seed: Any) -> Any:
        assert self.heads is not None
        (dim,), (heads, spans) = self._dims, self.heads
        group, rank, own = self._mesh.get_group(dim), self._mesh.get_local_rank(dim), {}
        for name, array in named.items():
            term, join = self.terms[name], self._axes.get(name)
            label = next((each for each in spans if each in term and array.shape[term.index(each)] > 1), None)
            cut = None if label is None else term.index(label)
            cuts = spans[heads if label is None else label]
            if join is not None:
                joins = [count for _, count in _spans(self.sizes[term[join]], len(cuts))]
                own[name] = exchanged(array, cut, cuts, join, joins, group)
            else:
                own[name] = array if cut is None else array.narrow(cut, *cuts[rank])
        found = self._attend(self.request, own, seed, *self._everything())
        queries = _spans(self.sizes[self._queries], len(spans[heads]))
        counts = [count for _, count in spans[heads]]
        back = [
            exchanged(each, labels.index(self._queries), queries, labels.index(heads), counts, group)
            for each, labels in zip(found if isinstance(found, tuple) else (found,), self._labels, strict=False)
        ]
        return tuple(back) if len(back) > 1 else back[0]

    # Runs of queries.

    def _packed(self, named: dict[str, Any]) -> tuple[Request, dict[str, Any]]:
        """Return the call for the tokens of a rank: packed sequences without what is before and behind these."""
        first, count = share(self._mesh, self._dims, self.sizes[self._queries])
        options, of_keys = self.request.options, named["cu_seqlens_kv"]
        if options.causal or options.window is not None:  # the last sequence ends with the last query
            of_keys = of_keys.clamp(max=first + count)
            options = options._replace(causal=options.causal and "bottom_right", alignment="bottom_right")
        cut = named["cu_seqlens_q"].clamp(first, first + count) - first
        return self.request._replace(options=options), {**named, "cu_seqlens_q": cut, "cu_seqlens_kv": of_keys}

    def _shared_runs(self, spread: bool) -> _Shares:
        queries, keys, options = self.sizes[self._queries], self.sizes[self._keys], self.request.options
        ring, ranks = self.form == "ring", self._ranks
        evens = spread or evens_out(options, queries, keys if ring else 0, ranks)
        several: Runs = [share(self._mesh, self._dims, queries)]
        every: Runs = [(0, keys)]
        own = runs_of(queries, ranks, evens) if ranks else [several]
        blocks = runs_of(keys, ranks, evens) if ring else [every]
        return _Shares(own, blocks, pieces_by_rank(options, queries, keys, own, blocks), evens and not spread)

    def _by_runs(self, named: dict[str, Any], seed: Any, received: list[Any]) -> Any:
        assert self._shares is not None
        queries, blocks, pieces, evens = self._shares
        rank = self._mesh.get_local_rank(self._dims[0]) if self._ranks else 0
        if evens:
            group, (now, then) = self._mesh.get_group(self._dims[0]), _numbers(self._ranks)
            named |= {name: rearranged(named[name], axis, now, then, group) for name, axis in self._axes.items()}
        found: list[tuple[Piece, Any]] = []
        every = 0, sum(count for _, count in queries[rank])
        own = [piece for of_block in pieces[rank] for piece in of_block]
        alone = len(own) < 2 and all(piece.queries == every for piece in own)
        for source, there in self._arriving(named, rank, received):
            runs = queries[rank], blocks[source]
            for piece in pieces[rank][source]:
                found.append((piece, self._piece(there, piece, runs, seed, alone)))
        if not own:
            nothing = Piece(every, (0, 0), self.request.options._replace(causal=False, alignment=None, window=None))
            found.append((nothing, self._piece(named, nothing, (queries[rank], blocks[0]), seed, True)))
        result = found[0][1] if alone else self._together(found, every[1], named)
        several = result if isinstance(result, tuple) else (result,)
        if evens:
            places = [labels.index(self._queries) for labels in self._labels]
            pairs = zip(several, places, strict=False)
            several = tuple([rearranged(each, place, then, now, group) for each, place in pairs])
        return several if len(several) > 1 else several[0]

    def _arriving(self, named: dict[str, Any], rank: int, received: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rank that has a block of keys, and the arrays with that; the next one is on its way meanwhile."""
        assert self._shares is not None
        if self.form != "ring":
            yield 0, named
            return
        blocks, pieces, ranks = self._shares.blocks, self._shares.pieces, self._ranks
        group, source, block = self._mesh.get_group(self._dims[0]), rank, dict[str, Any]()
        passed = {name: axis for name, axis in self._axes.items() if self._queries not in self.terms[name]}
        apart = {
            name: term.index(self._keys) for name, term in self.terms.items()
            if name not in passed and self._keys in term and named[name].shape[term.index(self._keys)] > 1
        }  # fmt: skip
        steps = [step for step in range(1, ranks) if any(pieces[to][to - step] for to in range(ranks))]
        for step in [*steps, 0]:
            to, came = (rank + step) % ranks, (rank - step) % ranks
            length = sum(count for _, count in blocks[came]) if pieces[rank][came] else 0
            coming = {}
            for name, axis in passed.items() if step else ():
                array = named[name]
                nothing, shape = array.narrow(axis, 0, 0), list(array.shape)
                sent = [array if each == to and pieces[to][rank] else nothing for each in range(ranks)]
                shapes = [(*shape[:axis], length * (each == came), *shape[axis + 1 :]) for each in range(ranks)]
                coming[name] = begin(sent, shapes, group)
            columns = {
                name: torch.cat([named[name].narrow(axis, *run) for run in blocks[source]], axis)
                for name, axis in apart.items()
            }
            yield source, {**named, **block, **columns}
            for name, end in coming.items():
                parts = end()
                received += [part for part in parts if part.requires_grad]
                block[name] = parts[came]
            source = came

    def _piece(self, named: dict[str, Any], piece: Piece, runs: tuple[Runs, Runs], seed: Any, alone: bool) -> Any:
        """Return what a call makes, with the log unless it is the only one."""
        spans, own = ((self._queries, piece.queries), (self._keys, piece.keys)), {}
        for name, array in named.items():
            if name == "sinks" and not alone:
                continue
            for label, span in spans:
                axis = self.terms[name].find(label)
                if axis >= 0 and array.shape[axis] > span[1]:
                    array = array.narrow(axis, *span)
            own[name] = array
        asked = self.request.options.return_lse or not alone
        request = self.request._replace(options=piece.options._replace(return_lse=asked))
        if "sinks" not in own:
            patterns = tuple([each for each in request.patterns if each[0] != "sinks"])
            request = request._replace(patterns=patterns)
        return self._attend(request, own, seed, *map(_cut, runs, (piece.queries, piece.keys)))

    def _together(self, found: list[tuple[Piece, Any]], count: int, named: dict[str, Any]) -> Any:
        """Return what several calls make; each may have a part of the queries."""
        axis = self._labels[0].index(self.pattern.v_head_dim)
        places = [labels.index(self._queries) for labels in self._labels]
        dtype = found[0][1][0].dtype
        exact = torch.promote_types(dtype, torch.float32)
        total: Any = None
        for piece, (out, lse) in found:
            start, length = piece.queries
            ends = start, count - start - length
            every = _padded(out.to(exact), places[0], *ends, 0.0), _padded(lse, places[1], *ends, -inf)
            total = every if total is None else merged(total, every, axis)
        if "sinks" in named:  # one more key, without a value
            sinks = _aligned(named["sinks"], self.terms["sinks"], self._labels[1]).to(total[1].dtype)
            total = merged(total, (torch.zeros_like(total[0]), sinks.expand(total[1].shape)), axis)
        result = total[0].to(dtype)
        return (result, total[1]) if self.request.options.return_lse else result

    # One call.

    def _attend(self, request: Request, named: dict[str, Any], seed: Any, queries: Runs, keys: Runs) -> Any:
        """Return attention of plain tensors at these positions: of weights that are dropped, by their positions."""
        p = request.options.dropout_p
        if seed is None:
            return attend(request, named)
        device, at = named["q"].device, self._labels[1] + self._keys
        places = []
        for label in at:
            runs = {self._queries: queries, self._keys: keys}.get(label)
            if runs is None:
                axes = [(name, self.terms[name].find(label)) for name in "qkv"]
                runs = [(self._start(label), max([named[name].shape[axis] for name, axis in axes if axis >= 0]))]
            places.append(torch.cat([torch.arange(start, start + count, device=device) for start, count in runs]))
        mask = kept(seed, places, p)
        if "mask" in named:
            mask = mask & _aligned(named["mask"], self.terms["mask"], at)
        options = request.options._replace(dropout_p=0.0, return_lse=True)
        patterns = {**dict(request.patterns), "mask": " ".join([spelled(self.pattern, label) for label in at])}
        whole = request._replace(options=options)
        _, lse = attend(whole, named)
        out, seen = attend(whole._replace(patterns=tuple(patterns.items())), {**named, "mask": mask})
        # The denominator is that of all weights.
        part = torch.where(seen == -inf, 0.0, torch.exp(seen - torch.where(lse == -inf, 0.0, lse))) / (1 - p)
        out = (out * part.unsqueeze(self._labels[0].index(self.pattern.v_head_dim))).to(out.dtype)
        return (out, lse) if request.options.return_lse else out


class _Shares(NamedTuple):
    queries: list[Runs]  # of each rank
    blocks: list[Runs]  # keys of each rank, or all
    pieces: list[list[list[Piece]]]  # of each rank, the calls that each block takes
    evens: bool  # whether early queries are exchanged for late ones


def evens_out(options: Options, queries: int, keys: int, ranks: int) -> bool:
    """Return whether ranks see more keys the later their queries are, and can exchange half of these."""
    causal = bool(options.causal) and options.window is None
    return causal and ranks > 1 and queries % (2 * ranks) == 0 == keys % (2 * ranks)


def runs_of(size: int, ranks: int, evens: bool) -> list[Runs]:
    """Return the runs of each rank: one, or an early and a late one."""
    if not evens:
        return [[span] for span in _spans(size, ranks)]
    length = size // (2 * ranks)
    return [[(run * length, length) for run in runs] for runs in _numbers(ranks)[1]]


def pieces_by_rank(
    options: Options, queries: int, keys: int, own: Sequence[Runs], blocks: Sequence[Runs]
) -> list[list[list[Piece]]]:
    """Return the calls that each block of keys takes, for the queries of each rank."""
    reach = reach_of(options, queries, keys)
    return [[pieces_of(options, reach, runs, block) for block in blocks] for runs in own]


def _numbers(ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the numbers of the runs that ranks have side by side, and where each has an early and a late one."""
    return [[2 * each, 2 * each + 1] for each in range(ranks)], [[each, 2 * ranks - 1 - each] for each in range(ranks)]


def _spans(size: int, ranks: int) -> list[tuple[int, int]]:
    """Return where the part of each rank begins, and how long it is, as torch shards an axis."""
    part = -(-size // ranks)
    return [(min(rank * part, size), min(part, max(size - rank * part, 0))) for rank in range(ranks)]


def _cut(runs: Runs, span: tuple[int, int]) -> Runs:
    """Return a part of runs that lie side by side."""
    found, (start, count), at = [], span, 0
    for first, length in runs:
        low, high = max(start, at), min(start + count, at + length)
        if low < high:
            found.append((first + low - at, high - low))
        at += length
    return found or [(0, 0)]


def _padded(array: Any, axis: int, before: int, after: int, value: float) -> Any:
    """Return an array with a number before and behind it."""
    shape, parts = list(array.shape), [array]
    for at, count in ((0, before), (2, after)):
        if count:
            parts.insert(at, array.new_full((*shape[:axis], count, *shape[axis + 1 :]), value))
    return torch.cat(parts, axis) if len(parts) > 1 else array


def _aligned(array: Any, term: str, wanted: str) -> Any:
    """Return an array with these axes, of size 1 where it lacks one."""
    found = array.permute([term.index(label) for label in wanted if label in term])
    for axis, label in enumerate(wanted):
        found = found if label in term else found.unsqueeze(axis)
    return found
