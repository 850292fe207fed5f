"""Calls while torch traces the caller: torch's einsum or, for torch.compile on CUDA, our operator, in plain letters.

The compiler lowers torch's einsum itself and fuses it with what is around it. Everything here either can be
traced or is marked: such a function is called while tracing, with constants, and what it returns is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from einops_fast.arguments import Call, hashable, read_call, read_options
from einops_fast.backends import get_backend
from einops_fast.dtypes import FLOATS, dtype_name
from einops_fast.planning.cost import is_integer
from einops_fast.planning.notation import bind_sizes
from einops_fast.planning.path import check_optimize
from einops_fast.runtime.autocast import autocasts
from einops_fast.runtime.blocks import traced_value
from einops_fast.runtime.precision import check_precision
from einops_fast.runtime.tracing import is_sharded, outside_of_graphs
from einops_fast.runtime.tuning import current_mode

#: Types of devices on which our operator is called.
_WITH_OPERATOR = ("cuda",)

# The sizes of each operand; ``None`` for those that aren't known while tracing.
_Shapes = tuple[tuple[int | None, ...], ...]


def call_traced(
    operands: Sequence[Any],
    out: Any,
    dtype: Any,
    order: str,
    casting: str,
    optimize: Any,
    autotune: str | None,
    precision: str | None,
) -> Any:
    """:func:`einops_fast.fast_einsum` of torch tensors, or of NumPy arrays, which torch.compile turns into tensors."""
    import numpy

    order = read_options(order, casting)
    if precision is not None:
        check_precision(precision)
    call = read_call(operands)
    arrays = call.arrays
    if not callable(optimize):
        check_optimize(optimize, len(arrays))
    letters = _letters(call.spelled, _shapes(arrays))
    if isinstance(arrays[0], numpy.ndarray):
        return _call_numpy(letters, arrays, out, dtype, order, casting)
    backend = traced_backend("torch")
    if dtype is not None:
        backend.check_casting(arrays, dtype, casting)
    result = einsum_traced(letters, arrays, dtype, optimize, autotune, precision)
    if out is None:
        return _ordered(result, arrays, order)
    # Of one operand it may be a view, and memory can't be compared while torch.compile traces.
    return backend.finish(result.clone() if len(arrays) == 1 else result, out, "K", casting)


def traced_backend(name: str) -> Any:
    """Return a backend in code that torch.compile traces, which can't wake one."""
    _wake(name)
    return get_backend(name)


def _wake(name: str) -> bool:
    get_backend(name)
    return True


def einsum_traced(
    letters: str,
    arrays: Sequence[Any],
    dtype: Any,
    optimize: Any,
    autotune: str | None = None,
    precision: str | None = None,
) -> Any:
    """The contraction of these tensors; with a ``dtype``, in that, whatever autocast says."""
    import torch

    if is_sharded(arrays[0]):
        # Imported here because fast_einsum is made of this.
        from einops_fast.einsum import fast_einsum

        options = {"dtype": dtype, "optimize": optimize, "autotune": autotune, "precision": precision}
        return outside_of_graphs(fast_einsum, letters, *arrays, **options)
    kind = arrays[0].device.type
    if dtype is not None:
        arrays = [array.to(dtype) for array in arrays]
        if autocasts(arrays[0]):
            with torch.autocast(kind, enabled=False):
                return einsum_traced(letters, arrays, None, optimize, autotune, precision)
    # What a block in the same code says; `None` for what holds when the operator runs.
    mode = traced_value("autotune") if autotune is None else current_mode(autotune)
    precision = traced_value("precision") if precision is None else precision
    first, plain = arrays[0], (torch.Tensor, torch.nn.Parameter)
    ours = all(type(array) in plain and array.device == first.device for array in arrays)
    if ours and kind in _WITH_OPERATOR and not callable(optimize):
        dtypes = tuple([array.dtype for array in arrays])
        found = _for_operator(letters, kind, first.device.index, dtypes, _shapes(arrays), optimize)
        if found is not None:
            diagonals, convert, equation, order, text = found
            arrays = [
                array if diagonal is None else torch.einsum(diagonal, array)
                for array, diagonal in zip(arrays, diagonals, strict=True)
            ]
            if convert is not None:
                arrays = [array.to(convert) for array in arrays]
            return torch.ops.einops_fast.einsum(arrays, equation, text, mode, precision).permute(order)
    return torch.einsum(letters, arrays)


def _shapes(arrays: Sequence[Any]) -> _Shapes:
    import torch
    from torch.fx.experimental.symbolic_shapes import has_static_value

    if torch._C._get_tracing_state() is not None:
        return tuple([(None,) * array.dim() for array in arrays])
    return tuple([tuple([size if has_static_value(size) else None for size in array.shape]) for array in arrays])


def _call_numpy(letters: str, arrays: Sequence[Any], out: Any, dtype: Any, order: str, casting: Any) -> Any:
    import numpy
    import torch

    result = numpy.einsum(letters, *arrays, dtype=dtype, casting=casting)
    if out is not None:
        # The compiler knows the dtypes of tensors alone.
        traced_backend("torch").check_out(torch.from_numpy(result), torch.from_numpy(out), casting)
        out[...] = result
        return out
    if order == "K":
        return result
    return _ordered(torch.from_numpy(result), [torch.from_numpy(array) for array in arrays], order).numpy()


def _ordered(result: Any, arrays: Sequence[Any], order: str) -> Any:
    if order == "A":
        order = "F" if all(_reversed(array).is_contiguous() for array in arrays) else "C"
    if order == "F":
        return _reversed(_reversed(result).contiguous())
    return result.contiguous() if order == "C" else result


def _reversed(array: Any) -> Any:
    return array.permute(tuple(range(array.dim()))[::-1])


def _letters(spelled: Any, shapes: _Shapes) -> str:
    """The equation in letters, for operands that fit it as far as can be told."""
    subscripts = Call((), spelled).subscripts(tuple(map(len, shapes)))
    known = _known(shapes)
    if known is not None:
        bind_sizes(subscripts, known)
    return subscripts.equation


def _known(shapes: _Shapes) -> tuple[tuple[int, ...], ...] | None:
    """The shapes, if all sizes in them are known."""
    known = tuple(tuple(size for size in shape if size is not None) for shape in shapes)
    return known if list(map(len, known)) == list(map(len, shapes)) else None


def _for_operator(
    letters: str, kind: str, index: int | None, dtypes: tuple[Any, ...], shapes: _Shapes, optimize: Any
) -> tuple[tuple[str | None, ...], Any, str, tuple[int, ...], str] | None:
    """How to call our operator; ``None`` where it isn't to be called.

    One operand is left to the compiler, which fuses its sum with what is around it. functorch can't take gradients of
    the operator, and who loads an export or a trace of torch.jit doesn't know it.

    Returns:
        For each operand an equation that takes its diagonal, or ``None``; the dtype that autocast converts all to, or
        ``None``; the equation for the operator; the axis order for its result; and ``optimize``.
    """
    import torch

    given, _, output = letters.partition("->")
    terms = given.split(",")
    if (
        torch._C._get_tracing_state() is not None
        or torch.compiler.is_exporting()
        or torch._C._are_functorch_transforms_active()
    ):
        return None
    if len(terms) == 1:
        return None
    inputs = ["".join(dict.fromkeys(term)) for term in terms]
    name = _computed_in(terms, output, kind, tuple(map(dtype_name, dtypes)), shapes)
    if name is None:
        return None
    if name not in FLOATS:
        # Where eager calls have no kernels for integers, they are torch.einsum's.
        device = torch.device(kind if index is None else f"{kind}:{index}")
        kernels = import_module("einops_fast.backends.torch.backend").kernel_dtypes(device)
        if not is_integer(name) or name not in kernels:
            return None
    wanted = getattr(torch, name)
    # Imported when it is needed: importing it registers the operator.
    operator = import_module("einops_fast.backends.torch.einsum.ops")
    equation, order = operator.in_product_order(f"{','.join(inputs)}->{output}")
    return (
        tuple(None if term == once else f"{term}->{once}" for term, once in zip(terms, inputs, strict=True)),
        None if all(own == wanted for own in dtypes) else wanted,
        equation,
        order,
        str(hashable(optimize)),
    )


def _computed_in(terms: Sequence[str], output: str, kind: str, dtypes: tuple[str, ...], shapes: _Shapes) -> str | None:
    """The dtype that eager calls compute in, by name; ``None`` if torch.einsum is to choose it."""
    autocast = import_module("einops_fast.backends.torch.autocast")
    if autocast.autocast_dtype(kind) is None:
        return dtypes[0] if len(set(dtypes)) == 1 else None
    orders = len(terms) > 2 and _known(shapes) is None  # of which torch chooses one by the sizes
    path = None if orders else autocast.torch_path(f"{','.join(terms)}->{output}", shapes)
    ones = [[size == 1 for size in shape] for shape in shapes]
    found: str | None = autocast.whole_dtype(terms, output, ones, dtypes, path, kind)
    return found


_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]
_letters._dynamo_marked_constant = True  # type: ignore[attr-defined]
_for_operator._dynamo_marked_constant = True  # type: ignore[attr-defined]
