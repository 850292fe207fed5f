"""Libraries that refuse, when they are called, what they were said to do: another implementation does it."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from fake_implementations import PATTERN, Constant, Q

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention import registry
from einops_fast.attention.choice import is_refusal
from einops_fast.runtime.plan_cache import clear_plans

NONE_LEFT = "No available kernel. Aborting execution.\nmore"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    clear_plans()
    yield
    clear_plans()


def call() -> Any:
    return attention(PATTERN, Q, Q, Q)[0, 0, 0]


def test_the_next_one_does_it_and_is_remembered(offer: Any) -> None:
    ways = offer(
        one=Constant(RuntimeError(NONE_LEFT)),
        two=Constant(NotImplementedError("not supported")),
        three=Constant(3.0),
        four=Constant(4.0),
    )
    expected = (
        r"attention by one: it refused when it was called: No available kernel. Aborting execution.; "
        r"two: it refused when it was called: not supported. Such calls go to three$"
    )
    with pytest.warns(RuntimeWarning, match=expected) as caught:
        assert call() == 3
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [call(), attention(PATTERN, Q.copy(), Q, Q)[0, 0, 0]] == [3, 3]
        answers = explain_attention(PATTERN, Q, Q, Q).answers
    assert [way.runs for way in ways.values()] == [1, 1, 3, 0]
    assert answers["one"] == "it refused when it was called: No available kernel. Aborting execution."
    # Another problem is asked about anew.
    with pytest.warns(RuntimeWarning, match="Such calls go to three"):
        attention(PATTERN, Q, Q, Q, causal=True)
    assert ways["one"].runs == 2


def test_its_own_error_where_nobody_else_may_or_can(offer: Any) -> None:
    ways = offer(one=Constant(RuntimeError(NONE_LEFT)), two=Constant(2.0), three=Constant(RuntimeError("no engine")))
    for _ in range(2):  # the second time, too
        with attention_backend("one"), pytest.raises(RuntimeError, match="No available kernel"):
            call()
        with attention_backend("one", "three"), pytest.raises(RuntimeError, match="No available kernel"):
            call()
    assert ways["two"].runs == 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        MemoryError("no more"),
        ValueError("an argument is wrong"),
        ZeroDivisionError("a bug"),
    ],
    ids=str,
)
def test_other_errors_stay_what_they_are(offer: Any, error: Exception) -> None:
    ways = offer(one=Constant(error), two=Constant(2.0))
    with pytest.raises(type(error)) as caught:
        call()
    assert caught.value is error
    assert ways["two"].runs == 0


def test_errors_of_what_is_no_library_stay_what_they_are(offer: Any) -> None:
    ways = offer(one=Constant(RuntimeError(NONE_LEFT)), two=Constant(2.0))
    ways["one"].may_refuse = False
    with pytest.raises(RuntimeError, match="No available kernel"):
        call()


def test_a_compiler_that_lacks_shared_memory_refuses_and_one_that_lacks_memory_does_not() -> None:
    assert is_refusal(RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: shared memory"))
    error = RuntimeError("backend='inductor' raised")
    error.__cause__ = RuntimeError("CUDA out of memory")
    assert not is_refusal(error)


def test_cudnn_that_refuses_leaves_the_call_to_the_next_library(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """Its operator, which is called without torch's choice before it, is the one that refuses."""
    from einops_fast.attention import prepare
    from einops_fast.backends.torch.attention.implementations import devices, sdpa

    class NoPlans(sdpa.Cudnn):
        def plain(self, spec: Any, axes: Any) -> Any:
            def run(*arrays: Any) -> Any:
                raise RuntimeError(
                    "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."
                )

            return run

    monkeypatch.setattr(prepare, "_device", lambda array, framework: "cuda:0")
    monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(devices._cudnn, "is_available", lambda: True)
    monkeypatch.setattr(sdpa.Cudnn, "refuses", lambda self, spec, inputs: None)
    monkeypatch.setattr(registry, "_made", {**registry._made, "cudnn": NoPlans()})
    q = torch.randn(2, 4, 16, 64, dtype=torch.bfloat16)
    with attention_backend("cudnn", "math"):
        with pytest.warns(RuntimeWarning, match="No execution plans support the graph.. Such calls go to math"):
            found = attention(q, q, q, layout="bhsd")
        torch.testing.assert_close(attention(q, q, q, layout="bhsd"), found)
    with attention_backend("math"):
        torch.testing.assert_close(attention(q, q, q, layout="bhsd"), found)
