"""What the reference holds at a time, measured: scores of as many queries as the limit lets it."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip

from einops_fast import attention
from einops_fast.attention.memory import score_memory

ROOT = Path(__file__).parents[2]
LENGTH = 2048
SCORES = 2 * LENGTH * LENGTH * 4
"""Bytes of all scores, of two heads in float32."""


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "softcap": 3.0}, {"window": (100, 0), "alibi": True}], ids=str
)
@pytest.mark.parametrize("limit", [1 << 20, 1 << 23])
def test_numpy_stays_within_the_limit(limit: int, options: dict[str, Any]) -> None:
    q = np.random.default_rng(0).normal(size=(1, LENGTH, 2, 16)).astype("float32")
    options = dict(options)
    if options.pop("alibi", False):
        options["alibi_slopes"] = np.ones(2, "float32")
    attention(q[:, :64], q, q, layout="bshd", **options)  # plans
    tracemalloc.start()
    try:
        with score_memory(limit):
            attention(q, q, q, layout="bshd", **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Beside scores: operands as they are multiplied, and the result in parts and in one.
    assert peak <= 1.5 * limit + 6 * q.nbytes
    assert peak < SCORES


_RECORDED = """
import resource
from einops_fast import attention
from einops_fast.attention.memory import score_memory
from einops_fast.backends import get_backend
get_backend("mxnet")
from mxnet import autograd, np

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

x = np.random.normal(size=(1, LENGTH, 2, 16)).astype("float32")
x.attach_grad()
for length in (64, LENGTH):
    before = peak()
    with score_memory(1 << 20), autograd.record():
        part = x[:, :length]
        found = attention(part, part, part, layout="bshd", causal=True).sum()
    found.backward()
    x.grad.wait_to_read()
print(peak() - before)
"""


def test_mxnet_holds_no_scores_for_gradients() -> None:
    mxnet_or_skip()
    command = [sys.executable, "-c", _RECORDED.replace("LENGTH", str(3 * LENGTH // 2))]
    found = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    # More than twice as many scores as above.
    assert int(found.stdout) < 1.5 * SCORES


@pytest.mark.parametrize("wanted", ["q k v bias sinks", "v", "bias", "k sinks"])
def test_gradients_of_mxnet_in_pieces_are_those_of_the_whole(wanted: str) -> None:
    mxnet = mxnet_or_skip()
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 9, 4, 8), "k": (2, 7, 2, 8), "v": (2, 7, 2, 6), "bias": (4, 9, 7), "sinks": (4,), "mask": (2, 7)}
    given = {name: mxnet.np.array(rng.normal(size=shape)) for name, shape in shapes.items()}
    mask = given.pop("mask") > -0.5
    leaves = [given[name] for name in wanted.split()]
    for array in leaves:
        array.attach_grad()
    found = []
    for limit in (1, 1 << 12, 1 << 30):
        with score_memory(limit), mxnet.autograd.record():
            result, lse = attention(
                *[given[name] for name in "qkv"], layout="bshd", bias=("h i j", given["bias"]), causal="bottom_right",
                sinks=("h", given["sinks"]), mask=("b j", mask), return_lse=True, softcap=3.0,
            )  # fmt: skip
            total = (result * result).sum() + (lse * lse).sum()
        total.backward()
        found.append([result.asnumpy(), *[array.grad.asnumpy() for array in leaves]])
    for other in found[:-1]:
        for one, two in zip(other, found[-1], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)
    assert all(each.any() for each in found[0])
