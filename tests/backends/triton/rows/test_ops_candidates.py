"""Every tiling that may be chosen for an operator gives right results, and the same ones on every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import torch
from ops_problems import DEVICE, assert_near, gradients, kernels, laid_out, leaf, randn

from einops_fast import autotune, ops
from einops_fast.backends.triton.rows import tilings as row_tilings
from einops_fast.backends.triton.rows.contest import Contest, Way
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, rows_of, typical
from einops_fast.runtime.plan_cache import clear_plans


def target(x: Any) -> Any:
    return torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, weight, bias: ops.softmax(x),
    "log_softmax": lambda x, weight, bias: ops.log_softmax(x),
    "causal": lambda x, weight, bias: ops.log_softmax(x, causal=True),
    "layer_norm": lambda x, weight, bias: ops.layer_norm(x, weight=weight, bias=bias),
    "rms_norm": lambda x, weight, bias: ops.rms_norm(x, weight=weight, eps=1e-5),
    "sum": lambda x, weight, bias: ops.dropout_add_layer_norm(x, x * 2, weight, bias),
    "bias_gelu": lambda x, weight, bias: ops.bias_gelu(x, bias),
    "cross_entropy": lambda x, weight, bias: ops.cross_entropy(x, target(x), weight.abs() + 1, label_smoothing=0.1),
}


def operands(shape: tuple[int, ...], layout: str) -> list[Any]:
    rows = laid_out(randn(*shape, dtype="float32"), layout)
    return [rows, *(randn(shape[-1], dtype="float32", seed=at) for at in (1, 2))]


TAKES = {"softmax": 1, "log_softmax": 1, "causal": 1, "rms_norm": 2}
"""How many tensors a function needs, if not all three."""


def results(name: str, given: Sequence[Any]) -> list[Any]:
    """The result and the gradients."""
    used = [leaf(each) for each in given[: TAKES.get(name, 3)]]
    if name == "bias_gelu":
        return gradients(lambda x, bias: FUNCTIONS[name](x, None, bias), [used[0], used[2]])
    if name == "cross_entropy":
        return gradients(lambda x: FUNCTIONS[name](x, given[1], None), used[:1])
    return gradients(lambda *tensors: FUNCTIONS[name](*tensors, *(None,) * (3 - len(tensors))), used)


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
    SHAPES |= {"short, aligned": ((18, 96), "contiguous")}


@pytest.mark.parametrize("inner", [24, 16, 5])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "cross_entropy"])
def test_neighbours_in_different_rows_along_two_axes(name: str, inner: int) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "softmax": lambda x, weight: ops.softmax(x, 1),
        "layer_norm": lambda x, weight: ops.layer_norm(x, weight=weight, dim=1),
        "cross_entropy": lambda x, weight: ops.cross_entropy(x, x[:, 0].detach().abs().long(), dim=1),
    }
    tensors = [leaf(randn(5, 70, inner, dtype="float32")), leaf(randn(70, dtype="float32", seed=1))]
    tensors = tensors if name == "layer_norm" else tensors[:1]

    def function(x: Any, weight: Any = None) -> Any:
        return functions[name](x, weight)

    with mock.patch("einops_fast.backends.torch.operator.on_gpu", return_value=False):
        expected = gradients(function, [leaf(each.double()) for each in tensors])
    with kernels():
        assert_near(gradients(function, tensors), expected)


def others(count: int) -> list[int]:
    """Of so many ways, those to try after the first one: all; in Triton's interpreter, which takes long, two."""
    return [*range(1, count)] if DEVICE == "cuda" else sorted({count // 2, count - 1} - {0})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_candidates(name: str, shape: str) -> None:
    given = operands(*SHAPES[shape])
    # By torch's own functions, of which the other tests make sure.
    with mock.patch("einops_fast.backends.torch.operator.on_gpu", return_value=False):
        expected, native = results(name, [each.double() for each in given]), results(name, given)
    to_do, names = [0], set[str]()
    for at in to_do:
        with Forced(at) as forced, kernels():
            got = results(name, given)
            if DEVICE == "cuda":  # Triton's interpreter has no order to get wrong
                assert all(map(torch.equal, got, results(name, given)))
            if "norm" in name:  # the statistics are for gradients only
                assert torch.equal(FUNCTIONS[name](*given), got[0])
        if at == 0:
            assert forced.most > 1
            to_do += others(forced.most)
        names |= set(forced.names)
        assert_near(got, expected, native, 3.0)
    assert len(names) >= len(to_do)


@pytest.mark.parametrize("columns", [70, 72])  # whether four neighbours are drawn together
def test_what_is_dropped_does_not_depend_on_tiles(columns: int) -> None:
    x, weight, bias = operands((40, columns), "contiguous")
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


def test_backward_has_the_mode_of_forward() -> None:
    """Autograd's threads don't know of the caller's block."""
    modes: list[str] = []

    def choose(contest: Contest, arrays: Sequence[Any]) -> tuple[Way, bool]:
        modes.append(contest.site.mode)
        return contest.ways[0], True

    clear_plans()
    x = leaf(randn(4, 6, dtype="float32"))
    with kernels(), mock.patch.object(Contest, "choose", choose):
        with autotune("never"):
            result = ops.softmax(x)
        thread = Thread(target=result.sum().backward)
        thread.start()
        thread.join()
    assert modes == ["never", "never"]


def test_gradients_in_place_are_not_measured() -> None:
    calls: list[tuple[str, bool]] = []

    def choose(contest: Contest, arrays: Sequence[Any]) -> tuple[Way, bool]:
        name = contest.call.problem.partition(",")[0]
        if name != "sum of losses":
            calls.append((name, contest.call.in_place))
        return contest.ways[0], True

    clear_plans()
    x = leaf(randn(4, 6, dtype="float32"))
    with kernels(), mock.patch.object(Contest, "choose", choose):
        for inplace in (False, True):
            ops.cross_entropy(x * 1.0, target(x), inplace_backward=inplace).backward()
    forward = "cross entropy", False
    assert calls == [forward, ("cross entropy gradient", False), forward, ("cross entropy gradient", True)]


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


@pytest.mark.parametrize("columns", [1, 37, 96, 1024, 8192, 50257, 1 << 20])
@pytest.mark.parametrize("kind", CANDIDATES)
def test_candidates_are_few_and_possible(kind: str, columns: int) -> None:
    for count in (1, 40, 1000, 100_000):
        for strides in ((columns, 1), (1, count)):
            rows = typical(rows_of((count, columns), 1, [strides] * 3))
            for size in (2, 4, 8):
                tilings = CANDIDATES[kind](rows, size)
                assert len({tiling.name for tiling in tilings}) == len(tilings) <= 6
                for tiling in tilings:
                    powers = tiling.rows, tiling.block, tiling.warps
                    assert all(each > 0 and each & (each - 1) == 0 for each in powers), tiling
                    assert tiling.warps <= 32
                    held = tiling.pieces * tiling.block
                    assert held - tiling.block < columns <= held or not tiling.whole
                    if kind not in ("columns", "elements"):
                        # Parts of rows: all columns, and none of the parts without any.
                        assert (
                            (tiling.parts - 1) * tiling.part(columns) < columns <= tiling.parts * tiling.part(columns)
                        )
                assert tilings or kind == "gradient"
