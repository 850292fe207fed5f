"""The attention study: what its cases cost, that wrong results are caught, and what becomes of failures."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from einops_fast import attention
from einops_fast.profiles import study
from einops_fast.profiles.attention import study as study_attention
from einops_fast.profiles.attention.cases import FAMILIES
from einops_fast.profiles.attention.check import canonical, largest_error, reference
from einops_fast.profiles.reporting.records import ALL, Extent, Options
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.study import Task
from einops_fast.profiles.timing.accuracy import rounded

STUDY = STUDIES["attention"]

CASES = {case.name: case for case in FAMILIES["public"]}
SMALL = {name: case.scaled("cpu", "float32") for name, case in CASES.items()}


def prepared(torch, name, dtype, backward):
    """A task of a small case with its operands, and what is right for them."""
    case = SMALL[name]
    task = Task(torch, case, dtype, backward)
    task = replace(task, shared=STUDY.shared(task))
    given = STUDY.inputs(task, 0)
    return task, given, reference(case, given.operands, given.cotangents, task.shared)


# Cases


def test_flops_are_those_of_the_convention():
    row = CASES["row-2x16x8192x64"]
    assert row.flops() == 4 * 2 * 16 * 8192**2 * 64
    assert row.flops(True) == 3.5 * row.flops()
    assert CASES["row-2x16x8192x64-causal"].flops() == row.flops() // 2
    assert CASES["heads-32-8"].flops() == 4 * 2 * 32 * 4096**2 * 128
    assert CASES["feature-values-odd"].flops() == 2 * 4 * 16 * 2048**2 * (75 + 53)
    varlen = CASES["varlen"]
    assert varlen.flops() == 4 * 16 * 64 * sum(length**2 for length in varlen.lengths)
    assert CASES["decode-8x16k"].flops() == 4 * 8 * 32 * 16384 * 128


# Checks


@pytest.mark.parametrize("name", ["row-32x16x512x64-causal", "heads-32-8-causal", "feature-softcap-bias", "varlen"])
def test_the_reference_is_what_ours_computes_in_float64(torch, name):
    task, given, expected = prepared(torch, name, "float64", True)
    ours = STUDY.makers["ours"](task)
    result, gradients = torch.gradient(lambda: ours(*given.operands), given.operands, given.cotangents)
    found = [result, *gradients]
    assert len(found) == len(expected) == (5 if task.case.bias else 4)
    assert largest_error(task.case, found, expected) < 1e-12
    # One position that is wrong drowns nowhere.
    found[-1] = found[-1].clone()
    canonical(task.case, found[-1])[..., -1, :] *= -1
    assert largest_error(task.case, found, expected) > rounded("bfloat16", task.case.kv_len)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "name",
    ["row-32x16x512x64-causal", "layout-sbhd", "heads-32-8-causal", "feature-window", "feature-softcap-bias",
     "feature-mask", "varlen", "decode-8x16k"],
)  # fmt: skip
def test_flex_attention_computes_the_case(torch, name, monkeypatch):
    """Without its compiler, on a CPU: what its modifiers mean can be seen there."""
    monkeypatch.setattr(torch.torch, "compile", lambda function, **options: function)
    task, given, expected = prepared(torch, name, "float32", False)
    flex = STUDY.makers["flex"](task)
    found = [flex(*given.operands) for _ in range(2)]
    assert all(largest_error(task.case, [each], expected) < 1e-5 for each in found)


@pytest.mark.parametrize("name", ["layout-sbhd", "heads-32-8-causal", "feature-window", "feature-softcap", "varlen"])
def test_flash_attention_4_computes_the_case(torch, name, monkeypatch):
    """By a stand-in for its package, on arrays with the heads after the positions."""

    def dense(q, k, v, causal, window_size, softcap):
        window = None if window_size == (None, None) else window_size
        return attention(q, k, v, layout="bshd", causal=causal, window=window, softcap=softcap), None

    def packed(q, k, v, causal, window_size, softcap, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        assert (cu_seqlens_k is cu_seqlens_q, max_seqlen_k, window_size) == (True, max_seqlen_q, (None, None))
        return attention(q, k, v, layout="thd", cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q), None

    library = SimpleNamespace(flash_attn_func=dense, flash_attn_varlen_func=packed)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", library)
    task, given, expected = prepared(torch, name, "float32", False)
    found = STUDY.makers["fa4"](task)(*given.operands)
    assert largest_error(task.case, [found], expected) < 1e-5


# Measuring


def test_ours_is_measured_beside_torch_and_einsum(torch, measured):
    rows = measured("attention", torch, "layout-bshd,feature-bias,decode-1x1k")
    assert {what for _, _, what in rows} == {"ours", "native", "naive"}
    assert not any(row.failure for row in rows.values())
    assert {case for backward, case, _ in rows if backward} == {"layout-bshd", "feature-bias"}
    for (backward, case, what), row in rows.items():
        assert row.seconds > 0
        assert row.peak_bytes > 0
        assert row.flops == SMALL[case].flops(backward)
        assert row.chosen == ("cpu" if what == "ours" else "")
        assert bool(row.to_best) is (what == "ours")


def test_peers_and_directions_can_be_chosen(torch, measured):
    rows = measured("attention", torch, "feature-mask", peers=("native",), forward_only=True)
    assert list(rows) == [(False, "feature-mask", "native"), (False, "feature-mask", "ours")]
    # An implementation that isn't made for a case has no row.
    rows = measured("attention", torch, "layout-bhsd", peers=("cudnn",), forward_only=True)
    assert [what for _, _, what in rows] == ["native", "ours"]


def test_what_fails_is_a_row_and_not_the_end(torch, measured, monkeypatch):
    def refused(*given, **options):
        raise RuntimeError("no room\nfor this")

    monkeypatch.setattr(study_attention, "reference", refused)
    rows = measured("attention", torch, "layout-bhsd", forward_only=True)
    assert [(row.what, row.failure, row.guest) for row in rows.values()] == [("ours", "RuntimeError: no room", False)]


@pytest.mark.parametrize("name", ["attention", "ops", "first-calls"])
def test_it_is_about_torch(numpy, name):
    [row] = STUDIES[name].measure(numpy, Options())
    assert (row.case, row.guest) == (ALL, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), {"bfloat16": FAMILIES["public"], "float16": FAMILIES["rows"]}),
        (Options(cases="layouts"), {"bfloat16": FAMILIES["layouts"]}),
        (Options(cases="layouts", dtypes=("float16",)), {"float16": FAMILIES["layouts"]}),
    ],
)
def test_a_gpu_does_the_rows_in_float16_too_and_compiles_ahead(torch, monkeypatch, options, expected):
    """A GPU in name only."""
    ahead, rows = [], []
    monkeypatch.setattr(torch, "device", "gpu")
    monkeypatch.setattr(torch, "forget", lambda: None)
    monkeypatch.setattr(study, "run_ahead", lambda study, jobs, threads, seconds: ahead.extend(jobs) or [])
    monkeypatch.setattr(STUDY, "shared", lambda *arguments: None)
    monkeypatch.setattr(STUDY, "rows", lambda task, *others: rows.append((task.dtype, task.case, task.backward)) or [])
    found = list(STUDY.measure(torch, options))
    assert rows == [
        (dtype, case, backward)
        for dtype, cases in expected.items()
        for case in cases
        for backward in (False, True)[: 1 + case.trained]
    ]
    assert found[0] == Extent(len(rows))
    compiled = {(dtype, name, backward) for _, name, dtype, backward, _ in ahead}
    assert compiled == {(dtype, case.name, backward) for dtype, case, backward in rows if case.elements() <= 1 << 30}
    assert {what for *_, what in ahead} == {"flex", "triton"}
