"""What Hopper's kernel for few queries computes, without such a GPU: its source is executed by NumPy, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from attention_problems import DEVICE, Poisoned, attention, check, randn, run

torch: Any = pytest.importorskip("torch")

from gluon_on_cpu import hopper_on_cpu  # noqa: E402

from einops_fast.attention.spec import AttentionInputs, AttentionSpec  # noqa: E402
from einops_fast.backends.torch.attention import runs as torch_attention_runs  # noqa: E402
from einops_fast.backends.triton.attention import plan as attention_plan  # noqa: E402
from einops_fast.backends.triton.attention.decode import plan as hopper_decode_plan  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="is for where there is no GPU")


@pytest.fixture(params=[1, 5])
def programs(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """So many programs, on memory that is poisoned; gives the names of the kernels that ran."""
    with (
        hopper_on_cpu() as found,
        mock.patch.object(torch_attention_runs, "_device", return_value=((9, 0), request.param)),
        # Here blocks are so small that few keys are many of them.
        mock.patch.object(attention_plan, "suits_short", return_value=False),
        mock.patch.object(hopper_decode_plan, "_BLOCKS", (16,)),
        mock.patch.object(hopper_decode_plan, "_AHEAD", 0),
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_calls", {}),
    ):
        yield found


GROUPED = {"batch": (2, 2, 3), "k_batch": (2, 2, 1)}

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one query": {"q_len": 1},
    "one key": {"kv_len": 1, "causal": True, "alignment": "bottom_right"},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "causal, top left": {"causal": True},
    "window": {"window": (20, 3), "alignment": "bottom_right"},
    "softcap, sinks": {"softcap": 2.0, "sinks": (1, 2, 3)},
    "another head_dim": {"head_dim": 24, "v_head_dim": 40},
    "heads of their own": {"batch": (3, 2), "k_batch": (3, 2)},
    "no batch": {"batch": (), "k_batch": ()},
    "values of all": {"v_batch": (1, 2, 1)},
    "order": {"order": (0, 3, 1, 2, 4)},
}


@pytest.mark.parametrize("case", CASES)
def test_results(case: str, programs: list[str]) -> None:
    spec, inputs = attention(**{"q_len": 5, "kv_len": 70, "dtype": "float16", **GROUPED, **CASES[case]})
    check(spec, inputs, gradients=False, tolerance=3e-3)
    assert programs == ["hopper_decode_kernel"]


def _cached(lengths: tuple[int, ...], **options: Any) -> tuple[AttentionSpec, AttentionInputs]:
    count = len(lengths)
    shapes = {"batch": (count, 2, 3), "k_batch": (count, 2, 1)}
    spec, inputs = attention(q_len=2, kv_len=70, dtype="float16", cache=True, **shapes, **options)
    inputs.cache_seqlens = torch.tensor(lengths, dtype=torch.int32)
    return spec, inputs


LENGTHS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window, sinks": {"window": (9, None), "causal": True, "sinks": (1, 2, 3)},
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths_of_sequences(case: str, programs: list[str]) -> None:
    """Some of which are empty, or longer than there is room; what is beyond them is never looked at."""
    spec, inputs = _cached((0, 70, 1, 33, 0, 99), **LENGTHS[case])
    expected = check(spec, inputs, gradients=False, tolerance=3e-3)
    for at, length in enumerate((0, 70, 1, 33, 0, 70)):
        inputs.k[at, :, :, length:] = inputs.v[at, :, :, length:] = float("nan")
    found = run(spec, inputs, gradients=False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert programs == ["hopper_decode_kernel"] * 2


def test_more_sequences_than_are_looked_at_at_once(programs: list[str]) -> None:
    lengths = tuple(int(length) for length in torch.randint(0, 71, (150,), generator=torch.Generator().manual_seed(0)))
    spec, inputs = attention((150, 1), 1, 70, dtype="float16", cache=True, causal=True)
    inputs.cache_seqlens = torch.tensor(lengths)
    check(spec, inputs, gradients=False, tolerance=3e-3)
    assert programs == ["hopper_decode_kernel"]


@pytest.mark.parametrize("page_size", [16, 32, 48])
@pytest.mark.parametrize("block", [16, 32])
def test_pages(page_size: int, block: int, programs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_decode_plan, "_BLOCKS", (block,))
    count = 96 // page_size
    spec, inputs = _cached((96, 7), causal=True)
    spec = replace(spec, kv_len=96, page_size=page_size, k_batch=(9 * count, 2, 1), v_batch=(9 * count, 2, 1))
    order = torch.randperm(9 * count, generator=torch.Generator().manual_seed(0))
    inputs.block_table = order[: 2 * count].view(2, count).int()
    # As a cache lies: tokens of a page, then heads.
    inputs.k, inputs.v = (
        randn(9 * count, page_size, 2, 1, 16, dtype="float16", seed=seed).permute(0, 2, 3, 1, 4) for seed in (1, 2)
    )
    check(spec, inputs, gradients=False, tolerance=3e-3)
    assert programs == ["hopper_decode_kernel"]


def test_any_strides(programs: list[str]) -> None:
    spec, inputs = attention(**GROUPED, q_len=3, kv_len=70, dtype="float16", sinks=(2, 1, 3))
    expected = run(spec, inputs, gradients=False)
    for axes in ((0, 3, 1, 2, 4), (3, 1, 0, 2, 4)):
        back = [axes.index(at) for at in range(5)]
        for name in ("q", "k", "v"):
            moved = getattr(inputs, name).permute(axes).contiguous().permute(back)
            found = run(spec, AttentionInputs(**{**vars(inputs), name: moved}), gradients=False)
            assert all(torch.equal(found[each], value) for each, value in expected.items())
    assert programs == ["hopper_decode_kernel"] * 7


def test_counters_are_left_as_they_were(programs: list[str]) -> None:
    spec, inputs = attention(**GROUPED, q_len=3, kv_len=70, dtype="float16")
    first, second = (run(spec, inputs, gradients=False) for _ in range(2))
    assert all(torch.equal(second[name], value) for name, value in first.items())
    ((_, counters),) = torch_attention_runs.MEMORY._counters.values()
    assert not counters.any()
