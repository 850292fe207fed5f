"""Calls that torch.compile traces, where all sizes are known: thought through without the compiler following each line.

It takes less than a millisecond to think, and half a second to follow that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.axes import seen
from einops_fast.attention.choice import choose
from einops_fast.attention.options import Options, Request
from einops_fast.attention.prepare import make_plan
from einops_fast.attention.registry import Implementation, implementation
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.attention.torch_state import seed_for

Kinds = tuple[tuple[str, tuple[int, ...], tuple[int, ...], Any, Any], ...]
"""Of each array its name, shape, strides if it is one of q, k and v, dtype and device."""


class _Kind(NamedTuple):
    """What a plan depends on of an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    def stride(self) -> tuple[int, ...]:
        return self.strides


def may_be_known() -> bool:
    """Return whether this torch can follow what is made of constants that it takes as they are.

    2.11 can't compare such a tuple with another one, and says while it calls :func:`known_plan` that it traces nothing.
    """
    import torch

    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


may_be_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


def known_kinds(arrays: Mapping[str, Any]) -> Kinds | None:
    """Return what a plan depends on of arrays, as constants; ``None`` if a size or a stride is none.

    The compiler makes sure by itself that what it has compiled is for tensors that are alike in this.
    """
    import torch

    # To the compiler the type of a symbol that stands for a number is int, too.
    is_known = torch.fx.experimental.symbolic_shapes.has_static_value
    found = []
    for name, array in arrays.items():
        if not isinstance(array, torch.Tensor):
            return None
        shape, strides = array.shape, array.stride() if name in ("q", "k", "v") else ()
        for number in (*shape, *strides):
            if not is_known(number):
                return None
        # Of a symbol that can be one number only, int() makes this number, which a constant is.
        found.append((name, tuple(map(int, shape)), tuple(map(int, strides)), array.dtype, array.device))
    return tuple(found)


def known_options(*values: Any) -> tuple[Any, ...] | None:
    """Return options as constants; ``None`` if one is none while torch.compile traces."""
    import torch

    found: list[Any] = []
    for value in values:
        if value is None or value is True or value is False or isinstance(value, str):
            found.append(value)
        elif isinstance(value, (int, float)):
            if not torch.fx.experimental.symbolic_shapes.has_static_value(value):
                return None
            found.append(int(value) if isinstance(value, int) else float(value))
        elif isinstance(value, (list, tuple)):
            own = known_options(*value)
            if own is None:
                return None
            found.append(own)
        else:
            return None
    return tuple(found)


def known_plan(
    pattern: str,
    patterns: tuple[tuple[str, str | None], ...],
    constants: tuple[Any, ...],
    kinds: Kinds,
    state: Mapping[str, Any],
    generation: str,
) -> tuple[Any, ...] | None:
    """Return what :func:`known_call` needs of a plan, or ``None`` where something is wrong, which the compiler follows.

    ``constants`` are the sequence, options and longest sequences of a request, ``state`` is what torch knows of
    derivatives, and the choice depends on :data:`einops_fast.attention.registry.generation`.
    """
    sequence, options, longest = constants
    arrays = {name: _Kind(*kind) for name, *kind in kinds}
    try:
        plan = make_plan(Request(pattern, sequence, Options(*options), patterns, longest), arrays, "torch", state)
        way = choose(plan, "never", quiet=True).implementation
        knows = way.knows(plan.spec)
    except Exception:
        return None
    views = tuple([(name, *_fields(view), dtype) for name, view, dtype in plan.views])
    return way.name, knows, _fields(plan.spec), views, _fields(plan.result), _fields(plan.log)


# torch.compile calls it while tracing, and takes what it returns as it is. That is of tuples and constants: it couldn't
# follow methods of anything else.
known_plan._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _fields(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, each.name) for each in fields(record)])


def known_call(known: tuple[Any, ...], arrays: Mapping[str, Any]) -> Any:
    """Return the result of a call as its plan would give it, but with fewer objects for the compiler."""
    name, knows, numbers, views, of_result, of_log = known
    way, spec, on = implementation(name), AttentionSpec(*numbers), arrays_of("torch")
    assert isinstance(way, Implementation)
    found = {}
    for which, split, perm, shape, dtype in views:
        array = arrays[which] if dtype is None else on.cast(arrays[which], dtype)
        found[which] = seen(array, on.permute, split, perm, shape)
    inputs = AttentionInputs(**found)
    run = way.compiled(spec, knows)
    if spec.dropout_p > 0 and way.seeded:
        inputs.seed = seed_for(inputs.q)
    result, lse = run(inputs)
    result = seen(result, on.permute, *of_result)
    return result if lse is None else (result, seen(lse, on.permute, *of_log))
