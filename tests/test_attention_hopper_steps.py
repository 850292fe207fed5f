"""What Hopper's attention kernels compute, without such a GPU: their sources are executed by NumPy, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from attention_problems import DEVICE, Poisoned, attention, check

torch: Any = pytest.importorskip("torch")

from gluon_on_cpu import hopper_on_cpu  # noqa: E402

from einops_fast.backends import torch_attention_runs  # noqa: E402
from einops_fast.backends.triton.attention import backward_plan  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="is for where there is no GPU")

PROGRAMS = 4
"""So few that each has several tiles."""


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[str]]:
    with (
        hopper_on_cpu() as found,
        mock.patch.object(torch_attention_runs, "_device", return_value=((9, 0), PROGRAMS)),
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_forward_plans", {}),
        mock.patch.object(torch_attention_runs, "_backward_plans", {}),
        # Even a small bias is summed up in whole tiles.
        mock.patch.object(backward_plan, "_PROGRAMS", 1),
    ):
        yield found


CASES: dict[str, dict[str, Any]] = {
    "plain": {"q_len": 140, "kv_len": 200},
    "long": {"batch": (), "q_len": 1030, "kv_len": 70},
    "causal, keys that none sees": {"q_len": 100, "kv_len": 300, "causal": True},
    "window": {"q_len": 200, "kv_len": 200, "window": (40, 30), "softcap": 3.0},
    "bias": {"bias": (2, 2, 140, 200)},
    "bias over batch": {"bias": (1, 2, 140, 200), "causal": True, "softcap": 3.0},
    "bias over heads": {"bias": (2, 1, 140, 208), "kv_len": 208, "mask": (1, 2, 140, 208), "window": (70, 30)},
    "one bias": {"bias": (1, 1, 140, 200)},
    "by key and by query": {"bias": (1, 2, 1, 200), "mask": (2, 1, 140, 1)},
    "grouped": {
        "batch": (2, 1, 3), "k_batch": (2, 1, 1), "kv_len": 208, "bias": (1, 1, 3, 140, 208), "mask": (2, 1, 1, 1, 208),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case: str, ran: list[str]) -> None:
    options = {"q_len": 140, "kv_len": 200, **CASES[case]}
    spec, inputs = attention(head_dim=16, dtype="float16", **options)
    if spec.mask is not None and spec.mask[-2:] == (140, 208):
        inputs.mask[..., :130, :] = False
    check(spec, inputs, tolerance=3e-3)
    shared = spec.bias is not None and spec.bias[:-2] != spec.batch and spec.bias[-2] > 1
    assert ran == ["hopper_kernel", "hopper_keys_kernel", "hopper_queries_kernel"] + ["hopper_bias_kernel"] * shared
