"""The attention study: what its cases cost, that wrong results are caught, and what becomes of failures."""

import json
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from einops_fast.profiles import frameworks, study
from einops_fast.profiles.__main__ import main
from einops_fast.profiles.attention import study as study_attention
from einops_fast.profiles.attention import ways as attention_ways
from einops_fast.profiles.attention.cases import FAMILIES, scaled, visible_pairs
from einops_fast.profiles.attention.check import allowed_error, canonical, largest_error, reference, seen
from einops_fast.profiles.reporting.plots import draw
from einops_fast.profiles.reporting.records import ALL, Extent, Options, Row
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.study import Task
from einops_fast.profiles.timing.ceilings import Ceilings

STUDY = STUDIES["attention"]

CASES = {case.name: case for case in FAMILIES["public"]}
SMALL = {name: scaled(case, "cpu") for name, case in CASES.items()}


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: Ceilings(1e10, 1e11))
    return frameworks.load("torch", "cpu", 1)


def measured(framework, only, **options):
    found = STUDY.measure(framework, Options(only=only, quick=True, **options))
    return {record.key[2:]: record for record in found if isinstance(record, Row)}


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


@pytest.mark.parametrize(("causal", "window"), [(True, (3, 0)), (False, (2, 4)), (True, (20, 5)), (False, (0, 0))])
def test_a_window_counts_exactly_what_is_seen(causal, window):
    import torch

    case = replace(CASES["feature-window"], q_len=9, kv_len=9, causal=causal, window=window)
    pairs = int(seen(case, 9, 9, torch.ones(1)).sum())
    assert visible_pairs(9, 9, causal, window) == pairs
    assert case.flops() == 4 * case.batch * case.heads * case.head_dim * pairs


def test_bytes_are_those_of_all_arrays():
    case = CASES["feature-bias"]
    operands = [4 * 16 * 2048 * 64] * 3 + [16 * 2048**2]
    result = operands[0]
    assert case.elements() == sum(operands) + result
    # Backward reads operands, result and cotangent, and writes the gradients of the operands.
    assert case.elements(True) == case.elements() + sum(operands) + 2 * result + sum(operands)


def test_families():
    assert len(FAMILIES["rows"]) == 8
    assert len(CASES) == len(FAMILIES["public"])
    assert {case.layout for case in FAMILIES["layouts"]} == {"bhsd", "bshd", "sbhd", "hbsd"}
    assert {(case.batch, case.kv_len) for case in FAMILIES["decode"]} == {
        (batch, kv_len) for batch in (1, 8, 128) for kv_len in (1024, 16384, 65536)
    }
    assert set(study_attention.CPU_CASES) <= CASES.keys()


@pytest.mark.parametrize(("dtypes", "count"), [((), "public rows"), (("float16",), "public"), (("float64",), "public")])
def test_float16_is_measured_in_few_cases_unless_someone_asks_for_it(dtypes, count):
    def directions(family):
        return sum(2 if case.trained else 1 for case in FAMILIES[family])

    gpu = SimpleNamespace(name="torch", device="gpu")
    extent = next(STUDY.measure(gpu, Options(dtypes=dtypes)))
    assert extent.cases == sum(map(directions, count.split()))


# Checks


@pytest.mark.parametrize("name", ["row-32x16x512x64-causal", "heads-32-8-causal", "feature-softcap-bias", "varlen"])
def test_the_reference_is_what_ours_computes_in_float64(torch, name):
    case = SMALL[name]
    given = attention_ways.extras(case, torch)
    task = Task(torch, case, "float64", True, ("ours",), given)
    made = attention_ways.attention_inputs(task, 0)
    [ours] = attention_ways.attention_ways(task)
    result, gradients = torch.gradient(lambda: ours.call(*made.operands), made.operands, made.cotangents)
    found = [result, *gradients]
    expected = reference(case, made.operands, made.cotangents, given)
    assert len(found) == len(expected) == (5 if case.bias else 4)
    assert largest_error(case, found, expected) < 1e-12
    # One position that is wrong drowns nowhere.
    found[-1] = found[-1].clone()
    canonical(case, found[-1])[..., -1, :] *= -1
    assert largest_error(case, found, expected) > allowed_error(case, "bfloat16")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "name",
    [
        "row-32x16x512x64-causal", "layout-sbhd", "heads-32-8-causal", "feature-window", "feature-softcap-bias",
        "feature-mask", "varlen", "decode-8x16k",
    ],
)  # fmt: skip
def test_flex_attention_computes_the_case(torch, name, monkeypatch):
    """Without its compiler, on a CPU: what its modifiers mean can be seen there."""
    monkeypatch.setattr(torch.torch, "compile", lambda function, **options: function)
    case = SMALL[name]
    given = attention_ways.extras(case, torch)
    task = Task(torch, case, "float32", False, ("flex",), given)
    made = attention_ways.attention_inputs(task, 0)
    [flex] = attention_ways.attention_ways(task)
    found = [flex.call(*made.operands) for _ in range(2)]
    expected = reference(case, made.operands, (), given)
    assert all(largest_error(case, [each], expected) < 1e-5 for each in found)


def test_flex_attention_has_no_gradient_of_a_bias(torch):
    case = SMALL["feature-bias"]
    task = Task(torch, case, "float32", True, ("flex",), attention_ways.extras(case, torch))
    assert not attention_ways.attention_ways(task)


# Measuring


def test_ours_is_measured_beside_torch_and_einsum(torch):
    rows = measured(torch, "layout-bshd,feature-bias,decode-1x1k")
    assert {what for _, _, what in rows} == {"ours", "native", "naive"}
    assert not any(row.failure for row in rows.values())
    assert {case for backward, case, _ in rows if backward} == {"layout-bshd", "feature-bias"}
    for (backward, case, what), row in rows.items():
        assert row.seconds > 0
        assert row.peak_bytes > 0
        assert row.flops == SMALL[case].flops(backward)
        assert row.chosen == ("cpu" if what == "ours" else "")
        assert bool(row.to_best) is (what == "ours")


def test_peers_and_directions_can_be_chosen(torch):
    rows = measured(torch, "feature-mask", peers=("naive",), forward_only=True)
    assert list(rows) == [(False, "feature-mask", "naive"), (False, "feature-mask", "ours")]


def test_wrong_results_and_gradients_fail(torch, monkeypatch):
    right = attention_ways.attention
    monkeypatch.setattr(
        attention_ways, "attention", lambda *given, **options: right(*given, **{**options, "causal": False})
    )
    rows = measured(torch, "layout-sbhd")
    for backward in (False, True):
        ours = rows[backward, "layout-sbhd", "ours"]
        assert ours.failure.startswith("wrong")
        assert ours.seconds is None
        assert not ours.guest
        assert not rows[backward, "layout-sbhd", "naive"].failure

    def detached(pattern, q, k, v, **options):
        return right(pattern, q, k.detach() + 0 * k, v, **options)

    monkeypatch.setattr(attention_ways, "attention", detached)
    rows = measured(torch, "layout-sbhd")
    assert not rows[False, "layout-sbhd", "ours"].failure
    assert rows[True, "layout-sbhd", "ours"].failure.startswith("wrong")
    [forward, backward] = STUDY.tables(list(rows.values()))
    assert forward.figures["failed"] == []
    assert backward.figures["failed"] == ["layout-sbhd"]
    assert backward.figures["best/ours"] == {}
    assert backward.cells[0][-1].startswith("failed: ours wrong")


def test_what_fails_is_a_row_and_not_the_end(torch, monkeypatch):
    def refused(*given, **options):
        raise RuntimeError("no room\nfor this")

    monkeypatch.setattr(torch.torch.nn.functional, "scaled_dot_product_attention", refused)
    rows = measured(torch, "layout-bhsd", forward_only=True)
    native = rows[False, "layout-bhsd", "native"]
    assert (native.failure, native.guest) == ("RuntimeError: no room", True)
    assert rows[False, "layout-bhsd", "ours"].seconds > 0
    monkeypatch.setattr(study_attention, "reference", refused)
    rows = measured(torch, "layout-bhsd", forward_only=True)
    assert [(row.what, row.failure, row.guest) for row in rows.values()] == [("ours", "RuntimeError: no room", False)]


def test_an_implementation_that_is_not_made_for_a_case_has_no_row(torch, monkeypatch):
    monkeypatch.setattr(study_attention, "ON_CPU", ("ours", "cudnn"))
    rows = measured(torch, "layout-bhsd", forward_only=True)
    assert [what for _, _, what in rows] == ["ours"]


def test_it_is_about_torch(tmp_path):
    [row] = STUDY.measure(frameworks.load("numpy", "cpu", 1), Options())
    assert (row.case, row.guest) == (ALL, True)


# Files


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
def test_command(tmp_path, capsys):
    arguments = ["attention", "--quick", "--device", "cpu", "--threads", "1", "--only-run", "feature-softcap"]
    assert main([*arguments, "--peers", "naive", "--out", str(tmp_path)]) == 0
    [path] = tmp_path.glob("attention-*-partial.json")
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert {row["what"] for row in rows} == {"ours", "naive"}
    assert {row["case"] for row in rows} == {"feature-softcap", "feature-softcap-bias"}
    assert "naive TFLOP/s" in path.with_suffix(".md").read_text("utf-8")
    assert "math" in (tmp_path / "report-partial.html").read_text("utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["attention", "--only-run", "nothing"])


ROWS = tuple(
    Row("torch", case, what, "bfloat16", "e", "2×16×64×64", 1e-3, 0.0, 1.0, 5e-4, moved=10**9, flops=435 * 10**9,
        backward=backward, chosen="triton" if what == "ours" else "", to_best=0.8 if what == "ours" else None)
    for case in ("row-a", "decode-b") for what in ("ours", "cudnn") for backward in (False, True)
    if not (backward and case == "decode-b")
)  # fmt: skip


def test_plots_name_every_case_and_way(tmp_path):
    pytest.importorskip("matplotlib")
    paths = draw(ROWS, tmp_path / "attention-gpu", study="attention")
    assert {path.name for path in paths if path.suffix == ".svg"} == {
        "attention-gpu-bfloat16-row.svg",
        "attention-gpu-bfloat16-decode.svg",
    }
    for path, unit in zip(sorted(tmp_path.glob("*.svg")), ("GB/s", "TFLOP/s"), strict=True):
        words = path.read_text("utf-8")
        assert all(f">{word}<" in words for word in ("ours", "cudnn", unit))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), {"bfloat16": FAMILIES["public"], "float16": FAMILIES["rows"]}),
        (Options(cases="layouts"), {"bfloat16": FAMILIES["layouts"]}),
        (Options(cases="layouts", dtypes=("float16",)), {"float16": FAMILIES["layouts"]}),
    ],
)
def test_a_gpu_does_the_rows_in_float16_too(torch, monkeypatch, options, expected):
    """A GPU in name only."""
    ahead = []
    monkeypatch.setattr(torch, "device", "gpu")
    monkeypatch.setattr(study, "run_ahead", lambda study, jobs, threads, seconds: ahead.extend(jobs) or [])
    monkeypatch.setattr(STUDY, "shared", lambda *arguments: None)
    monkeypatch.setattr(STUDY, "rows", lambda task, *others: rows.append((task.dtype, task.case, task.backward)) or [])
    monkeypatch.setattr(torch, "forget", lambda: None)
    rows = []
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
