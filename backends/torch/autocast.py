"""What autocast makes of torch.einsum: which of its products it converts for, and which dtype comes of that.

On a GPU, autocast converts all operands of torch.einsum. On a CPU it looks at what torch.einsum calls, which contracts
one pair after the other: where a pair has something to sum over it is a ``bmm``, whose operands autocast converts;
elsewhere elements are multiplied, and torch promotes. float64 is never converted, nor is what isn't floating-point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from einops_fast.dtypes import dtype_name

#: Whether autocast is on for any device.
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled

Path = Sequence[Sequence[int]]

_CASTABLE = frozenset({"float16", "bfloat16", "float32"})


def autocast_dtype(device_type: str) -> Any:
    """The dtype that autocast converts to on such a device; ``None`` where it's off."""
    on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if on else None


def outside_autocast(device_type: str, run: Callable[..., Any], *operands: Any) -> Any:
    """``run`` of these operands while autocast, which is on for this type of device, is off.

    What torch.autocast(enabled=False) does as well, and takes longer for.
    """
    torch.set_autocast_enabled(device_type, False)
    try:
        return run(*operands)
    finally:
        torch.set_autocast_enabled(device_type, True)


def whole_dtype(
    inputs: Sequence[str],
    output: str,
    ones: Sequence[Sequence[bool]],
    dtypes: Sequence[str],
    path: Path | None,
    device_type: str,
) -> str | None:
    """Return what to convert all operands to, so that the contraction without autocast is torch.einsum's with it.

    ``None`` where there is no such dtype: it takes torch.einsum, or :func:`pair_by_pair`. What decides on a CPU is the
    ``path``, the pairs that torch contracts; ``None`` if that isn't known.
    """
    target, first = dtype_name(autocast_dtype(device_type)), dtypes[0]
    alike = set(dtypes) == {first}
    if not _CASTABLE.issuperset(dtypes):
        return first if alike else None
    if device_type != "cpu":
        return target
    if len(inputs) == 1:
        return first
    if path is None:
        return None
    # What torch sums over: axes of size 1 it leaves to the others.
    summed = [
        {label for label, one in zip(term, sizes, strict=True) if not one} - set(output)
        for term, sizes in zip(inputs, ones, strict=True)
    ]
    result, converts = _result(summed, dtypes, path, target)
    return target if converts and result == target else first if alike and result == first else None


def _result(summed: Sequence[set[str]], dtypes: Sequence[str], path: Path, target: str) -> tuple[str, bool]:
    """The dtype of torch's result, and whether anything on the way to it is converted to ``target``."""
    left = Counter(label for labels in summed for label in labels)
    terms, converts = list(zip(summed, dtypes, strict=True)), False
    for pair in path:
        (a, of_a), (b, of_b) = (terms[at] for at in sorted(pair))
        for at in sorted(pair, reverse=True):
            del terms[at]
        done = {label for label in a | b if left[label] == (label in a) + (label in b)}
        left.subtract(a & b)
        if done & a & b:
            of_a, converts = target, True
        else:
            of_a = of_a if of_a == of_b else "float32"
        terms.append(((a | b) - done, of_a))
    return terms[0][1], converts


def torch_path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The pairs that torch.einsum contracts, each of positions in the list whose end results are put to."""
    settings: Any = torch.backends.opt_einsum
    if len(shapes) <= 2 or not settings.enabled or not settings.is_available():
        # From left to right: each result is the last of the list, and goes first.
        return tuple((0, last) for last in (1, *range(len(shapes) - 2, 0, -1)))[: len(shapes) - 1]
    return _found_path(equation, shapes, settings.strategy)


@lru_cache(maxsize=1024)
def _found_path(equation: str, shapes: tuple[tuple[int, ...], ...], strategy: str) -> tuple[tuple[int, ...], ...]:
    """The order that opt_einsum finds for torch by its ``strategy``, which its user may set."""
    find: Any = torch.backends.opt_einsum.get_opt_einsum().contract_path
    found, _ = find(equation, *shapes, shapes=True, optimize=strategy)
    return tuple(tuple(pair) for pair in found)


def pair_by_pair(einsum: Callable[..., Any], equation: str, operands: Sequence[Any]) -> Any:
    """The pairs that torch.einsum contracts, each by ``einsum``, to which autocast does what it does to torch's."""
    inputs, _, output = equation.partition("->")
    terms = list(zip(inputs.split(","), operands, strict=True))
    path = torch_path(equation, tuple([tuple(operand.shape) for operand in operands]))
    for pair in path:
        (a, left), (b, right) = (terms[at] for at in sorted(pair))
        for at in sorted(pair, reverse=True):
            del terms[at]
        needed = set(output).union(*(term for term, _ in terms))
        kept = "".join(label for label in dict.fromkeys(a + b) if label in needed) if terms else output
        terms.append((kept, einsum(f"{a},{b}->{kept}", left, right)))
    return terms[0][1]
