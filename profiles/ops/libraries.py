"""Other libraries' functions for the cases of the study of the operators.

Liger-Kernel (https://github.com/linkedin/Liger-Kernel): its cross entropy writes the gradient over the logits; that its
RMS norm may overwrite the gradient of the result is switched off, as others read it, too.

QuACK (https://github.com/Dao-AILab/quack): of its layer norm there is no backward to call. Its products are the untuned
ones: to tune one takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.ops.cases import EPS, OpCase
from einops_fast.profiles.timing.measure import reason

__all__ = ["LIBRARIES", "Function", "check_library", "function_of"]

Function = Callable[..., Any]


def _same(function: Function, case: OpCase) -> Function:
    return function


def _untuned(function: Function, case: OpCase) -> Function:
    return partial(function, tuned=False)


def _activated(function: Function, case: OpCase) -> Function:
    names = {"gelu_tanh": "gelu_tanh_approx", "silu": "silu", "squared_relu": "relu_sq"}
    if case.activation not in names:
        raise Unavailable(f"QuACK has no {case.activation}")
    # The second of its results is the activated one.
    return lambda x, w, b: function(x, w, names[case.activation], b, tuned=False)[1]


LIGER = "liger_kernel.transformers.functional"

# By operator a module, the name of its function, and what makes that the function of a case.
LIBRARIES: dict[str, dict[str, tuple[str, str, Callable[[Function, OpCase], Function]]]] = {
    "liger": {
        "softmax": (LIGER, "liger_softmax", _same),
        "layer_norm": (LIGER, "liger_layer_norm", lambda f, case: lambda x, w, b: f(x, w, b, EPS)),
        "rms_norm": (LIGER, "liger_rms_norm", lambda f, case: lambda x, w: f(x, w, EPS, in_place=False)),
        "cross_entropy": (LIGER, "liger_cross_entropy", _same),
        "linear_cross_entropy": (LIGER, "liger_fused_linear_cross_entropy", _same),
    },
    "quack": {
        "softmax": ("quack.softmax", "softmax", lambda f, case: lambda x: f(x.flatten(0, -2)).view_as(x)),
        "rms_norm": ("quack.rmsnorm", "rmsnorm", lambda f, case: lambda x, w: f(x, w, eps=EPS)),
        "cross_entropy": ("quack.cross_entropy", "cross_entropy", _same),
        "linear_cross_entropy": ("quack.linear_cross_entropy", "chunked_linear_cross_entropy", _untuned),
        "linear": ("quack.linear", "linear_act_func", _activated),
    },
}


def function_of(library: str, case: OpCase) -> Function:
    """Return the function of a library for a case; raise :class:`Unavailable` where it has none."""
    if case.op not in LIBRARIES[library]:
        raise Unavailable(f"{library} has no {case.op}")
    module, name, adapt = LIBRARIES[library][case.op]
    try:
        function = getattr(import_module(module), name)
    except Exception as error:
        raise Unavailable(f"{library} can't be used: {reason(error)}") from None
    return adapt(function, case)


def check_library(library: str) -> None:
    """Raise :class:`Unavailable` where nothing of a library can be used."""
    package = next(iter(LIBRARIES[library].values()))[0].partition(".")[0]
    if find_spec(package) is None:
        raise Unavailable(f"{package} isn't installed")
    failures = []
    for module, name, _ in LIBRARIES[library].values():
        try:
            getattr(import_module(module), name)
            return
        except Exception as error:
            failures.append(reason(error))
    raise Unavailable(f"{library} can't be used: {failures[0]}")
