"""The study of the operators: what its cases cost, that wrong results are caught, and what becomes of failures."""

import json
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")

from browser import CHROMIUM, browse

from einops_fast.profiles import compare, frameworks, study
from einops_fast.profiles.__main__ import main
from einops_fast.profiles.ops import cases as ops_cases
from einops_fast.profiles.ops import check as ops_check
from einops_fast.profiles.ops import libraries as ops_libraries
from einops_fast.profiles.ops import models as ops_models
from einops_fast.profiles.ops import study as study_ops
from einops_fast.profiles.ops import ways as ops_ways
from einops_fast.profiles.ops.cases import CPU_NAMES, FAMILIES, MODELS, ORDER, PASSES, scaled
from einops_fast.profiles.ops.check import allowed_error, dropout_wrong, errors
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.plots import draw
from einops_fast.profiles.reporting.records import ALL, Ceiling, Extent, Machine, Options, Row, task
from einops_fast.profiles.reporting.results import Result
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.study import Task
from einops_fast.profiles.timing import measure
from einops_fast.profiles.timing.ceilings import Ceilings
from einops_fast.profiles.timing.clocks import HostClock

STUDY = STUDIES["ops"]

CASES = {case.name: case for case in FAMILIES["public"]}
SMALL = {name: scaled(case, "cpu", "float32") for name, case in CASES.items()}

ONE_OF_EACH = {case.op: name for name, case in reversed(SMALL.items()) if case.op not in MODELS}
"""A name per operator."""


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setattr(study, "measure_ceilings", lambda *arguments: Ceilings(1e10, 1e11))
    return frameworks.load("torch", "cpu", 1)


def measured(framework, only, **options):
    found = STUDY.measure(framework, Options(only=only, quick=True, **options))
    return {record.key[2:]: record for record in found if isinstance(record, Row)}


# Cases


def test_bytes_and_flops():
    softmax = scaled(CASES["softmax@4096"], "gpu", "bfloat16")
    assert softmax.elements() * 2 == 2 * (256 << 20)
    assert softmax.elements(True) == 5 * softmax.rows * 4096
    assert scaled(CASES["softmax@4096"], "gpu", "float32").elements() * 4 == softmax.elements() * 2
    loss = CASES["cross_entropy-32768x50257"]
    assert (loss.elements(), loss.elements(True), loss.flops()) == (32768 * 50257, 3 * 32768 * 50257, 0)
    linear = CASES["linear-gelu-16384x4096x16384"]
    assert linear.flops() == 2 * 16384 * 4096 * 16384
    assert linear.flops(True) == 3 * linear.flops()
    assert linear.elements() == 16384 * 4096 * 2 + 16384 * 16384
    layer = CASES["bert-large-layer"]
    tokens = 8 * 512
    assert layer.flops() == 2 * tokens * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 8 * 512**2 * 1024
    block = CASES["gpt2-medium-block"]
    assert layer.flops() - block.flops() == 2 * 8 * 512**2 * 1024


def test_families():
    assert len(CASES) == len(FAMILIES["public"]) == len(ORDER) - len(FAMILIES["models"])
    assert not CASES.keys() & {case.name for case in FAMILIES["models"]}
    assert len({case.name for case in FAMILIES["models"]}) == len(FAMILIES["models"])
    swept = [case.features for case in FAMILIES["columns"] if case.op == "rms_norm"]
    assert swept == [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
    epoi = [case.op for case in FAMILIES["epoi"]]
    counts = {"bert_attention": 3, "gpt_attention": 3, "qkv_self_attn": 5, "layer_norm": 4, "softmax": 2,
              "dropout_add_ln": 8, "bias_gelu": 7}  # fmt: skip
    assert {op: epoi.count(op) for op in counts} == counts
    assert set(CPU_NAMES) <= CASES.keys()
    assert {CASES[name].op for name in CPU_NAMES} == {case.op for case in CASES.values()}
    assert PASSES.keys() | MODELS | {"linear", "linear_cross_entropy", "qkv_self_attn"} == {
        case.op for case in CASES.values()
    }
    # What is left out when time is over comes last, and large products are that.
    assert FAMILIES["public"][0].compiled
    assert FAMILIES["public"][-1].heads == 64


# Checks


@pytest.mark.parametrize("op", ONE_OF_EACH)
def test_the_definition_is_what_torch_computes_in_float64(torch, op):
    case = SMALL[ONE_OF_EACH[op]]
    task = Task(torch, case, "float64", True, ops_ways.Offer(("native",), None))
    given = ops_ways.op_inputs(task, 0)
    [way] = ops_ways.make_ways(task)
    bound = way.bind(given)
    found = bound.forward()
    found = found if isinstance(found, tuple) else (found,)
    gradients = list(torch.torch.autograd.grad(found, bound.leaves, given.cotangents or None))
    assert max(errors(case, given, found, gradients)) < 1e-10
    # One row that is wrong drowns nowhere, nor one gradient.
    for place in range(len(gradients)):
        wrong = list(gradients)
        wrong[place] = gradients[place].clone()
        wrong[place][-1] += 3 * gradients[place].abs().mean() * (gradients[place][-1] != 0)
        value, gradient = errors(case, given, found, wrong)
        assert value < 1e-10
        assert gradient > allowed_error(case, "bfloat16", gradient=True)
    value, _ = errors(case, given, [each * 1.5 for each in found], gradients)
    assert value > allowed_error(case, "bfloat16")


def test_what_was_dropped_is_read_off_exactly(torch, monkeypatch):
    case = replace(SMALL["epoi-dropout_add_ln-32x128x768"], shape=(64, 96))
    task = Task(torch, case, "float64", True, ops_ways.Offer(("native",), None))
    given = ops_ways.op_inputs(task, 0)
    [way] = ops_ways.make_ways(task)
    bound = way.bind(given)
    found = (bound.forward(),)
    gradients = list(torch.torch.autograd.grad(found, bound.leaves, given.cotangents))
    assert not ops_check.dropped_share(case, *gradients[:2])
    assert "not 0.5" in ops_check.dropped_share(replace(case, p=0.5), *gradients[:2])
    # A gradient that is 0 by itself hides what was dropped; the result tells.
    for each in gradients[:2]:
        each[3, ::20] = 0
    assert not ops_check.dropped_share(case, *gradients[:2])
    value, _ = errors(case, given, found, gradients)
    assert value < 1e-10
    gradients[0][:20] = 0
    assert "not 0.1" in ops_check.dropped_share(case, *gradients[:2])


def test_a_module_without_dropout_is_found_out(torch):
    ones = torch.torch.ones(4, 4)
    assert "nothing was dropped" in dropout_wrong(ones, ones, ones, linear=True)
    assert "0.90 of what" in dropout_wrong(0.9 * ones, 0.8 * ones, ones, linear=True)
    assert not dropout_wrong(0.9 * ones, 0.8 * ones, ones, linear=False)
    assert not dropout_wrong(1.01 * ones, 0.8 * ones, ones, linear=True)


# Measuring


def test_ours_is_measured_beside_torch(torch):
    rows = measured(torch, "softmax@256,cross_entropy-8192x32768,linear-silu", dtypes=("bfloat16",))
    assert not any(row.failure for row in rows.values())
    whats = {case: {what for _, found, what in rows if found == case} for _, case, _ in rows}
    assert whats.pop("linear-silu-4096x4096x4096") == {"ours", "native", "linear"}
    assert set(map(frozenset, whats.values())) == {frozenset({"ours", "native"})}
    for (backward, name, what), row in rows.items():
        case = scaled(CASES[name], "cpu", row.dtype)
        assert row.seconds > 0
        assert row.peak_bytes > 0
        assert (row.flops, row.moved) == (case.flops(backward), case.elements(backward) * 2)
        assert bool(row.to_best) is (what == "ours")
        assert row.best in ("", "native")


def test_directions_and_peers_can_be_chosen(torch):
    rows = measured(torch, "rms_norm@256", peers=("quack",), forward_only=True)
    assert {(backward, what) for backward, _, what in rows} == {(False, "ours"), (False, "quack")}
    assert rows[False, ALL, "quack"].guest


def broken(kind):
    """An RMS norm with a wrong value or a wrong gradient of its input, or its weight."""
    from einops_fast import ops

    right = ops.rms_norm

    def norm(x, weight, eps):
        if kind == "value":
            return 1.1 * right(x, weight=weight, eps=eps)
        if kind == "input":
            return right(x.detach() + 0 * x, weight=weight, eps=eps)
        return right(x, weight=weight.detach() + 0.9 * (weight - weight.detach()), eps=eps)

    return norm


@pytest.mark.parametrize("kind", ["value", "input", "weight"])
def test_wrong_values_and_gradients_fail(torch, monkeypatch, kind):
    monkeypatch.setattr("einops_fast.ops.rms_norm", broken(kind))
    rows = measured(torch, "rms_norm@512")
    forward, both = (rows[backward, "rms_norm@512", "ours"] for backward in (False, True))
    assert bool(forward.failure) is (kind == "value")
    assert both.failure.startswith("wrong")
    assert both.seconds is None
    assert not both.guest
    assert not rows[True, "rms_norm@512", "native"].failure
    alone, together = STUDY.tables(list(rows.values()))
    assert together.figures["failed"] == ["rms_norm@512"]
    assert together.figures["best/ours"] == {}
    assert together.cells[0][-1].startswith("failed: ours wrong")
    assert alone.figures["failed"] == (["rms_norm@512"] if kind == "value" else [])


def test_dropout_that_drops_too_little_fails(torch, monkeypatch):
    from einops_fast import ops

    right = ops.dropout_add_layer_norm
    monkeypatch.setattr(
        "einops_fast.ops.dropout_add_layer_norm",
        lambda x, residual, weight, bias, p, eps: right(x, residual, weight, bias, p / 2, eps),
    )
    row = measured(torch, "epoi-dropout_add_ln-32x128x768", forward_only=True)[
        False, "epoi-dropout_add_ln-32x128x768", "ours"
    ]
    assert row.failure.startswith("wrong")


def test_what_fails_is_a_row_and_not_the_end(torch, monkeypatch):
    def refused(*given, **options):
        raise RuntimeError("no room\nfor this")

    monkeypatch.setattr(torch.torch.nn.functional, "gelu", refused)
    rows = measured(torch, "bias_gelu@256,softmax@256", forward_only=True)
    native = rows[False, "bias_gelu@256", "native"]
    assert (native.failure, native.guest) == ("RuntimeError: no room", True)
    assert rows[False, "softmax@256", "ours"].seconds > 0
    monkeypatch.setattr(study_ops, "errors", refused)
    rows = measured(torch, "softmax@256", forward_only=True)
    assert {(row.what, row.failure, row.guest) for row in rows.values() if row.case != ALL} == {
        ("ours", "RuntimeError: no room", False),
        ("native", "RuntimeError: no room", True),
    }


def test_it_is_about_torch():
    [row] = STUDY.measure(frameworks.load("numpy", "cpu", 1), Options())
    assert (row.case, row.guest) == (ALL, True)


def test_what_is_done_is_not_compiled_again(torch, monkeypatch):
    """A GPU in name only."""
    ahead = []
    monkeypatch.setattr(torch, "device", "gpu")
    monkeypatch.setattr(torch, "forget", lambda: None)
    monkeypatch.setattr(study, "run_ahead", lambda study, jobs, threads, seconds: ahead.append(jobs) or [])
    monkeypatch.setattr(STUDY, "rows", lambda *arguments: [])
    monkeypatch.setattr(STUDY, "shared", lambda *arguments: None)
    done = [
        task("torch", dtype, f"linear_cross_entropy-{sizes}", backward)
        for dtype in ("bfloat16", "float32")
        for sizes in ("8192x2048x50257", "8192x4096x32000", "4096x1024x50257")
        for backward in (False, True)
    ]
    for count in (0, 3, 12):
        options = Options(cases="losses", only="linear_cross_entropy", peers=("native",), done=done[:count])
        assert Extent(12 - count) in list(STUDY.measure(torch, options))
        left = [task("torch", dtype, name, backward) for _, name, dtype, backward, _ in ahead.pop()]
        assert left == done[count:]


def test_on_a_gpu_every_way_is_measured_with_the_hosts_time(torch, fake_libraries, monkeypatch):
    """A GPU in name only: all but its own functions runs as there."""

    class Pretended(frameworks.Torch):
        _device = "cpu"
        normal = frameworks.Framework.normal

        def __init__(self):
            vars(self).update(vars(torch), device="gpu")

        def clock(self, *, flushes):
            assert 1 < flushes <= measure.MOST_FLUSHES
            return HostClock(self.synchronize)

        def synchronize(self):
            pass

        def forget(self):
            pass

    class Compiler:
        def __init__(self, torch, altogether):
            pass

        def compiled(self, call, operands, name, fullgraph):
            return call

    monkeypatch.setattr(study_ops, "Compiler", Compiler)
    monkeypatch.setattr(study, "run_ahead", lambda *arguments: [])
    monkeypatch.setitem(ops_cases.BYTES, "gpu", 1 << 16)
    rows = measured(Pretended(), "rms_norm@1024")
    assert {what for _, case, what in rows if case != ALL} == {"ours", "native", "compile", "liger"}
    assert {row.dtype for row in rows.values() if row.case != ALL} == {"float32"}  # measured last
    for row in rows.values():
        if row.case != ALL:
            assert not row.failure
            assert row.host > 0
            assert row.seconds > 0


# Other libraries


@pytest.fixture
def fake_libraries(monkeypatch, torch):
    """Liger-Kernel and QuACK made of torch, with the real signatures; one of them writes over the logits."""
    functional = torch.torch.nn.functional

    class Loss(torch.torch.autograd.Function):
        @staticmethod
        def forward(context, x, target):
            with torch.torch.enable_grad():
                own = x.detach().clone().requires_grad_()
                loss = functional.cross_entropy(own, target)
                x.detach().copy_(torch.torch.autograd.grad(loss, own)[0])
            context.save_for_backward(x.detach())
            return loss.detach()

        @staticmethod
        def backward(context, cotangent):
            return context.saved_tensors[0] * cotangent, None

    def rms(x, weight, eps, offset=0.0, casting_mode="llama", in_place=True):
        assert not in_place
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    modules = {
        "liger_kernel.transformers.functional": {"liger_cross_entropy": Loss.apply, "liger_rms_norm": rms},
        "quack.softmax": {"softmax": lambda x: functional.softmax(x, -1) if x.dim() == 2 else None},
        "quack.linear": {
            "linear_act_func": lambda x, w, activation, b, tuned: (
                None,
                {"silu": functional.silu}[activation](x @ w.T + b),
            )
        },
    }
    for name, functions in modules.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(ops_libraries, "find_spec", lambda name: name)
    for library in ops_libraries.LIBRARIES.values():
        library.cache_clear()
    yield
    for library in ops_libraries.LIBRARIES.values():
        library.cache_clear()


def test_other_libraries_are_measured_with_what_they_have(torch, fake_libraries):
    cases = "cross_entropy-8192x50257,rms_norm@256,epoi-softmax-4,linear-silu,linear-gelu-4096"
    rows = measured(torch, cases, peers=("native", "liger", "quack"))
    assert not any(row.failure for row in rows.values() if row.case != ALL)
    for backward in (False, True):
        for case, what in (
            ("cross_entropy-8192x50257", "liger"),
            ("rms_norm@256", "liger"),
            ("epoi-softmax-4x16x512x512", "quack"),
            ("linear-silu-4096x4096x4096", "quack"),
        ):
            assert rows[backward, case, what].seconds > 0
    assert (False, "linear-gelu-4096x4096x4096", "quack") not in rows
    assert rows[False, ALL, "liger"].failure == "has no such function with gradients: linear, softmax"


def test_a_library_that_is_not_here_is_told_once(torch, monkeypatch):
    ops_libraries.LIBRARIES["liger"].cache_clear()
    monkeypatch.setattr(ops_libraries, "find_spec", lambda name: None)
    rows = measured(torch, "softmax@256,softmax@512", peers=("liger",), forward_only=True)
    assert rows[False, ALL, "liger"].failure == "liger_kernel isn't installed"
    assert {what for _, case, what in rows if case != ALL} == {"ours"}


# Modules of Hugging Face's, in small


@pytest.fixture
def fake_models(monkeypatch, torch):
    """A model with the one layer that the study looks for, and its attention, in place of transformers' own."""
    nn = torch.torch.nn

    class Attend(nn.Module):
        def __init__(self, features, p):
            super().__init__()
            self.value, self.drop = nn.Linear(features, features), nn.Dropout(p)

        def forward(self, hidden, attention_mask=None):
            return self.drop(self.value(hidden)) * attention_mask, None

    class Layer(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.attention = nn.Module()
            self.attention.self = Attend(config["hidden_size"], config["attention_probs_dropout_prob"])

        def forward(self, hidden, attention_mask):
            return self.attention.self(hidden, attention_mask=attention_mask)[0]

    class Model(nn.Module):
        def __init__(self, config, add_pooling_layer):
            super().__init__()
            self.words = nn.Embedding(8, 4)
            self.encoder = nn.Module()
            self.encoder.layer = nn.ModuleList([Layer(config)])

        def forward(self, inputs_embeds):
            return SimpleNamespace(last_hidden_state=self.encoder.layer[0](inputs_embeds, 2.0))

    fake = SimpleNamespace(BertConfig=dict, BertModel=Model, GPT2Config=dict, GPT2Model=Model)
    monkeypatch.setattr(ops_models, "import_module", lambda name: fake)


def test_modules_are_measured_as_their_model_calls_them(torch, fake_models, monkeypatch):
    optimized = []
    monkeypatch.setattr("einops_fast.nn.optimize", optimized.append, raising=False)
    rows = measured(torch, "epoi-bert_attention-8,bert-large", dtypes=("bfloat16",), peers=("native", "sdpa"))
    assert not any(row.failure for row in rows.values())
    assert {what for _, _, what in rows} == {"ours", "native", "sdpa"}
    assert len(optimized) == 2
    monkeypatch.setattr("einops_fast.nn.optimize", lambda model: model.encoder.layer[0].attention.self.drop.eval())
    [row] = [row for row in measured(torch, "bert-large", forward_only=True).values() if row.what == "ours"]
    assert not row.failure  # ``train`` reaches it all the same

    def undropped(model):
        model.encoder.layer[0].attention.self.drop = torch.torch.nn.Identity()

    monkeypatch.setattr("einops_fast.nn.optimize", undropped)
    [row] = [row for row in measured(torch, "bert-large", forward_only=True).values() if row.what == "ours"]
    assert "nothing was dropped" in row.failure


def test_without_transformers_the_reason_is_told(torch, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(ops_models, "import_module", missing)
    [row] = measured(torch, "bert-large", forward_only=True).values()
    assert row.guest
    assert "No module named 'transformers'" in row.failure


# Compiling


def test_a_compiled_way_is_compiled_once_for_all_its_calls(torch):
    case, made = SMALL["softmax@1024"], []

    class Compiler:
        def compiled(self, call, operands, name, fullgraph):
            made.append((name, fullgraph))
            return call

    task = Task(torch, case, "float32", True, ops_ways.Offer(("compile",), Compiler()))
    [way] = ops_ways.make_ways(task)
    for seed in (0, 1):
        way.bind(ops_ways.op_inputs(task, seed)).forward()
    assert made == [("softmax@1024 float32", True)]
    assert not ops_ways.make_ways(replace(task, case=SMALL["softmax@512"]))


def test_what_is_compiled_ahead():
    found = {
        name: STUDY.compiled_for(CASES[name], "bfloat16", True, ops_ways.Offer(("ours", "native", "compile"), None))
        for name in ("softmax@512", "softmax@1024", "cross_entropy-32768x50257")
    }
    assert found == {
        "softmax@512": ("ours",),
        "softmax@1024": ("ours", "compile"),
        "cross_entropy-32768x50257": (),
    }


# Files


@pytest.mark.skipif(find_spec("rich") is None, reason="rich isn't installed")
def test_command(torch, tmp_path, capsys, monkeypatch):
    def here(study, framework, options):
        yield Machine("Some CPU", 1, {"torch": "2"}, framework=framework)
        yield from STUDY.measure(torch, options)

    monkeypatch.setattr(compare, "run_worker", here)
    earlier = replace(ROWS[0], case="layer_norm@256", dtype="float32", seconds=1e-9)
    before = Result("ops", "Some CPU", 1, "2026-01-01", True, {}, (), (earlier,)).write_json(tmp_path / "before.json")
    arguments = [
        "ops",
        "--quick",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--cases",
        "columns",
        "--only-run",
        "r_norm@256",
    ]
    arguments += ["--forward-only", "--peers", "native,liger", "--compare", str(before)]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert "now/before" in capsys.readouterr().out
    [path] = tmp_path.glob("ops-columns-*-partial.json")
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert {row["what"] for row in rows if row["case"] == "dropout_add_layer_norm@256"} == {"ours", "native"}
    assert "native GB/s" in path.with_suffix(".md").read_text("utf-8")
    assert "layer_norm@256" in (tmp_path / "report-partial.html").read_text("utf-8")
    with pytest.raises(SystemExit):
        main(["ops", "--only-run", "nothing"])


def row(case, what, backward, seconds, **others):
    found = CASES[case]
    sized = scaled(found, "gpu", "bfloat16")
    work = {"moved": 2 * sized.elements(backward), "flops": sized.flops(backward)}
    floor = (2.5e-3 if backward else 1e-3) if seconds else None
    return Row("torch", case, what, "bfloat16", "e", "8×8", seconds, 0.0, 1.5, floor, backward=backward,
               to_best=0.8 if what == "ours" else None, peak_bytes=4 * 10**6, **work, **others)  # fmt: skip


ROWS = tuple(
    row(case, what, backward, (4.5e-3 if backward else 2e-3))
    for case in ("softmax@512", "softmax@256", "linear-gelu-4096x4096x4096", "bert-large-layer")
    for what in ("ours", "liger")
    for backward in (False, True)
)


def test_backward_alone_is_what_is_left(torch):
    bytes_, flops = ([table for table in STUDY.tables(ROWS) if kind in table.title] for kind in ("memory", "products"))
    assert [cell[0] for cell in bytes_[1].cells] == ["softmax@256", "softmax@512"]
    assert bytes_[1].cells[0][bytes_[1].columns.index("backward ms, of copy")] == "2.500, 60%"
    assert flops[0].cells[0][flops[0].columns.index("ours of GEMM")] == "50%"


def test_plots_name_every_case_and_way(tmp_path):
    pytest.importorskip("matplotlib")
    paths = draw(
        [*ROWS, row("softmax@256", "native", False, None)],
        tmp_path / "ops",
        (Ceiling("torch", "bfloat16", 4e12, 7e14),),
        study="ops",
    )
    texts = {path.name: path.read_text("utf-8") for path in paths if path.suffix == ".svg"}
    assert texts.keys() == {f"ops-bfloat16-{what}.svg" for what in ("columns-forward", "columns-backward", "ratios")}
    assert all(
        f">{word}<" in texts["ops-bfloat16-columns-forward.svg"] for word in ("ours", "liger", "copy", "softmax")
    )
    assert all(f">{word}<" in texts["ops-bfloat16-ratios.svg"] for word in ("ours", "liger", "bert-large-layer"))


def test_the_page_shows_it(tmp_path):
    wrong = row("softmax@1024", "ours", False, None, failure="wrong: error 1")
    result = Result("ops", "Some GPU", 1, "2026-01-01", True, {}, (), (*ROWS, wrong))
    page = html_page([result])
    assert '<tr class="failed"' in page
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    dom, console = browse(page, tmp_path)
    assert console == []
    charts = dict(re.findall(r'<figure data-chart="(\w+)"[^>]*>(.*?)</figure>', dom, re.DOTALL))
    # A panel of the softmax, and one of all that isn't a point of a curve.
    assert charts["throughput"].count("<svg") == 2
    assert charts["roofline"].count("<svg") == 1
    assert "softmax@1024  failed" in charts["floor"]
