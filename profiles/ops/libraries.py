"""Other libraries' functions for the cases of the study of the operators: Liger-Kernel's and QuACK's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.ops.cases import EPS, OpCase

__all__ = ["LIBRARIES", "Function", "Functions"]

Function = Callable[..., Any]

Functions = dict[str, Callable[[OpCase], Function]]
"""By operator, what makes the function for a case; it raises :class:`Unavailable` for what it isn't made for."""

Adapter = Callable[[Function, OpCase], Function]


def _same(function: Function, case: OpCase) -> Function:
    return function


@cache
def _liger() -> Functions:
    """https://github.com/linkedin/Liger-Kernel

    Its cross entropy writes the gradient over the logits. That its RMS norm may overwrite the gradient of the result is
    switched off: others read it, too.
    """
    wanted: dict[str, tuple[str, Adapter]] = {
        "softmax": ("liger_softmax", _same),
        "layer_norm": ("liger_layer_norm", lambda f, case: lambda x, w, b: f(x, w, b, EPS)),
        "rms_norm": ("liger_rms_norm", lambda f, case: lambda x, w: f(x, w, EPS, in_place=False)),
        "cross_entropy": ("liger_cross_entropy", _same),
        "linear_cross_entropy": ("liger_fused_linear_cross_entropy", _same),
    }
    module = "liger_kernel.transformers.functional"
    return _found("liger_kernel", {op: (module, *each) for op, each in wanted.items()})


@cache
def _quack() -> Functions:
    """https://github.com/Dao-AILab/quack; of its layer norm there is no backward to call.

    Its products are the untuned ones: to tune one takes minutes.
    """
    return _found(
        "quack",
        {
            "softmax": ("quack.softmax", "softmax", lambda f, case: lambda x: f(x.flatten(0, -2)).view_as(x)),
            "rms_norm": ("quack.rmsnorm", "rmsnorm", lambda f, case: lambda x, w: f(x, w, eps=EPS)),
            "cross_entropy": ("quack.cross_entropy", "cross_entropy", _same),
            "linear_cross_entropy": ("quack.linear_cross_entropy", "chunked_linear_cross_entropy", _untuned),
            "linear": ("quack.linear", "linear_act_func", _quack_linear),
        },
    )


QUACK_ACTIVATIONS = {"gelu_tanh": "gelu_tanh_approx", "silu": "silu", "squared_relu": "relu_sq"}


def _quack_linear(function: Function, case: OpCase) -> Function:
    if case.activation not in QUACK_ACTIVATIONS:
        raise Unavailable(f"QuACK has no {case.activation}")
    # The second of its results is the activated one.
    return lambda x, w, b: function(x, w, QUACK_ACTIVATIONS[case.activation], b, tuned=False)[1]


def _untuned(function: Function, case: OpCase) -> Function:
    return partial(function, tuned=False)


def _found(package: str, wanted: Mapping[str, tuple[str, str, Adapter]]) -> Functions:
    """What the installed version has of ``{operator: (module, name, adapter)}``.

    Raises:
        Unavailable: it isn't installed, or nothing of it can be imported.
    """
    if find_spec(package) is None:
        raise Unavailable(f"{package} isn't installed")
    found: Functions = {}
    why = ""
    for op, (module, name, adapter) in wanted.items():
        try:
            found[op] = _adapted(getattr(import_module(module), name), adapter)
        except Exception as error:  # of its own dependencies, or another package of that name
            why = why or f"{type(error).__name__}: {error}".split("\n")[0]
    if not found:
        raise Unavailable(f"{package} can't be used: {why}")
    return found


def _adapted(function: Function, adapter: Adapter) -> Callable[[OpCase], Function]:
    return lambda case: adapter(function, case)


LIBRARIES: dict[str, Callable[[], Functions]] = {"liger": _liger, "quack": _quack}
"""What makes the functions of each, or raises :class:`Unavailable`."""
