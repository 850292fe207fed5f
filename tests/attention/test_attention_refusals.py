"""Libraries that refuse, when they are called, what they were said to do: another implementation does it."""

import warnings
from typing import Any

import numpy as np
import pytest

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention import registry
from einops_fast.attention.choice import is_refusal
from einops_fast.attention.registry import Implementation, register_implementation
from einops_fast.runtime.plan_cache import clear_plans

Q = np.ones((2, 3, 4))
PATTERN = "b i d, b j d, b j e -> b i e"
NONE_LEFT = "No available kernel. Aborting execution.\nmore"


class Constant(Implementation):
    """Gives an array of one number, or raises."""

    may_refuse = True

    def __init__(self, name: str, found: Any) -> None:
        self.name = name  # type: ignore[misc]
        self.found, self.runs = found, 0

    def lacks(self, spec: Any) -> None:
        return None

    def run(self, spec: Any, inputs: Any) -> tuple[Any, Any]:
        self.runs += 1
        if isinstance(self.found, BaseException):
            raise self.found
        return np.full((*spec.batch, spec.q_len, spec.v_head_dim), self.found), None


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put these in the place of all implementations."""

    def offer(**found: Any) -> dict[str, Constant]:
        monkeypatch.setattr(registry, "_entries", {})
        monkeypatch.setattr(registry, "_made", {})
        made = {name: Constant(name, each) for name, each in found.items()}
        for name, way in made.items():
            register_implementation(name, "", lambda way=way: way)  # type: ignore[misc]
        return made

    clear_plans()
    yield offer
    clear_plans()


def call() -> Any:
    return attention(PATTERN, Q, Q, Q)[0, 0, 0]


def test_the_next_one_does_it_and_is_remembered(offer: Any) -> None:
    ways = offer(one=RuntimeError(NONE_LEFT), two=NotImplementedError("not supported"), three=3.0, four=4.0)
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
    ways = offer(one=RuntimeError(NONE_LEFT), two=2.0, three=RuntimeError("no engine"))
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
    ways = offer(one=error, two=2.0)
    with pytest.raises(type(error)) as caught:
        call()
    assert caught.value is error
    assert ways["two"].runs == 0


def test_errors_of_what_is_no_library_stay_what_they_are(offer: Any) -> None:
    ways = offer(one=RuntimeError(NONE_LEFT), two=2.0)
    ways["one"].may_refuse = False  # type: ignore[misc]
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
    clear_plans()
    q = torch.randn(2, 4, 16, 64, dtype=torch.bfloat16)
    with attention_backend("cudnn", "math"):
        with pytest.warns(RuntimeWarning, match="No execution plans support the graph.. Such calls go to math"):
            found = attention(q, q, q, layout="bhsd")
        torch.testing.assert_close(attention(q, q, q, layout="bhsd"), found)
    with attention_backend("math"):
        torch.testing.assert_close(attention(q, q, q, layout="bhsd"), found)
    clear_plans()
