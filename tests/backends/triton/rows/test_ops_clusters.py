"""Long rows shared by clusters: on a GPU, or executed by NumPy, where a program is a whole cluster."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
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
from einops_fast.backends.triton.rows.contest import Contest
from einops_fast.backends.triton.rows.norm import plan as norm_plan
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
