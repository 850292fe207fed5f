"""The registry of implementations, and libraries that refuse calls: another implementation does them."""

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from fake_implementations import ON_GPU, PATTERN, SPEC, Constant, Fake, Q, choose

from einops_fast import OperandError, attention, attention_backend, explain_attention
from einops_fast.attention import registry
from einops_fast.attention.registry import allowed_names, register_implementation
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


def test_an_error_lists_every_implementation_with_its_reason(offer):
    offer(one=Fake(1, 1, "it is Monday"), two=Fake(1, 1, "it has no wheels"))

    def missing():
        raise ImportError("not installed")

    def moved():
        return registry._of_another_version

    register_implementation("three", "", missing)
    register_implementation("four", "cupy", missing)
    register_implementation("five", "", moved)
    with pytest.raises(OperandError) as caught:
        attention(PATTERN, Q, Q, Q)
    lines = str(caught.value).splitlines()[1:]
    assert lines == [
        "  one: it is Monday",
        "  two: it has no wheels",
        "  three: it isn't available: not installed",
        "  four: it takes cupy arrays only",
        "  five: it isn't available: module 'einops_fast.attention.registry' has no attribute '_of_another_version'",
    ]
    with attention_backend("two"), pytest.raises(OperandError, match=r"not allowed by attention_backend: one, three"):
        attention(PATTERN, Q, Q, Q)


def test_restriction_orders_nests_and_is_each_thread_s_own(offer):
    fakes = offer(one=Fake(1, 1), two=Fake(2, 2), three=Fake(3, 3, "never"))
    with attention_backend("three", "two", "one", "two"):
        assert allowed_names() == ("three", "two", "one")
        assert choose(SPEC, "auto").implementation is fakes["two"]
        with attention_backend("one"):
            assert choose(ON_GPU, "auto").implementation is fakes["one"]
            inside = []
            thread = threading.Thread(target=lambda: inside.append(allowed_names()))
            thread.start()
            thread.join()
            assert inside == [None]
        assert choose(SPEC, "auto").implementation is fakes["two"]
    assert allowed_names() is None
    with pytest.raises(OperandError, match="called 'four'; there are one, two, three"), attention_backend("four"):
        pass
    with pytest.raises(OperandError, match=r"is called \['math'\]"), attention_backend(["math"]):
        pass
    with pytest.raises(OperandError, match="needs a name"), attention_backend():
        pass


def test_a_remembered_call_sees_restrictions_and_new_implementations(offer):
    offer(one=Constant(1.0), two=Constant(2.0))
    assert attention(PATTERN, Q, Q, Q)[0, 0, 0] == 1
    with attention_backend("two"):
        assert attention(PATTERN, Q, Q, Q)[0, 0, 0] == 2
    assert attention(PATTERN, Q, Q, Q)[0, 0, 0] == 1
    register_implementation("one", "", lambda: Constant(3.0))
    assert attention(PATTERN, Q, Q, Q)[0, 0, 0] == 3
