"""The study of the operators: what its cases cost, that wrong results are caught, and what becomes of failures."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest

pytest.importorskip("torch")

from einops_fast.profiles.ops.cases import FAMILIES
from einops_fast.profiles.ops.check import allowed_error, dropped_share, errors
from einops_fast.profiles.ops.ways import op_inputs
from einops_fast.profiles.reporting.records import ALL
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.study import Task

STUDY = STUDIES["ops"]

CASES = {case.name: case for case in FAMILIES["public"]}
SMALL = {name: case.scaled("cpu", "float32") for name, case in CASES.items()}

ONE_OF_EACH = {case.op: name for name, case in reversed(SMALL.items())}
"""A name per operator."""


def answered(torch, case):
    """Operands of a case in float64, and what torch's own functions make of them: results and gradients."""
    task = Task(torch, case, "float64", True, ("native",))
    given = op_inputs(task, 0)
    [native] = STUDY.ways(task)
    found, gradients = torch.gradient(*native.bind(given), given.cotangents)
    return given, found if isinstance(found, tuple) else (found,), list(gradients)


# Cases


# Checks


@pytest.mark.parametrize("op", ONE_OF_EACH)
def test_errors_are_found_wherever_they_are(torch, op):
    case = SMALL[ONE_OF_EACH[op]]
    given, found, gradients = answered(torch, case)
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


def test_what_was_dropped_is_read_off_exactly(torch):
    case = replace(SMALL["epoi-dropout_add_ln-32x128x768"], shape=(64, 96))
    given, found, gradients = answered(torch, case)
    assert not dropped_share(case, *gradients[:2])
    assert "not 0.5" in dropped_share(replace(case, p=0.5), *gradients[:2])
    # A gradient that is 0 by itself hides what was dropped; the result tells.
    for each in gradients[:2]:
        each[3, ::20] = 0
    assert not dropped_share(case, *gradients[:2])
    assert errors(case, given, found, gradients)[0] < 1e-10
    gradients[0][:20] = 0
    assert "not 0.1" in dropped_share(case, *gradients[:2])


# Measuring


def test_ours_is_measured_beside_torch(torch, measured):
    rows = measured("ops", torch, "softmax@256,cross_entropy-8192x32768,linear-silu", dtypes=("bfloat16",))
    assert not any(row.failure for row in rows.values())
    whats = {case: {what for _, found, what in rows if found == case} for _, case, _ in rows}
    assert whats.pop("linear-silu-4096x4096x4096") == {"ours", "native", "linear"}
    assert set(map(frozenset, whats.values())) == {frozenset({"ours", "native"})}
    for (backward, name, what), row in rows.items():
        case = CASES[name].scaled("cpu", row.dtype)
        assert row.seconds > 0
        assert row.peak_bytes > 0
        assert (row.flops, row.moved) == (case.flops(backward), case.elements(backward) * 2)
        assert bool(row.to_best) is (what == "ours")
        assert row.best in ("", "native")


def broken_norm(kind):
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
def test_wrong_values_and_gradients_fail(torch, measured, monkeypatch, kind):
    monkeypatch.setattr("einops_fast.ops.rms_norm", broken_norm(kind))
    rows = measured("ops", torch, "rms_norm@512")
    forward, both = (rows[backward, "rms_norm@512", "ours"] for backward in (False, True))
    assert bool(forward.failure) is (kind == "value")
    assert both.failure.startswith("wrong")
    assert both.seconds is None
    assert not both.guest
    assert not rows[True, "rms_norm@512", "native"].failure


# Other libraries


@pytest.fixture
def fake_libraries(monkeypatch, torch):
    """Liger-Kernel and QuACK made of torch, with the real signatures; one of them writes over the logits."""
    functional = torch.torch.nn.functional

    def loss(x, target):
        found = functional.cross_entropy(x, target)
        x.data.zero_()
        return found

    def rms(x, weight, eps, offset=0.0, casting_mode="llama", in_place=True):
        assert not in_place
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    def activated(x, w, activation, b, tuned):
        return None, {"silu": functional.silu}[activation](x @ w.T + b)

    modules = {
        "liger_kernel.transformers.functional": {
            "liger_softmax": lambda x: functional.softmax(x, -1),
            "liger_cross_entropy": loss,
            "liger_rms_norm": rms,
        },
        "quack.softmax": {"softmax": lambda x: functional.softmax(x, -1) if x.dim() == 2 else None},
        "quack.linear": {"linear_act_func": activated},
    }
    for name, functions in modules.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)


def test_other_libraries_are_measured_with_what_they_have(torch, measured, fake_libraries):
    cases = "cross_entropy-8192x50257,rms_norm@256,epoi-softmax-4,linear-silu,linear-gelu-4096"
    rows = measured("ops", torch, cases, peers=("liger", "quack"))
    assert not any(row.failure for row in rows.values())
    assert {(case.partition("-")[0], what) for _, case, what in rows if what not in ("ours", "native")} == {
        ("cross_entropy", "liger"), ("rms_norm@256", "liger"), ("epoi", "liger"), ("epoi", "quack"),
        ("linear", "quack"),
    }  # fmt: skip
    assert (False, "linear-gelu-4096x4096x4096", "quack") not in rows
    assert all(row.seconds > 0 for row in rows.values())


def test_a_library_that_is_not_here_is_told_once(torch, measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    rows = measured("ops", torch, "softmax@256,softmax@512", peers=("liger",), forward_only=True)
    assert rows[False, ALL, "liger"].failure.startswith("liger can't be used: ModuleNotFoundError")
    assert {what for _, case, what in rows if case != ALL} == {"native", "ours"}
