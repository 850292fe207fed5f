"""How choices by measurement are made: the environment, an argument, and what a wrong mode costs."""

import pytest
from python_process import run_python

from einops_fast import EinsumError, autotune
from einops_fast.runtime.tuning import current_mode


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
