"""Which implementation is used, by prediction and by measurement, and what `explain_attention` says of it."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_implementations import CALL, ON_GPU, PATTERN, SPEC, Fake, FakeClock, choose

from einops_fast import OperandError, attention, attention_backend, explain_attention
from einops_fast.attention.attend import plan_of
from einops_fast.attention.measured import problem_class
from einops_fast.attention.memory import score_memory
from einops_fast.attention.options import Options, Request
from einops_fast.attention.prediction import attention_bytes, attention_flops
from einops_fast.attention.reference import Math
from einops_fast.runtime import disk_cache, measuring
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture
def clock(monkeypatch, tmp_path):
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    clock = FakeClock()
    pytest.importorskip("torch")
    from einops_fast.backends.torch.attention.implementations import clock as clocks

    monkeypatch.setattr(clocks, "TorchClock", lambda device: clock)
    monkeypatch.setattr(measuring, "NO_WAIT", 100.0)  # fakes take seconds
    clear_plans()
    yield clock
    clear_plans()


# ---- the choice


CHOICES = {
    "a host that keeps the device waiting": (
        lambda: {"one": Fake(1.0, 1.0, queueing=2.5), "two": Fake(1.5, 2.0, queueing=1.5)},
        "two", {"one": 2.5, "two": 2.0},
    ),
    "a clock that falls under load": (
        lambda: {
            "one": Fake(1.0, 3.0, slower=1.5), "two": Fake(1.0, 3.5, slower=1.1), "far": Fake(1.0, 9.0, slower=0.1),
        },
        "two", {"one": 4.5, "two": pytest.approx(3.85), "far": 9.0},
    ),
    "one that is preferred, of equals": (
        lambda: {"one": Fake(1.0, 1.01, preferred=True), "two": Fake(1.0, 1.0)}, "one", {"one": 1.01, "two": 1.0},
    ),
    "one that is preferred, but slower": (
        lambda: {"one": Fake(1.0, 1.03, preferred=True), "two": Fake(1.0, 1.0)}, "two", {"one": 1.03, "two": 1.0},
    ),
    "hosts of which nobody knows which is faster": (lambda: hosts(4.0, 4.35), "two", {"one": 4.0, "two": 4.35}),
    "a host that is slower": (lambda: hosts(4.0, 4.45), "one", {"one": 4.0, "two": 4.45}),
    "a device that doesn't wait": (lambda: hosts(0.1, 1.9), "two", {"one": 2.5, "two": 2.0}),
    "a device that waits for longer than the other takes": (lambda: hosts(0.1, 3.1), "one", {"one": 2.5, "two": 3.1}),
    "a host that isn't asked, as the device never waits": (
        lambda: {"one": Fake(1.0, 100.0, queueing=200.0), "two": Fake(1.0, 101.0)}, "one", {"one": 100.0, "two": 101.0},
    ),
    "a host that is asked": (
        lambda: {"one": Fake(1.0, 99.0, queueing=200.0), "two": Fake(1.0, 101.0)}, "two", {"one": 200.0, "two": 101.0},
    ),
    "one that holds scores keeps none from being measured": (
        lambda: {
            "scores": Fake(1.0, 5.0, efficiency=0.0), "one": Fake(10.0, 2.0), "two": Fake(20.0, 3.0),
            "far": Fake(70.0, 0.1),
        },
        "one", {"scores": 5.0, "one": 2.0, "two": 3.0},
    ),
    "none that works": (lambda: {"one": Fake(1.0, None), "two": Fake(1.5, None)}, "one", {}),
    "only one": (lambda: {"one": Fake(1.0, 1.0), "two": Fake(1.0, 1.0, "no")}, "one", {}),
}  # fmt: skip
"""Fakes, the one that is chosen, and what was measured."""


def hosts(*seconds):
    return {
        name: Fake(1.0, measured, queueing=own)
        for name, measured, own in zip(("one", "two"), (2.5, 2.0), seconds, strict=True)
    }


@pytest.mark.parametrize("name", CHOICES)
def test_the_best_is_chosen_by_what_calls_take(clock, offer, name):
    make, expected, measured = CHOICES[name]
    fakes = offer(**make())
    found = choose(ON_GPU, "wait", CALL)
    assert found.implementation is fakes[expected]
    assert found.measured == measured
    assert found.predicted == {name: fake.predicted for name, fake in fakes.items() if not fake.lacking}
    assert bool(list(disk_cache.entries())) == bool(measured)
    if measured:
        assert "measured" in choose(ON_GPU, "never").why


def torch_call(dropout_p=0.0, lse=False, gradients=True):
    """A call of tensors, all three the same."""
    torch = pytest.importorskip("torch")
    q = torch.ones(2, 3, 4, requires_grad=gradients)
    request = Request(PATTERN, None, Options(dropout_p=dropout_p, return_lse=lse))
    return plan_of(request, {"q": q, "k": q, "v": q}, "torch"), (q, q, q)


def test_the_measured_best_is_chosen_and_kept_on_disk(clock, offer):
    fakes = offer(one=Fake(1.0, 3.0), two=Fake(1.5, 2.0), far=Fake(50.0, 0.1), broken=Fake(1.2, None))
    decision = choose(ON_GPU, "wait", CALL)
    assert decision.implementation is fakes["two"]
    assert decision.measured == {"one": 3.0, "two": 2.0}
    assert decision.final
    assert "far" not in clock.calls
    (entry,) = disk_cache.entries()
    assert entry.record["choice"] == "two"
    assert entry.key["class"] == problem_class(SPEC)
    assert entry.key["problem"] == "attention heads 16 q_len 1024 kv_len 1024 head_dim 64/64"
    clock.calls.clear()
    # From memory, and after that is lost from disk; for all problems of the class.
    for forget in (False, True):
        if forget:
            clear_plans()
        found = choose(replace(ON_GPU, q_len=900, kv_len=900), "wait", CALL)
        assert found.implementation is fakes["two"]
        assert found.measured == {"one": 3.0, "two": 2.0}
    assert clock.calls == []
    choose(replace(ON_GPU, q_len=2000), "wait", CALL)
    assert clock.calls


def test_modes(clock, offer):
    fakes = offer(one=Fake(1.0, 3.0), two=Fake(1.5, 2.0), far=Fake(7.0, 0.1))
    never = choose(ON_GPU, "never", CALL)
    assert (never.implementation, never.final, clock.calls) == (fakes["one"], True, [])
    assert choose(ON_GPU, "wait", CALL).implementation is fakes["two"]
    assert choose(ON_GPU, "never", CALL).implementation is fakes["two"]  # what is known is used
    clear_plans()
    assert choose(ON_GPU, "always", CALL).implementation is fakes["far"]
    assert choose(ON_GPU, "wait", CALL).implementation is fakes["far"]


def test_no_call_waits_for_a_measurement(clock, offer):
    """A library begins, and calls find out whether kernels are faster; what was measured earlier is used."""
    fakes = offer(ours=Fake(1.0, 3.0), library=Fake(1.5, 4.0), far=Fake(50.0, 0.1))
    fakes["ours"].compiles = True
    decision = choose(ON_GPU, "auto", CALL)
    assert (decision.implementation, decision.final, clock.calls) == (fakes["library"], False, [])
    assert decision.undecided.ways == [fakes["library"], fakes["ours"]]
    assert choose(ON_GPU, "wait", CALL).implementation is fakes["ours"]
    decision = choose(ON_GPU, "auto", CALL)  # which has to be compiled all the same
    assert (decision.implementation, decision.undecided.ways) == (fakes["library"], [fakes["library"], fakes["ours"]])


def test_nothing_is_measured_where_it_may_not_be(clock, offer):
    fakes = offer(one=Fake(1.0, 3.0), two=Fake(1.5, 2.0))
    clock.allowed = False
    captured = choose(ON_GPU, "wait", CALL)
    assert (captured.implementation, captured.final) == (fakes["one"], False)
    traced = choose(ON_GPU, "wait", CALL, quiet=True)
    assert (traced.implementation, traced.final) == (fakes["one"], False)  # the first of equal efficiency
    assert choose(ON_GPU, "auto").implementation is fakes["one"]  # explaining
    assert clock.calls == []
    assert list(disk_cache.entries()) == []
    clock.allowed = True
    assert choose(ON_GPU, "wait", CALL).implementation is fakes["two"]


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_measuring_leaves_no_trace_in_tensors_or_random_numbers(monkeypatch, gradients, lse, torch):
    from einops_fast.backends.torch.attention.implementations.clock import TorchClock

    waits, clock = [], TorchClock("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(clock._memory, "seconds", lambda run, device, repeat: [run()] * repeat)
    plan, arrays = torch_call(0.5, lse, gradients)
    q, state = arrays[0], torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        run = clock.run_of(Math(), plan, arrays)
        assert clock.seconds(run, 1) == [None]
        assert 0 < clock.wall_seconds(run, 3) < 10
        assert len(waits) == 2
        clock.settle([run])
        assert len(waits) > 2
    assert q.grad is q.grad_fn is None
    assert torch.equal(state, torch.get_rng_state())


Q = np.ones((2, 3, 4))


def test_flops_count_what_is_seen():
    assert attention_flops(SPEC) == SPEC.flops == 4 * 16 * 1000 * 1000 * 64
    assert attention_flops(replace(SPEC, gradients=True)) == 3.5 * SPEC.flops
    causal = attention_flops(replace(SPEC, causal=True))
    assert abs(causal / SPEC.flops - 0.5) < 0.01
    band = attention_flops(replace(SPEC, window=(50, 49)))
    assert abs(band / SPEC.flops - 0.1) < 0.01
    decode = replace(SPEC, q_len=1, causal=True, alignment="bottom_right")
    assert attention_flops(decode) == pytest.approx(decode.flops, rel=0.01)
    assert attention_flops(replace(SPEC, kv_len=0)) == 0
    assert attention_bytes(SPEC) == 4 * 16 * 1000 * 64 * 2


def test_explanation_says_all_of_it():
    found = explain_attention(PATTERN, Q, Q, Q, causal=True, window=(2, None), bias=np.ones((3, 3)), softcap=5.0)
    assert (found.implementation, found.device) == ("math", "cpu")
    assert found.seconds == found.predicted["math"] > 0
    assert "predicted to take" in str(found)
    assert found.answers["math"] == "can"
    assert found.answers["cudnn"] == "it takes torch arrays only"
    text = str(found)
    for part in ("by math: ", "causality (top_left)", "window (2, None)", "softcap 5", "a bias", "of scores at a time"):
        assert part in text
    with score_memory(8):
        assert found.score_bytes == 8
    with pytest.raises(ValueError, match="no 'casual'; did you mean 'causal'"):
        explain_attention(PATTERN, Q, Q, Q, casual=True)
    with pytest.raises(OperandError, match="cpu: it takes torch arrays only"), attention_backend("cpu"):
        explain_attention(PATTERN, Q, Q, Q)


def test_options_of_attention_have_one_default():
    parameters = inspect.signature(attention).parameters
    assert {name: parameters[name].default for name in Options._fields} == Options._field_defaults


def test_explanation_of_tensors(torch):
    q = torch.ones(2, 3, 4, 8, requires_grad=True)
    found = explain_attention(q, q, q, layout="bshd")
    assert found.implementation == "cpu"
    assert found.spec.gradients
    assert found.answers["flash"] == "it is for tensors on NVIDIA GPUs"
    assert found.flops == 3.5 * found.spec.flops
    nested = torch.nested.nested_tensor([torch.ones(2, 4, 8), torch.ones(5, 4, 8)], layout=torch.jagged)
    found = explain_attention(nested, nested, nested, layout="bshd")
    assert (found.implementation, found.spec.varlen, found.spec.q_len) == ("math", True, 5)


@pytest.mark.parametrize("causal", [False, "bottom_right"])
def test_explanation_counts_packed_sequences_as_long_as_they_are(causal):
    q, k = np.ones((30, 2, 8), "f"), np.ones((40, 2, 8), "f")
    lengths = {"cu_seqlens_q": np.array([0, 10, 10, 30]), "cu_seqlens_kv": np.array([0, 5, 15, 40])}
    found = explain_attention(q, k, k, layout="thd", **lengths, causal=causal)
    parts = [
        explain_attention(q[:i], k[:j], k[:j], layout="thd", causal=causal, cu_seqlens_q=np.array([0, i]),
                          cu_seqlens_kv=np.array([0, j])).flops
        for i, j in ((10, 5), (0, 10), (20, 25))
    ]  # fmt: skip
    assert found.flops == sum(parts)
    assert causal or found.flops == 4 * 2 * 8 * (10 * 5 + 20 * 25)
    assert found.moved_bytes == 4 * (2 * q.size + 2 * k.size)
    assert found.lengths_known
    assert "as the longest" not in str(found)
    assert "if each sequence were as long as the longest" in str(replace(found, lengths_known=False))


def test_the_table_in_the_documentation_is_what_the_implementations_say():
    if pytest.importorskip("torch").__version__ < "2.13":
        pytest.skip("the table is of a torch whose attention on a CPU has logarithms")
    from einops_fast.attention.features import feature_table

    text = (Path(__file__).parents[2] / "docs" / "reference" / "attention.md").read_text(encoding="utf-8")
    table = feature_table()
    assert table in text, "update the table with: python -m einops_fast.attention.features"
