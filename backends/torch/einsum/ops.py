"""einsum as an operator of torch, ``torch.ops.einops_fast.einsum``, for code that torch.compile compiles.

The compiler takes the operator as one call, whose result is a new tensor in C order, and leaves it as it is; at
run time it is :func:`einops_fast.fast_einsum` on the tensors that there are. So nothing is planned for symbolic
sizes. Its gradients are calls of the operator again, and so is a batch of calls. Autocast means nothing to it: whoever
calls it has converted.
Importing this module registers it.
"""

from __future__ import annotations

import sys
from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from string import ascii_letters
from typing import Any

import torch

from einops_fast.backends.torch.autocast import outside_autocast
from einops_fast.backends.torch.einsum.autograd import gradient_equation, product_order, spread
from einops_fast.backends.torch.flops import formulas
from einops_fast.dtypes import dtype_name
from einops_fast.einsum import fast_einsum
from einops_fast.errors import SubscriptsError
from einops_fast.explain import explain_shapes
from einops_fast.planning.notation import Subscripts, bind_sizes, parse
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.precision import allowed

_NAME = "einops_fast::einsum"

torch.library.define(
    _NAME,
    "(Tensor[] operands, str equation, str optimize, str? autotune, str? precision) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)

#: Takes a list of tensors of one dtype, an equation in letters with ``'->'`` and no label twice in a term, and
#: ``optimize``, as text, ``autotune`` and ``precision`` of :func:`einops_fast.fast_einsum`.
einsum: Any = torch.ops.einops_fast.einsum.default


@torch.library.impl(_NAME, "CompositeExplicitAutograd")
def _compute(operands: Sequence[Any], *others: Any) -> Any:
    if autocasts(operands[0]):
        return outside_autocast(operands[0].device.type, _contract, operands, *others)
    return _contract(operands, *others)


def _contract(operands: Sequence[Any], equation: str, optimize: str, autotune: Any, precision: Any) -> Any:
    if torch.compiler.is_compiling():
        # Constants are folded while the compiler is at work, when fast_einsum would call the operator.
        result = _by_torch(equation, operands).contiguous()
    else:
        result = fast_einsum(
            equation, *operands, order="C", optimize=_evaluated(optimize), autotune=autotune, precision=precision
        )
    # Alone, an operand may be its own result.
    shares = len(operands) == 1 and result.untyped_storage().data_ptr() == operands[0].untyped_storage().data_ptr()
    return result.clone() if shares else result


def _flops(operands: Sequence[Any], equation: str, optimize: str, *others: Any) -> int:
    shapes, dtype = [tuple(operand.shape) for operand in operands], dtype_name(operands[0].dtype)
    return explain_shapes(equation, shapes, dtype, "torch", _evaluated(optimize)).flops


formulas["einsum"] = _flops


@torch.library.register_fake(_NAME)  # type: ignore[untyped-decorator]
def _shape(operands: Sequence[Any], equation: str, *options: Any) -> Any:
    subscripts, sizes = _read(equation, operands)
    return operands[0].new_empty([sizes[label] for label in subscripts.output])


def _setup(ctx: Any, inputs: tuple[Sequence[Any], str, str, str | None, str | None], output: Any) -> None:
    operands, ctx.equation, _, ctx.autotune, precision = inputs
    # Backward runs in threads of autograd's own; while the compiler is at work, nobody knows what blocks there will be.
    ctx.precision = precision if precision is not None or torch.compiler.is_compiling() else allowed()
    ctx.save_for_backward(*operands)


def _backward(ctx: Any, grad: Any) -> tuple[list[Any], None, None, None, None]:
    operands = ctx.saved_tensors
    subscripts, sizes = _read(ctx.equation, operands)
    shapes = [operand.shape for operand in operands]
    gradients: list[Any] = []
    for of, (labels, wanted) in enumerate(zip(subscripts.inputs, ctx.needs_input_grad[0], strict=True)):
        if not wanted:
            gradients.append(None)
            continue
        equation, kept = gradient_equation(subscripts, sizes, shapes, of)
        equation, order = in_product_order(equation)
        others = [operand.conj() for at, operand in enumerate(operands) if at != of]
        gradient = einsum([grad, *others], equation, "auto", ctx.autotune, ctx.precision).permute(order)
        gradients.append(gradient if kept == labels else spread(gradient, labels, kept, shapes[of]))
    return gradients, None, None, None, None


torch.library.register_autograd(_NAME, _backward, setup_context=_setup)


@torch.library.register_vmap(_NAME)  # type: ignore[untyped-decorator]
def _batch(
    info: Any, in_dims: tuple[Any, ...], operands: Sequence[Any], equation: str, *options: Any
) -> tuple[Any, int]:
    """A batch of contractions is one, with one more axis in those operands that are batches."""
    inputs, _, output = equation.partition("->")
    label = next((letter for letter in ascii_letters if letter not in equation), None)
    if label is None:
        raise SubscriptsError(f"{equation!r} has no letter left for the axis that vmap adds")
    terms = [
        term if at is None else f"{term[:at]}{label}{term[at:]}"
        for term, at in zip(inputs.split(","), in_dims[0], strict=True)
    ]
    equation, order = in_product_order(f"{','.join(terms)}->{label}{output}")
    return einsum(list(operands), equation, *options).permute(order), 0


@torch.library.impl(_NAME, "Batched")
def _batch_of_gradients(operands: Sequence[Any], equation: str, optimize: str, autotune: Any, precision: Any) -> Any:
    """Of tensors as ``is_grads_batched`` makes them, which torch follows from call to call, but not into its einsum."""
    return fast_einsum(equation, *operands, optimize=_evaluated(optimize), autotune=autotune, precision=precision)


if "torch.distributed.tensor" in sys.modules:  # as it is wherever torch.compile has traced anything
    with suppress(ImportError):  # a torch without the names that say so: it raises for DTensors
        import_module("einops_fast.backends.torch.einsum.placements").register(einsum)


@lru_cache(maxsize=1024)
def in_product_order(equation: str) -> tuple[str, tuple[int, ...]]:
    """An equation whose result a GEMM can write in C order, and the axis order that makes it that of ``equation``.

    So where the result has to be permuted, that is a view, which the compiler can see.
    """
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    order = product_order(terms, output) if len(terms) == 2 else output
    return f"{inputs}->{order}", tuple(map(order.index, output))


def _by_torch(equation: str, operands: Sequence[Any]) -> Any:
    """By torch.einsum, which on a GPU has no products of integers."""
    first = operands[0]
    if first.is_floating_point() or first.is_complex():
        return torch.einsum(equation, operands)
    return torch.einsum(equation, [operand.cpu() for operand in operands]).to(first)


def _read(equation: str, operands: Sequence[Any]) -> tuple[Subscripts, dict[str, int]]:
    """The equation and the size of every label; sizes may be symbolic."""
    subscripts = parse(equation, tuple([operand.dim() for operand in operands]), words=False)
    if any(len(set(term)) < len(term) for term in subscripts.inputs):
        raise SubscriptsError(f"{equation!r} has a label twice in one term: take the diagonal first")
    return subscripts, bind_sizes(subscripts, [operand.shape for operand in operands])


@lru_cache(maxsize=256)
def _evaluated(optimize: str) -> Any:
    """``optimize`` as it was before it was made text: a name stands for itself."""
    try:
        return literal_eval(optimize)
    except ValueError:
        return optimize
