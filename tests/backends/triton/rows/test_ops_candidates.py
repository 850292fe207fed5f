"""Every tiling that may be chosen for an operator gives right results, and the same ones on every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from ops_cases import ROWS, first_result, tensors_of
from ops_problems import DEVICE, assert_near, gradients, kernels, leaf

from einops_fast import ops
from einops_fast.backends.triton.rows import tilings as row_tilings
from einops_fast.backends.triton.rows.contest import Contest, Way
from einops_fast.backends.triton.rows.rows import Rows, RowTiling
from einops_fast.runtime.plan_cache import clear_plans


class Forced:
    """Takes the way of one number in every contest, or the last one, and keeps count."""

    def __init__(self, at: int) -> None:
        self.at, self.most, self.names = at, 0, list[str]()

    def __enter__(self) -> Forced:
        clear_plans()

        def choose(contest: Contest, arrays: Sequence[Any]) -> tuple[Way, bool]:
            self.most = max(self.most, len(contest.ways))
            way = contest.ways[min(self.at, len(contest.ways) - 1)]
            self.names.append(f"{contest.call.problem}: {way.name}")
            return way, True

        self._patch = mock.patch.object(Contest, "choose", choose)
        self._patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.stop()
        clear_plans()


SHAPES = {
    "short": ((18, 70), "contiguous"),
    "long": ((2, 4100), "contiguous"),
    "odd, in parts": ((2 if DEVICE == "cuda" else 1, 33001), "contiguous"),
    "down": ((40, 24), "reversed"),
}
if DEVICE == "cuda":  # Triton's interpreter takes long, knows no alignment, and the parts are odd too
    SHAPES |= {"odd": ((3, 2057), "contiguous"), "many short": ((40, 70), "contiguous")}
    SHAPES |= {"short, aligned": ((18, 96), "contiguous"), "a million and three": ((2, 1_000_003), "contiguous")}


def others(count: int) -> list[int]:
    """Of so many ways, those to try after the first one: all; in Triton's interpreter, which takes long, two."""
    return [*range(1, count)] if DEVICE == "cuda" else sorted({count // 2, count - 1} - {0})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ROWS)
def test_candidates(name: str, shape: str) -> None:
    case, (sizes, layout) = ROWS[name], SHAPES[shape]
    tensors = [leaf(each) for each in tensors_of(case.takes, *sizes, dtype="float32", layout=layout)]
    expected = gradients(case.native, [leaf(each.double()) for each in tensors], rounded="float32")
    native = gradients(case.native, tensors)
    to_do, names = [0], set[str]()
    for at in to_do:
        with Forced(at) as forced, kernels():
            got = gradients(case.ours, tensors)
            if DEVICE == "cuda":  # Triton's interpreter has no order to get wrong
                assert all(map(torch.equal, got, gradients(case.ours, tensors)))
            if case.operator == "norm":  # the statistics are for gradients only
                plain = first_result(case.ours)(*[each.detach() for each in tensors])
                assert torch.equal(plain, got[0])
        if at == 0:
            assert forced.most > 1
            to_do += others(forced.most)
        names |= set(forced.names)
        for found, wanted, theirs in zip(got, expected, native, strict=True):
            # What is next to nothing, as 1 by a million is, has to be right for what it is.
            scale = float(wanted.detach().abs().max()) or 1.0
            assert_near(found.detach() / scale, wanted / scale, theirs / scale, 3.0)
    assert len(names) >= len(to_do)


@pytest.mark.parametrize("columns", [70, 72])  # whether four neighbours are drawn together
def test_what_is_dropped_does_not_depend_on_tiles(columns: int) -> None:
    x, weight, bias = tensors_of("vv", 40, columns, dtype="float32")
    at, most, before = 0, 1, None
    while at < most:
        with Forced(at) as forced, kernels():
            torch.manual_seed(5)
            _, summed = ops.dropout_add_layer_norm(leaf(x), x, weight, bias, 0.5)
            activated = ops.dropout_bias_activation(leaf(x), bias, p=0.5)
            back = [*torch.autograd.grad(activated.sum(), activated.grad_fn.next_functions[0][0].variable), summed]
        most, at = forced.most, at + 1
        before = before or [activated, *back]
        assert all(map(torch.equal, before, [activated, *back]))
    assert most > 1


CANDIDATES: dict[str, Callable[[Rows, int], list[RowTiling]]] = {
    "rows": lambda rows, size: row_tilings.row_tilings(rows, size, 1, 2, SHARED),
    "two values": lambda rows, size: row_tilings.row_tilings(rows, size, 2, 2, SHARED),
    "sums": lambda rows, size: row_tilings.sums_tilings(rows, size, 3, SHARED),
    "gradient": lambda rows, size: row_tilings.gradient_tilings(rows, size, 2, 3, SHARED),
    "columns": lambda rows, size: row_tilings.column_tilings(rows, size, 3, SHARED),
    "elements": row_tilings.element_tilings,
    "loss": lambda rows, size: row_tilings.loss_tilings(rows, size, False, SHARED),
    "loss gradient": lambda rows, size: row_tilings.loss_tilings(rows, size, True, SHARED),
}

SHARED = 100 << 10
