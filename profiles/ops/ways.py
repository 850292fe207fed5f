"""Ways to compute a case of the study of the operators: ours, torch's own functions, torch.compile, other libraries.

Liger-Kernel (https://github.com/linkedin/Liger-Kernel): its cross entropy writes the gradient over the logits; that its
RMS norm may overwrite the gradient of the result is switched off, as others read it, too.

QuACK (https://github.com/Dao-AILab/quack): of its layer norm there is no backward to call. Its products are the untuned
ones: to tune one takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from einops_fast import ops
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.ops.cases import EPS, OpCase
from einops_fast.profiles.study import Maker, Task
from einops_fast.profiles.timing.measure import reason
from einops_fast.profiles.ways import Inputs, Way, compiled_once

Function = Callable[..., Any]


def op_inputs(task: Task, seed: int) -> Inputs:
    """Return standard normal operands, matrices so that their products are, too, and weights of norms near 1."""
    case, framework = task.case, task.framework
    vector, matrix = (case.features,), (case.width, case.features)
    more: dict[str, list[tuple[int, ...]]] = {
        "layer_norm": [vector, vector],
        "rms_norm": [vector],
        "dropout_add_ln": [case.shape, vector, vector],
        "dropout_add_layer_norm": [case.shape, vector, vector],
        "bias_gelu": [vector],
        "linear_cross_entropy": [matrix],
        "linear": [matrix, (case.width,)],
        "qkv_self_attn": [(3 * case.features, case.features), (3 * case.features,)],
    }
    shapes = [case.shape, *more.get(case.op, [])]
    results = {"cross_entropy": [], "linear_cross_entropy": [], "linear": [(*case.shape[:-1], case.width)],
               "dropout_add_layer_norm": [case.shape, case.shape]}.get(case.op, [case.shape])  # fmt: skip
    arrays = framework.normal([*shapes, *results], task.dtype, seed)
    operands, cotangents = arrays[: len(shapes)], arrays[len(shapes) :]
    if case.op in ("linear", "linear_cross_entropy", "qkv_self_attn"):
        operands[1] *= case.features**-0.5
    if "norm" in case.op or case.op == "dropout_add_ln":
        weight = operands[2 if case.op.startswith("dropout") else 1]
        weight *= 0.25
        weight += 1
    for operand in operands:
        framework.track(operand)
    targets: tuple[Any, ...] = ()
    if not results:
        classes = case.width or case.features
        [normal] = framework.normal([(case.rows,)], "float32", seed + 100)
        targets = (((normal * 0.5**0.5).erf().abs() * classes).long().clamp_(0, classes - 1),)
    return Inputs(tuple(operands), tuple(cotangents), targets, task.backward)


# Ours

OURS: dict[str, Callable[[OpCase], Function]] = {
    "softmax": lambda case: ops.softmax,
    "log_softmax": lambda case: ops.log_softmax,
    "layer_norm": lambda case: lambda x, w, b: ops.layer_norm(x, weight=w, bias=b, eps=EPS),
    "rms_norm": lambda case: lambda x, w: ops.rms_norm(x, weight=w, eps=EPS),
    "dropout_add_ln": lambda case: lambda x, r, w, b: ops.dropout_add_layer_norm(x, r, w, b, case.p, EPS)[0],
    "dropout_add_layer_norm": lambda case: lambda x, r, w, b: ops.dropout_add_layer_norm(x, r, w, b, case.p, EPS),
    "bias_gelu": lambda case: ops.bias_gelu,
    "cross_entropy": lambda case: ops.cross_entropy,
    "linear_cross_entropy": lambda case: ops.linear_cross_entropy,
    "linear": lambda case: partial(ops.linear, activation=case.activation),
    "qkv_self_attn": lambda case: lambda x, w, b: ops.qkv_self_attention(x, case.heads, w, b),
}


# torch's own functions, as its users call them


def _summed(case: OpCase, functional: Any) -> Function:
    def call(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        summed = functional.dropout(x, case.p) + residual
        norm = functional.layer_norm(summed, (case.features,), weight, bias, EPS)
        return (norm, summed) if case.op == "dropout_add_layer_norm" else norm

    return call


def _activated(case: OpCase, functional: Any) -> Function:
    activations: dict[str, Function] = {
        "": lambda x: x,
        "gelu": functional.gelu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
        "silu": functional.silu,
        "squared_relu": lambda x: functional.relu(x).square(),
    }
    activation = activations[case.activation]
    return lambda x, w, b: activation(functional.linear(x, w, b))


def _attend(case: OpCase, functional: Any, q: Any, k: Any, v: Any) -> Any:
    heads = [each.unflatten(-1, (case.heads, -1)).transpose(1, 2) for each in (q, k, v)]
    return functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


def _attend_apart(case: OpCase, functional: Any) -> Function:
    """Return a function with three projections, as in Hugging Face's BERT."""

    def call(x: Any, weight: Any, bias: Any) -> Any:
        parts = zip(weight.chunk(3), bias.chunk(3), strict=True)
        return _attend(case, functional, *(functional.linear(x, *part) for part in parts))

    return call


def _attend_packed(case: OpCase, functional: Any) -> Function:
    return lambda x, w, b: _attend(case, functional, *functional.linear(x, w, b).chunk(3, -1))


NATIVES: dict[str, Callable[[OpCase, Any], Function]] = {
    "softmax": lambda case, functional: partial(functional.softmax, dim=-1),
    "log_softmax": lambda case, functional: partial(functional.log_softmax, dim=-1),
    "layer_norm": lambda case, functional: lambda x, w, b: functional.layer_norm(x, (case.features,), w, b, EPS),
    "rms_norm": lambda case, functional: lambda x, w: functional.rms_norm(x, (case.features,), w, EPS),
    "dropout_add_ln": _summed,
    "dropout_add_layer_norm": _summed,
    "bias_gelu": lambda case, functional: lambda x, b: functional.gelu(x + b),
    "cross_entropy": lambda case, functional: functional.cross_entropy,
    "linear_cross_entropy": lambda case, functional: (
        lambda x, w, target: functional.cross_entropy(functional.linear(x, w), target)
    ),
    "linear": _activated,
    "qkv_self_attn": _attend_apart,
}


# Other libraries


def _same(function: Function, case: OpCase) -> Function:
    return function


def _quack_linear(function: Function, case: OpCase) -> Function:
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
        "linear_cross_entropy": (
            "quack.linear_cross_entropy", "chunked_linear_cross_entropy", lambda f, case: partial(f, tuned=False)
        ),
        "linear": ("quack.linear", "linear_act_func", _quack_linear),
    },
}  # fmt: skip


def check_library(library: str, framework: Framework) -> None:
    """Raise :class:`Unavailable` where a library can't be used."""
    _function(library, next(iter(LIBRARIES[library])))


def _function(library: str, op: str) -> Function:
    module, name, _ = LIBRARIES[library][op]
    try:
        function: Function = getattr(import_module(module), name)
    except Exception as error:
        raise Unavailable(f"{library} can't be used: {reason(error)}") from None
    return function


# Ways


def _way(name: str, task: Task) -> Function | Way:
    """Return a way of a case.

    ``native`` are torch's functions one after the other; ``sdpa`` has one projection in place of three; ``linear`` is
    the product of ``linear`` without its activation: what would remain if that were free.
    """
    case, framework = task.case, task.framework
    functional = framework.torch.nn.functional
    if name == "ours":
        return OURS[case.op](case)
    if name == "native":
        return NATIVES[case.op](case, functional)
    if name == "compile" and case.compiled:
        return Way(name, NATIVES[case.op](case, functional), framework, prepare=compiled_once(framework.torch))
    if name == "sdpa" and case.op == "qkv_self_attn":
        return _attend_packed(case, functional)
    if name == "linear" and case.op == "linear":
        function: Function = functional.linear
        return function
    if case.op in LIBRARIES.get(name, ()):
        adapt = LIBRARIES[name][case.op][-1]
        # The gradient of Liger's loss takes the place of the logits.
        overwrites = (name, case.op) == ("liger", "cross_entropy")
        return Way(name, adapt(_function(name, case.op), case), framework, overwrites=overwrites)
    raise Unavailable(f"{name} has no {case.op}")


MAKERS: dict[str, Maker] = {
    name: partial(_way, name) for name in ("ours", "native", "sdpa", "compile", *LIBRARIES, "linear")
}
