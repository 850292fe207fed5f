"""Long rows shared by clusters: on a GPU, or executed by NumPy, where a program is a whole cluster."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from gluon_on_cpu import rows_on_cpu
from ops_problems import DEVICE, check, kernels, launched, leaf, native_norm, randn

from einops_fast import ops
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.rows import cluster_tilings
from einops_fast.backends.triton.rows import plan as row_plan
from einops_fast.backends.triton.rows.cluster_tilings import Share
from einops_fast.backends.triton.rows.contest import Contest, Way
from einops_fast.backends.triton.rows.norm import plan as norm_plan
from einops_fast.backends.triton.rows.rows import rows_of
from einops_fast.backends.triton.rows.softmax import plan as softmax_plan
from einops_fast.runtime.plan_cache import clear_plans

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU with clusters"
)

DTYPES = ["float16", "float32", *(["bfloat16"] if DEVICE == "cuda" else [])]  # NumPy has no bfloat16

COLUMNS = [(512, 256), (1024, 256), (656, 256), (1280, 1024)]
"""Columns and those of a thread block: two or four have all, or three of four, the last of which aren't full, or two in
several pieces."""


def apart(x: Any) -> Any:
    """The same with rows apart, and two axes that count them."""
    return x.new_full((x.shape[0], x.shape[1] + 1, x.shape[2] + 16), torch.nan)[:, :-1, :-16].copy_(x)


@pytest.fixture
def share() -> Share:
    """What a thread block has; of eight processors each has so many, or 0: as many as there are rows for."""
    return Share(256, 2, 128)


@pytest.fixture
def clusters(share: Share) -> Iterator[list[str]]:
    """Clusters with such thread blocks, two or four for gradients of norms; gives what ran."""
    ran: list[str] = []
    choose = Contest.choose

    def by_clusters(self: Contest, arrays: Any) -> Any:
        found = [way for way in self.ways if way.name.startswith("clusters")]
        return (found[0], True) if found else choose(self, arrays)

    one, several = (share._replace(late=False),), (share._replace(each=1),)
    with ExitStack() as stack:
        if DEVICE == "cpu":
            stack.enter_context(rows_on_cpu())
        for name in ("EXPONENTIALS", "GRADIENTS_OF_EXPONENTIALS"):
            stack.enter_context(mock.patch.object(softmax_plan, name, one))
        for name in ("NORM", "CENTRED_NORM", "NORM_OF_SUM"):
            stack.enter_context(mock.patch.object(norm_plan, name, one))
        stack.enter_context(mock.patch.object(norm_plan, "GRADIENTS_OF_NORM", several))
        stack.enter_context(mock.patch.object(cluster_tilings, "_LEAST_COLUMNS", 300))
        stack.enter_context(mock.patch.object(TorchMemory, "limits", return_value=(232448, 8)))
        stack.enter_context(launched(ran))
        stack.enter_context(mock.patch.object(Contest, "choose", by_clusters))
        clear_plans()
        yield ran
    clear_plans()


@pytest.mark.parametrize(
    ("columns", "dtype", "share"),
    [(columns, dtype, Share(block, 2, 128)) for columns, block in COLUMNS for dtype in DTYPES],
)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, columns: int, dtype: str, clusters: list[str]) -> None:
    """A softmax or its logarithm, and the gradient."""
    x = leaf(apart(randn(2, 4, columns, dtype=dtype) * 3))
    check(getattr(ops, name), partial(getattr(torch, name), dim=-1), [x])
    assert clusters == ["softmax_cluster_kernel", "softmax_gradient_cluster_kernel"]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_special_values(name: str, clusters: list[str]) -> None:
    """The same of NaN, infinities and large numbers, and of a whole part of a row that adds nothing."""
    x = randn(8, 656, dtype="float32")
    inf = torch.inf
    x[0, 3], x[1, 656 - 56], x[2], x[3, :256], x[4, 0], x[5], x[6, 5] = (
        torch.nan,
        inf,
        -inf,
        -inf,
        -inf,
        -3.4e38,
        -inf,
    )
    x[4, 1:] = 3e38
    with kernels():
        found = getattr(ops, name)(x)
    torch.testing.assert_close(found, getattr(torch, name)(x, -1), equal_nan=True)
    assert clusters == ["softmax_cluster_kernel"]


def test_gradient_where_something_was_hidden(clusters: list[str]) -> None:
    """The mask is read by another kernel, and shows in the result."""
    hidden = randn(5, 656, seed=3) > 1

    def native(x: Any) -> Any:
        found = torch.log_softmax((x / 0.7).masked_fill(hidden, -torch.inf), -1)
        return found.masked_fill(hidden, -torch.inf)

    x = leaf(randn(5, 656, dtype="float32"))
    check(lambda x: ops.log_softmax(x, mask=~hidden, temperature=0.7), native, [x])
    assert clusters == ["softmax_kernel", "softmax_gradient_cluster_kernel"]


@pytest.mark.parametrize(
    ("columns", "dtype", "share"),
    [
        *((columns, "float16", Share(block, 2, 128, 0, True)) for columns, block in COLUMNS[1:]),
        *((columns, "float32", Share(block, 2, 128, 0, True)) for columns, block in COLUMNS[1:3]),
        (656, "float16", Share(256, 2, 128)),
    ],
)
@pytest.mark.parametrize(("rms", "parameters"), [(False, ""), (True, "weight"), (False, "weight bias")])
def test_norm(rms: bool, parameters: str, columns: int, dtype: str, clusters: list[str]) -> None:
    tensors = [leaf(apart(randn(2, 4, columns, dtype=dtype) + 3))]
    for at, _ in enumerate(parameters.split()):
        tensors.append(leaf(randn(columns, 2, dtype=dtype, seed=at)[:, 1]))
    check(partial(_ours, rms), partial(native_norm, rms), tensors)
    assert clusters[:2] == ["norm_cluster_kernel", "norm_gradient_cluster_kernel"]


def _ours(rms: bool, x: Any, weight: Any = None, bias: Any = None) -> Any:
    return (ops.rms_norm if rms else ops.layer_norm)(x, weight=weight, bias=bias, eps=1e-5)


@pytest.mark.parametrize("share", [Share(256, 2, 128, each) for each in (0, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_far_from_0(dtype: str, clusters: list[str]) -> None:
    """The mean is so large that numbers of 16 bits have few digits left."""
    x, weight = leaf(randn(5, 656, dtype=dtype) * 4 + 300), leaf(randn(656, dtype=dtype, seed=1))
    check(partial(_ours, False), partial(native_norm, False), [x, weight])
    assert clusters[:2] == ["norm_cluster_kernel", "norm_gradient_cluster_kernel"]


def test_norm_of_special_values(clusters: list[str]) -> None:
    x = randn(4, 656, dtype="float32")
    x[0, 3], x[1, 600], x[2] = torch.nan, torch.inf, 0.0
    with kernels():
        torch.testing.assert_close(ops.rms_norm(x, eps=1e-5), native_norm(True, x), equal_nan=True)


@pytest.mark.parametrize(
    ("columns", "share"), [(columns, Share(256, 2, 128, each)) for columns, each in ((1024, 0), (656, 1), (654, 0))]
)
def test_dropout_and_sum_as_by_the_other_kernels(columns: int, clusters: list[str]) -> None:
    """The same elements are dropped; 654 columns aren't for clusters."""
    tensors = [leaf(randn(9, columns, dtype="float32", seed=at)) for at in range(2)]
    tensors += [leaf(randn(columns, dtype="float32", seed=at)) for at in (2, 3)]
    backs = [randn(9, columns, dtype="float32", seed=at) for at in (7, 8)]

    def run() -> list[Any]:
        torch.manual_seed(5)
        with kernels():
            found = ops.dropout_add_layer_norm(*tensors, p=0.3)
            return [*found, *torch.autograd.grad(found, tensors, backs)]

    by_clusters = run()
    assert ("norm_cluster_kernel" in clusters) == ("norm_gradient_cluster_kernel" in clusters) == (columns != 654)
    with mock.patch.object(row_plan, "cluster_tilings", return_value=[]):
        clear_plans()
        clusters.clear()
        others = run()
    assert not any("cluster" in each for each in clusters)
    for found, expected in zip(by_clusters, others, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


LIMIT = 232448
"""Bytes of shared memory of an H200."""


def tilings(columns: int, *shares: Share, stride: int = 0, items: tuple[int, ...] = (2,), shared: int = LIMIT) -> Any:
    rows = rows_of((200, columns), 1, [(stride or columns, 1)] * 2)
    with mock.patch.object(cluster_tilings, "interpreted", return_value=False):
        return cluster_tilings.cluster_tilings(rows, (0, 1), items, shares, shared)


@pytest.mark.parametrize("columns", [16384, 50_000, 65_536, 131_072])
def test_which_rows_are_shared(columns: int) -> None:
    (found,) = tilings(columns, Share(8192, 8, 80))
    assert found.ctas * 8192 >= columns > found.ctas * 4096
    assert found.ragged == (columns == 50_000)
    assert not tilings(columns, Share(8192, 8, 80), stride=columns + 8), "not every row is seen to be aligned"
    assert not tilings(columns, Share(8192, 8, 80), items=()), "an address is odd"
    assert not tilings(columns, Share(8192, 8, 80), items=(8,)), "float64"
    assert not tilings(columns, Share(8192, 8, 80), shared=166912), "a GPU without clusters"


def test_what_does_not_fit() -> None:
    nothing = rows_of((0, 16384), 1, [(16384, 1)] * 2)
    with mock.patch.object(cluster_tilings, "interpreted", return_value=False):
        assert not cluster_tilings.cluster_tilings(nothing, (0, 1), (2,), [Share(8192, 8, 80)], LIMIT), "no rows"
    assert not tilings(8192, Share(4096, 4, 80)), "one program does"
    assert not tilings(131_088, Share(8192, 8, 80)), "too long for a cluster"


@pytest.mark.parametrize("shares", [cluster_tilings.EXPONENTIALS, cluster_tilings.GRADIENTS_OF_EXPONENTIALS])
@pytest.mark.parametrize("items", [(2,), (4,)])
def test_large_parts_are_for_rows_that_are_too_long_for_others(shares: Any, items: tuple[int, ...]) -> None:
    """Of 131,072 elements, 16 thread blocks have 8192 each."""
    assert {each.share.block for each in tilings(131_072, *shares, items=items)} == {8192}
    found = tilings(151_936, *shares, items=items)
    assert {(each.ctas, each.share.block, each.ragged) for each in found} == {(16, 16_384, True)}
    assert tilings(262_144, *shares, items=items)
    assert not tilings(262_160, *shares, items=items)


@pytest.mark.parametrize(("known", "launched"), [(21, [50, 21]), (90, [50]), (None, [50])])
def test_no_more_clusters_than_run_at_a_time(known: int | None, launched: list[int]) -> None:
    for several in (False, True):
        tried: list[int] = []

        def steps(clusters: int, tried: list[int] = tried) -> Any:
            tried.append(clusters)
            return [(SimpleNamespace(grid=(clusters, 1, 1), at_a_time=lambda *arrays: known), (0, 1))], ()

        way = Way("clusters", *steps(50), steps if several else None)
        for _ in range(2):
            way.prepare([None])
        assert tried == (launched if several else [50])


@pytest.mark.parametrize(
    ("rows", "columns", "first"), [(200, 65_536, "clusters"), (200, 10_000, "1×"), (5, 65_536, "1×")]
)
def test_where_clusters_are_the_rule(rows: int, columns: int, first: str) -> None:
    x = torch.empty(rows, columns, dtype=torch.float16)
    seen: list[list[str]] = []

    def look(self: Contest, *arrays: Any) -> None:
        seen.append([way.name for way in self.ways])

    with (
        mock.patch.object(cluster_tilings, "interpreted", return_value=False),
        mock.patch.object(TorchMemory, "limits", return_value=(LIMIT, 132)),
        mock.patch.object(Contest, "__call__", look),
        kernels(queued=False),
    ):
        clear_plans()
        ops.softmax(x)
    clear_plans()
    (names,) = seen
    assert names[0].startswith(first)
    assert any(name.startswith("clusters") for name in names)
