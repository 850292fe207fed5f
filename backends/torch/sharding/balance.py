"""Causal attention of shared queries: each rank gets early and late ones, so that all see as many keys together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.nn.functional import all_to_all_single


def balanced(
    attend: Callable[[Any, int], tuple[Any, ...]], query: Any, axis: int, axes: tuple[int, ...], mesh: Any, dim: int
) -> tuple[Any, ...]:
    """Return this rank's part of each result; other ranks compute half of it.

    Each rank has two runs of queries. Of ``n`` ranks, this one computes runs ``rank`` and ``2 * n - 1 - rank``.

    Args:
        attend: takes a run of queries and where it begins, and returns the results for it.
        query: the rank's queries, an even number of them and as many as each rank has.
        axis: of the queries.
        axes: the same, of each result.
        mesh, dim: the ranks, and the dimension of the mesh along which they are.
    """
    ranks, rank, size = mesh.size(dim), mesh.get_local_rank(dim), query.shape[axis] // 2
    group, mine = mesh.get_group(dim), (rank, 2 * ranks - 1 - rank)
    goes = [_computing(2 * rank + at, ranks) for at in (0, 1)]
    comes = [run // 2 for run in mine]
    runs = query.unflatten(axis, (2, size)).movedim(axis, 0)
    swapped = goes[0] > goes[1]  # what is sent lies in the order of the ranks that get it
    sent = _exchanged(runs.flip(0) if swapped else runs, goes, comes, group)
    found = [attend(part, run * size) for part, run in zip(sent.unbind(0), mine, strict=True)]
    results = []
    for each, place in zip(zip(*found, strict=True), axes, strict=True):
        back = _exchanged(torch.stack(each), comes, goes, group)
        results.append((back.flip(0) if swapped else back).movedim(0, place).flatten(place, place + 1))
    return tuple(results)


def _computing(run: int, ranks: int) -> int:
    """The rank that computes a run of queries."""
    return run if run < ranks else 2 * ranks - 1 - run


def _exchanged(runs: Any, goes: list[int], comes: list[int], group: Any) -> Any:
    """Return the two runs that come from ranks, for those that go to others; in the order of the ranks."""
    ranks = range(torch.distributed.get_world_size(group))
    received, sent = ([others.count(rank) for rank in ranks] for others in (comes, goes))
    found = torch.empty_like(runs, memory_format=torch.contiguous_format)
    exchange: Callable[..., Any] = all_to_all_single
    return exchange(found, runs.contiguous(), received, sent, group)
