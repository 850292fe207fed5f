"""The command ``einops-fast explain``: what an einsum or attention of arrays that aren't there would do."""

from __future__ import annotations

import argparse
import ast
from contextlib import nullcontext
from typing import Any

from einops_fast.attention.explain import explain_attention
from einops_fast.backends import registered
from einops_fast.backends.absent_gpu import absent_gpu, aiming
from einops_fast.backends.gpus import told_rates
from einops_fast.commands.output import print_json, print_marked
from einops_fast.commands.parser import add_json, axis_sizes, numbers
from einops_fast.errors import EinsumError
from einops_fast.explain import example_arrays, explain_shapes
from einops_fast.planning.cost import ITEM_SIZES

__all__ = ["add_to"]

_ARRAYS = {"bias": "", "mask": "bool", "alibi_slopes": "float32", "sinks": "float32"}
"""Further arrays of attention of which shapes say all, and their dtypes."""


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    parser = commands.add_parser(
        "explain",
        help="print the plan of an einsum, or what attention would do",
        description="Print what fast_einsum or attention would do with operands of these shapes.",
        usage="%(prog)s EQUATION SHAPE... [NAME=SIZE...] [OPTIONS]\n"
        "       %(prog)s attention PATTERN SHAPE... [ARGUMENT=VALUE...] [OPTIONS]",
    )
    parser.add_argument(
        "equation",
        metavar="EQUATION",
        help="such as 'bind,bjnd->bnij'; or attention, and a pattern or layout behind it",
    )
    parser.add_argument(
        "operands",
        nargs="+",
        metavar="SHAPE",
        help="of each operand, such as 64,100,8,128 or 64x100x8x128; () of a scalar; h=8 for the size of axis h; "
        "causal=True or bias=8x128x128 for an argument of attention",
    )
    parser.add_argument(
        "--strides", nargs="+", type=numbers, metavar="STRIDES", help="of each operand, in elements, such as 1,64"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=ITEM_SIZES, metavar="DTYPE", help="of all operands (default: %(default)s)"
    )
    parser.add_argument("--backend", choices=registered(), help="default: numpy, and torch with --device")
    parser.add_argument("--device", metavar="GPU", help="one that needn't be here: h200, h100, a100, sm_90, ...")
    parser.add_argument(
        "--optimize",
        type=lambda text: {"true": True, "false": False}.get(text.lower(), text),
        default="auto",
        help="true, false or the name of an opt_einsum optimizer (default: %(default)s)",
    )
    parser.add_argument("--memory-limit", metavar="BYTES", help="such as 2GiB: what the call may allocate at a time")
    add_json(parser)
    parser.collects = "operands"
    parser.set_defaults(answer=_explain, wrong=parser.error)


def _explain(options: argparse.Namespace) -> int:
    about_attention = options.equation == "attention"
    shapes: list[tuple[int, ...]] = []
    named: dict[str, str] = {}
    pattern = options.operands.pop(0) if about_attention else ""
    try:
        for each in map(axis_sizes, options.operands):
            named.update(each) if isinstance(each, dict) else shapes.append(each)
    except argparse.ArgumentTypeError as error:
        options.wrong(str(error))
    gpu = None if options.device is None else absent_gpu(options.device)
    if gpu is not None and options.backend not in (None, "torch"):
        raise EinsumError(f"--device plans for tensors of torch, not for arrays of {options.backend}")
    backend = options.backend or ("numpy" if gpu is None else "torch")
    with nullcontext() if gpu is None else aiming(gpu):
        explanation: Any
        if about_attention:
            arrays = example_arrays(shapes, options.dtype, backend, options.strides)
            given = {name: _argument(name, text, options.dtype, backend) for name, text in named.items()}
            operands = [pattern, *arrays] if "->" in pattern else arrays
            explanation = explain_attention(*operands, **({} if "->" in pattern else {"layout": pattern}), **given)
        else:
            explanation = explain_shapes(
                options.equation,
                shapes,
                dtype=options.dtype,
                backend=backend,
                optimize=options.optimize,
                sizes={name: _size(name, text) for name, text in named.items()},
                memory_limit=options.memory_limit,
                strides=options.strides,
            )
        rates = "" if gpu is None else told_rates(gpu.name).assumed
        if options.json:
            return print_json(explanation.to_dict() | ({"rates": rates} if rates else {}))
        return print_marked(f"{explanation}\ntimes by rates {rates}" if rates else str(explanation))


def _size(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise EinsumError(f"the size of axis {name!r} is a number, not {text!r}") from None


def _argument(name: str, text: str, dtype: str, backend: str) -> Any:
    """Return an argument of attention: an array for a shape, or what Python reads."""
    if name in _ARRAYS:
        return example_arrays([numbers(text)], _ARRAYS[name] or dtype, backend)[0]
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
