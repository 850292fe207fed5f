"""What every function that sets something does: alone, as a block, as a decorator, in threads, and wrongly."""

import asyncio
import contextvars
import re
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from python_process import run_python

from einops_fast import (
    EinsumError,
    OperandError,
    allow_precision,
    attention,
    attention_backend,
    autotune,
    backends,
    metrics,
    profile,
    register_backend,
)
from einops_fast.attention import registry
from einops_fast.attention.memory import current_score_memory, score_memory
from einops_fast.attention.registry import allowed_names, register_implementation
from einops_fast.observing.observers import observed
from einops_fast.observing.recording import current_label
from einops_fast.runtime.precision import allowed
from einops_fast.runtime.tuning import current_mode

SETTINGS = {
    "autotune": (autotune, current_mode, "never", "never"),
    "allow_precision": (allow_precision, allowed, "tf32", "tf32"),
    "attention_backend": (attention_backend, allowed_names, "math", ("math",)),
    "score_memory": (score_memory, current_score_memory, 1 << 20, 1 << 20),
    "metrics.label": (metrics.label, current_label.get, "layer", "layer"),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Any:
    """Functions that make the setting and that give what holds, and what holds then and usually."""
    make, current, given, held = SETTINGS[request.param]
    return lambda: make(given), current, held, current()


def alone(work: Any) -> Any:
    """Do it in a context of its own, so that what it sets ends with it."""
    return contextvars.copy_context().run(work)


def in_thread(work: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_call_alone_holds_from_then_on(setting: Any) -> None:
    make, current, held, usual = setting

    def work() -> None:
        make()
        assert current() == held
        assert in_thread(current) == usual
        with make():
            assert current() == held
        assert current() == held

    alone(work)
    assert current() == usual


def test_a_block_ends(setting: Any) -> None:
    make, current, held, usual = setting
    with make():
        assert current() == held
    assert current() == usual
    kept = make()
    with pytest.raises(ZeroDivisionError), kept:
        1 / 0  # noqa: B018 - what is raised
    assert current() == usual
    with kept, make(), kept:
        assert current() == held
    assert current() == usual
    with autotune("never"):
        with autotune("always"):
            assert current_mode() == "always"
        assert current_mode() == "never"


def test_a_decorated_function_has_it_in_its_calls_only(setting: Any) -> None:
    make, current, held, usual = setting

    @make()
    def inside(depth: int = 2) -> Any:
        """Text."""
        return inside(depth - 1) if depth else current()

    assert current() == usual
    assert (inside(), inside(), in_thread(inside)) == (held, held, held)
    assert (inside.__name__, inside.__doc__) == ("inside", "Text.")
    assert current() == usual


def test_a_decorated_generator_has_it_in_its_steps_only(setting: Any) -> None:
    make, current, held, usual = setting

    @make()
    def steps() -> Any:
        try:
            sent = yield current()
            yield sent, current()
        except ZeroDivisionError:
            yield "caught", current()
        finally:
            seen.append(current())
        return "end", current()

    def all_of() -> Any:
        return (yield from steps())

    seen: list[Any] = []
    running = steps()
    assert (next(running), current(), running.send(5), current()) == (held, usual, (5, held), usual)
    assert (running.throw(ZeroDivisionError()), current()) == (("caught", held), usual)
    running.close()
    running = all_of()
    assert [next(running), next(running), seen, current()] == [held, (None, held), [held], usual]
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert ended.value.value == ("end", held)


def test_a_decorated_task_has_it_in_its_steps_only(setting: Any) -> None:
    make, current, held, usual = setting

    @make()
    async def task(count: int) -> Any:
        found = [current()]
        try:
            for _ in range(count):
                await asyncio.sleep(0)
                found.append(current())
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            found.append(current())
        return found

    async def both() -> Any:
        running = asyncio.create_task(task(2))
        between = []
        for _ in range(6):
            await asyncio.sleep(0)
            between.append(current())
        running.cancel()
        return await running, set(between)

    assert asyncio.iscoroutinefunction(task)
    assert asyncio.run(both()) == ([held] * 4, {usual})


def test_what_a_decorator_can_not_hold_in_is_refused(setting: Any) -> None:
    def generator() -> Any:
        yield

    async def coroutine() -> None: ...

    async def asynchronous_generator() -> Any:
        yield

    for function in (generator, coroutine, asynchronous_generator):
        with pytest.raises(OperandError, match=f"{function.__name__} runs after its call, .* write the block in it"):
            profile()(function)
    with pytest.raises(OperandError, match="asynchronous_generator runs after its call"):
        setting[0]()(asynchronous_generator)


def test_a_block_may_be_made_in_one_thread_and_entered_in_another(setting: Any) -> None:
    make, current, held, usual = setting

    def enter() -> Any:
        with made:
            return current()

    made = alone(make)
    assert in_thread(enter) == held
    assert current() == usual


PATCHED_ALONE = """
import numpy as np, einops_fast
einops_fast.patched("numpy")
with einops_fast.profile() as seen:
    np.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4)))
print(len(seen.rows))
"""


def test_a_block_of_patches_that_is_called_alone() -> None:
    assert run_python("-c", PATCHED_ALONE).stdout == "1\n"


# ---- what is wrong is told in one sentence

WRONG = {
    "EINOPS_FAST_AUTOTUNE": ("Never", "import numpy; einops_fast.patch('numpy')"),
    "EINOPS_FAST_SCORE_MEMORY": ("many", "from einops_fast.attention.memory import *; current_score_memory()"),
}


@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_environment_is_an_error_where_it_is_needed(variable: str) -> None:
    value, use = WRONG[variable]
    caught = f"try: {use}\nexcept einops_fast.EinsumError as error: print(error)"
    found = run_python("-c", f"import einops_fast\n{caught}", **{variable: value}).stdout
    assert found.startswith(f"{variable} is ")
    assert repr(value) in found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x", "y", None), "factory is what makes 'x' when it is called, not None"),
        (("x", "y", "Backend"), "factory is what makes"),
        (("x", None, dict), "is the text of a name, not None"),
        ((1, "y", dict), "name is the text of a name, not 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("register", [register_backend, register_implementation])
def test_registering_what_makes_nothing(register: Any, arguments: Any, words: str) -> None:
    with pytest.raises(OperandError, match=words):
        register(*arguments)


def test_factories_that_make_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_factories", {**backends._factories})
    register_backend("x", "not_there", dict)  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="the factory of backend 'x' made a dict, which is no Backend"):
        backends.get_backend("x")
    monkeypatch.setattr(registry, "_entries", {**registry._entries})
    register_implementation("x", "", dict)  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="the factory of attention 'x' made a dict, which is no Implementation"):
        attention("i d, j d, j e -> i e", *[np.ones((2, 4))] * 3)


# ---- what is for a block only

BLOCKS: dict[str, Any] = {
    "einops_fast.profile()": lambda folder: profile(),
    "metrics.record(folder)": metrics.record,
}


@pytest.mark.parametrize("call", BLOCKS)
def test_what_is_for_a_block_warns_where_there_is_none(call: str, tmp_path: Any) -> None:
    with pytest.warns(RuntimeWarning, match=rf"^{re.escape(call)} does nothing by itself: .* with {re.escape(call)}:"):
        BLOCKS[call](tmp_path)
    assert not observed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        block = BLOCKS[call](tmp_path)
        for _ in range(2):
            with block:
                assert observed()
            assert not observed()
        assert BLOCKS[call](tmp_path)(observed)()
        del block
    assert not observed()


def _default(value, script="print(current_mode())"):
    """What a process prints whose environment says so."""
    script = f"import os, einops_fast\nfrom einops_fast.runtime.tuning import current_mode\n{script}"
    return run_python("-c", script, EINOPS_FAST_AUTOTUNE=value).stdout.strip()


@pytest.mark.parametrize(("value", "mode"), [(None, "auto"), ("", "auto"), ("always", "always")])
def test_the_environment_says_what_the_default_is(value, mode):
    assert _default(value) == mode


def test_an_argument_and_a_block_overrule_the_environment_which_is_read_once():
    script = """
os.environ['EINOPS_FAST_AUTOTUNE'] = 'wait'
print(current_mode(), current_mode('auto'))
with einops_fast.autotune('always'): print(current_mode())
"""
    assert _default("never", script).split() == ["never", "auto", "always"]


def test_a_wrong_environment_is_an_error_at_the_first_use_only():
    script = """
import numpy as np
def call(mode): return einops_fast.fast_einsum('i->', np.ones(3), autotune=mode)
for use in (current_mode, current_mode, lambda: call('never'), lambda: call('Never')):
    try:
        print(use())
    except einops_fast.EinsumError as error:
        print(error)
with einops_fast.autotune('never'):
    print(current_mode())
"""
    words = "is one of 'auto', 'wait', 'never', 'always' and 'reproducible', not 'Never'"
    of_environment, of_argument = f"EINOPS_FAST_AUTOTUNE {words}", f"the mode of autotune {words}"
    assert _default("Never", script).splitlines() == [of_environment] * 2 + ["3.0", of_argument, "never"]


@pytest.mark.parametrize("mode", ["sometimes", "", "AUTO", None, True])
def test_no_such_mode(mode):
    message = f"the mode of autotune is one of 'auto', 'wait', 'never', 'always' and 'reproducible', not {mode!r}"
    before = current_mode()
    with pytest.raises(EinsumError) as of_block, autotune(mode):
        pass
    assert str(of_block.value) == message
    assert current_mode() == before
    if mode is not None:
        with pytest.raises(EinsumError) as of_argument:
            current_mode(mode)
        assert str(of_argument.value) == message
