"""How choices by measurement are made: the environment, an argument, and what a wrong mode costs."""

import pytest
from python_process import run_python

from einops_fast import EinsumError, autotune
from einops_fast.runtime.tuning import MODES, current_mode


def _default(value, script="print(current_mode())"):
    """What a process prints whose environment says so."""
    script = f"import os, einops_fast\nfrom einops_fast.runtime.tuning import current_mode\n{script}"
    return run_python("-c", script, EINOPS_FAST_AUTOTUNE=value).stdout.strip()


@pytest.mark.parametrize(("value", "mode"), [(None, "auto"), ("", "auto"), ("always", "always")])
def test_the_environment_says_what_the_default_is(value, mode):
    assert _default(value) == mode


def test_the_environment_is_read_once():
    assert _default("never", "os.environ['EINOPS_FAST_AUTOTUNE'] = 'always'\nprint(current_mode())") == "never"


def test_a_wrong_environment_is_an_error_at_the_first_use_only():
    script = """
for use in (current_mode, current_mode, lambda: current_mode('always')):
    try:
        print(use())
    except einops_fast.EinsumError as error:
        print(error)
with einops_fast.autotune('never'):
    print(current_mode())
"""
    message = "EINOPS_FAST_AUTOTUNE is one of 'auto', 'wait', 'never', 'always' and 'reproducible', not 'Never'"
    assert _default("Never", script).splitlines() == [message, message, "always", "never"]


def test_an_argument_and_a_block_overrule_the_environment():
    assert _default("never", "with einops_fast.autotune('always'): print(current_mode())") == "always"
    assert _default("never", "print(current_mode('auto'))") == "auto"


def test_an_argument_of_a_call_overrules_a_wrong_environment():
    script = """
import numpy as np
for mode in ('never', 'Never'):
    try:
        print(einops_fast.fast_einsum('i->', np.ones(3), autotune=mode))
    except einops_fast.EinsumError as error:
        print(error)
"""
    wrong = "the mode of autotune is one of 'auto', 'wait', 'never', 'always' and 'reproducible', not 'Never'"
    assert _default("Never", script).splitlines() == ["3.0", wrong]


def test_an_argument_overrules_a_block():
    with autotune("never"):
        assert [current_mode(mode) for mode in (None, *MODES)] == ["never", *MODES]


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
