"""Pieces of attention whose sequence ranks share: what queries see of keys is what they see in the whole."""

import random
from itertools import pairwise
from math import inf

import pytest
import torch

from einops_fast.attention.options import Options
from einops_fast.backends.torch.sharding.attention import cheapest
from einops_fast.backends.torch.sharding.pieces import kept, pieces_of, reach_of
from einops_fast.backends.torch.sharding.sequence import pieces_by_rank, runs_of


def seen(options: Options, queries: int, keys: int) -> torch.Tensor:
    from_end = "bottom_right" in (options.causal, options.alignment)
    ahead = torch.arange(queries)[:, None] + (keys - queries if from_end else 0) - torch.arange(keys)
    before, after = options.window or (None, None)
    allowed = ahead <= (inf if before is None else before)
    if after is not None:
        allowed &= ahead >= -after
    return allowed & (ahead >= 0) if options.causal else allowed


def some_runs(chance: random.Random, size: int) -> list[tuple[int, int]]:
    cuts = sorted([0, size, *[chance.randint(0, size) for _ in range(chance.randint(0, 3))]])
    return [(start, end - start) for start, end in pairwise(cuts) if chance.random() < 0.7]


def test_pieces_see_what_their_positions_see_in_the_whole_and_nothing_twice() -> None:
    chance = random.Random(0)
    for _ in range(500):
        queries, keys = chance.randint(0, 12), chance.randint(0, 12)
        causal = chance.choice([False, True, "bottom_right"])
        window = chance.choice([None, None, (2, 1), (None, 2), (0, 3), (3, 0), (1, None)])
        alignment = "bottom_right" if causal is False and chance.random() < 0.5 else None
        options = Options(causal=causal, alignment=alignment, window=window)
        rows, columns = some_runs(chance, queries), some_runs(chance, keys)
        if chance.random() < 0.3:
            rows = columns = [run for run in rows if sum(run) <= keys]
        places = [[at for start, count in runs for at in range(start, start + count)] for runs in (rows, columns)]
        found = torch.zeros(len(places[0]), len(places[1]), dtype=torch.int64)
        for piece in pieces_of(options, reach_of(options, queries, keys), rows, columns):
            (first, count), (begin, length) = piece.queries, piece.keys
            found[first : first + count, begin : begin + length] += seen(piece.options, count, length)
        wanted = seen(options, queries, keys)[places[0]][:, places[1]].long()
        assert torch.equal(found, wanted), (options, queries, keys, rows, columns)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_block_of_causal_keys_is_one_call_that_libraries_have_and_as_much_work_on_each_rank(ranks: int) -> None:
    size, options = 4 * ranks, Options(causal=True)
    runs = runs_of(size, ranks, True)
    for rank, own in enumerate(pieces_by_rank(options, size, size, runs, runs)):
        for source, pieces in enumerate(own):
            (piece,) = pieces
            assert piece.options == options._replace(causal=rank == source)
            assert piece.queries[1] * piece.keys[1] == (4 if rank == source else 2) * 4


def test_a_window_needs_few_blocks_and_causal_attention_none_of_later_ones() -> None:
    runs = runs_of(16, 4, False)
    for options, needed in (
        (Options(window=(2, 0)), [[0], [0, 1], [1, 2], [2, 3]]),
        (Options(causal=True, window=(5, 5)), [[0], [0, 1], [0, 1, 2], [1, 2, 3]]),
        (Options(window=(None, 0)), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]),
    ):
        pieces = pieces_by_rank(options, 16, 16, runs, runs)
        assert [[at for at, each in enumerate(own) if each] for own in pieces] == needed


def test_weights_are_dropped_by_their_positions_alone() -> None:
    seed, places = torch.tensor([7]), [torch.arange(size) for size in (3, 40, 300)]
    whole = kept(seed, places, 0.3)
    assert torch.equal(whole[1:, 7:20, 50:], kept(seed, [places[0][1:], places[1][7:20], places[2][50:]], 0.3))
    share = whole.double()
    assert abs(share.mean() - 0.7) < 0.01
    assert max(abs(share.mean((0, 1)) - 0.7).max(), abs(share.mean(2) - 0.7).max()) < 0.2
    other = kept(seed + 1, places, 0.3)
    for one, another in ((whole[0], whole[1]), (whole[:, 1:], whole[:, :-1]), (whole, other)):
        assert abs((one == another).double().mean() - 0.58) < 0.02  # as of numbers that have nothing in common


def test_forms_are_chosen_by_bytes() -> None:
    assert cheapest({"gather": 3.0, "ring": 3.0, "heads": 2.0}, 1) == "heads"
    assert cheapest({"gather": 3.0, "ring": 1.0, "heads": 2.0}, 1) == "ring"
    assert cheapest({"gather": 3.0, "ring": 3.0, "heads": 3.0}, 1) == "gather"
    assert cheapest({"gather": 3e9, "ring": 3e9, "heads": 4e9}, 1e9) == "ring"
    assert cheapest({"gather": 3e9}, 1e9) == "gather"
