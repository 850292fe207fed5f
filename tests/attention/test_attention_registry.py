"""The registry of implementations: errors that list them, restrictions, and what remembered calls see."""

import threading

import pytest
from attention_spec import SPEC
from fake_implementations import ON_GPU, PATTERN, Constant, Fake, Q, choose

from einops_fast import OperandError, attention, attention_backend
from einops_fast.attention import registry
from einops_fast.attention.registry import allowed_names, register_implementation


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
