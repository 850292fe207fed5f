"""The command ``einops-fast explain``: what an einsum or attention of arrays that aren't there would do."""

from __future__ import annotations

import argparse
import ast
from contextlib import nullcontext
from typing import Any

from einops_fast.attention.explanation import explain_attention
from einops_fast.backends.absent_gpu import absent_gpu, aiming
from einops_fast.backends.gpus import told_rates
from einops_fast.commands.output import print_json, print_marked
from einops_fast.commands.parser import numbers
from einops_fast.errors import EinsumError
from einops_fast.explain import example_arrays, explain_shapes

_ARRAYS = {"bias": "", "mask": "bool", "alibi_slopes": "float32", "sinks": "float32"}
"""Further arrays of attention of which shapes say all, and their dtypes."""


def explain(options: argparse.Namespace) -> int:
    """Print the plan, or what would be chosen."""
    gpu = None if options.device is None else absent_gpu(options.device)
    backend = options.backend or ("numpy" if gpu is None else "torch")
    if gpu is not None and backend != "torch":
        raise EinsumError(f"--device plans for tensors of torch, not for arrays of {backend}")
    about_attention = options.equation == "attention"
    pattern = options.operands.pop(0) if about_attention else options.equation
    if pattern.endswith("-"):
        options.wrong(f"{pattern!r} ends in '-': write it in quotes, as a shell takes '>' and what follows for a file")
    pairs = [each.partition("=") for each in options.operands]
    named = {name.strip(): text.strip() for name, given, text in pairs if given}
    try:
        shapes = [numbers(text) for text, given, _ in pairs if not given]
        with nullcontext() if gpu is None else aiming(gpu):
            explanation: Any
            if about_attention:
                arrays = example_arrays(shapes, options.dtype, backend, options.strides)
                given = {name: _argument(name, text, options.dtype, backend) for name, text in named.items()}
                in_words = "->" in pattern
                layout = {} if in_words else {"layout": pattern}
                explanation = explain_attention(*[pattern] * in_words, *arrays, **layout, **given)
            else:
                sizes = {name: _value(text) for name, text in named.items()}
                limit, strides = options.memory_limit, options.strides
                explanation = explain_shapes(
                    pattern, shapes, options.dtype, backend, options.optimize, sizes, limit, strides
                )
    except argparse.ArgumentTypeError as error:
        options.wrong(str(error))
    rates = {} if gpu is None else {"rates": told_rates(gpu.name).assumed}
    if options.json:
        return print_json(explanation.to_dict() | rates)
    return print_marked("\n".join([str(explanation), *[f"times by rates {each}" for each in rates.values()]]))


def _argument(name: str, text: str, dtype: str, backend: str) -> Any:
    """Return an argument of attention: an array for a shape, or what Python reads."""
    if name in _ARRAYS:
        return example_arrays([numbers(text)], _ARRAYS[name] or dtype, backend)[0]
    return _value(text)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
