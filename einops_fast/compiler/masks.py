"""Masks that a program makes of nothing but sizes: which keys around the one that it faces each query sees.

A mask is made here as the program makes it, and looked at. Where sizes change it is made at several made-up ones, which
are larger than every number in it that can be a position, and all of them have to tell the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch import fx
from torch.fx import Node

from einops_fast.compiler.constants import constant_of, times_number
from einops_fast.compiler.memory import is_written
from einops_fast.compiler.nodes import argument, called, dtype_of, example_of, name_of, shape_of, source_of

_FUNCTIONS = frozenset(
    "ones zeros empty full arange ones_like zeros_like empty_like full_like tensor scalar_tensor fill_ triu tril triu_ "
    "tril_ not and or ge gt le lt eq ne where masked_fill masked_fill_ mul add sub rsub neg abs log bool float half "
    "bfloat16 double int long to type contiguous clone unsqueeze squeeze getitem reshape expand transpose t permute "
    "getattr new_ones new_zeros new_full".split()
)
"""What is computed of sizes to see what comes of it."""

_EXACT = (torch.int32, torch.int64, torch.float32, torch.float64)
"""Dtypes that have all positions as they are, however many there are."""

_KEEP_VALUES = frozenset(
    "to type float half bfloat16 double type_as int long getitem reshape unsqueeze expand permute transpose".split()
)
"""What has the same numbers as its operand, or some of them."""

_OF_BITS = frozenset("not and or ge gt le lt eq ne bool".split())
"""What has no positions in its result, whatever is in its operands."""

LARGE = -1e4
"""A number that hides a key if it is in the place of its score, or less than that."""

_MOST_TIMES = 3
"""The largest factor of a size that sizes may be made of."""

_MOST_BYTES, _MOST_NODES = 1 << 30, 60


class Band(NamedTuple):
    """Keys around the one that a query faces."""

    # how many of them are seen; `None` for all
    before: int | None
    after: int | None
    alignment: str  # which query faces which key: `'top_left'` or `'bottom_right'`
    # the number that is added to the scores of the other keys; `None` of a mask, 0 if none are hidden
    fill: float | None = None

    def meets(self, other: Band, square: bool) -> Band | None:
        """Return the keys that both bands show, of as many queries as keys or not; ``None`` if that is no band."""
        for one, rest in ((self, other), (other, self)):
            if one.before is one.after is None:
                return rest
        if self.alignment != other.alignment and not square:
            return None
        sides = [[each for each in pair if each is not None]
                 for pair in ((self.before, other.before), (self.after, other.after))]  # fmt: skip
        before, after = [min(side) if side else None for side in sides]
        return Band(before, after, self.alignment)

    def shows_each_query_a_key(self, queries: Any, keys: Any) -> bool:
        """Return whether no row of scores is hidden as a whole, for so many queries and keys, which may be symbols."""
        if queries == keys:
            return True  # each query sees the key that it faces
        if self.alignment == "top_left":
            last = queries - 1  # whose keys begin the farthest to the right
            return self.before is None or _is_at_least(keys - 1, last - self.before)
        return self.after is None or _is_at_least(keys - queries + self.after, 0)


def _is_at_least(one: Any, other: Any) -> bool:
    difference = sympy.sympify(one - other)
    return bool(difference.is_Integer and difference >= 0)


def band_of(node: Node, axes: tuple[int, int], seen: bool | None) -> Band | None:
    """Return the band of keys that a mask shows to each query; ``None`` if a node is no such mask.

    ``axes`` are those of queries and keys; ``seen`` is whether True stands for a key that is seen, and ``None`` of what
    is added to the scores.
    """
    found: set[Band] | None = None
    for made in _made(node):
        if made is None:
            return None
        rest = [axis for axis in range(made.dim()) if axis not in axes]
        for axis in rest:
            made = made.narrow(axis, 0, 1) if not made.stride(axis) else made
        every = made.permute(*rest, *axes).reshape(-1, made.shape[axes[0]], made.shape[axes[1]])
        if not bool((every == every[:1]).all()):
            return None
        bands = _bands(every[0], seen)
        found = bands if found is None else found & bands
    # A causal one is known to more kernels than others are.
    return min(found, key=lambda band: (band.after != 0, band.alignment != "top_left")) if found else None


def gate_of(node: Node) -> tuple[Any, Node, float, list[Any]] | None:
    """Return what ``x * gate + fill * (1 - gate)`` is of: ``x``, a gate of zeros and ones, ``fill`` and inner nodes."""
    name, one, other = name_of(node), source_of(node), argument(node, 1, "other")
    if name not in ("add", "sub") or argument(node, 2, "alpha", 1) != 1:
        return None
    for gated, rest in ((one, other), (other, one)) if name == "add" else ((one, other),):
        inverse, fill = (times_number(rest) if name_of(rest) == "mul" else None) or (None, 0.0)
        if name_of(gated) != "mul" or name_of(inverse) not in ("sub", "rsub"):
            continue
        ends = [source_of(inverse), argument(inverse, 1, "other")]
        begin, gate = ends if name_of(inverse) == "sub" else ends[::-1]
        factors = [source_of(gated), argument(gated, 1, "other")]
        plain = constant_of(begin) == 1 and argument(inverse, 2, "alpha", 1) == 1
        if plain and isinstance(gate, Node) and gate in factors and _is_of_zeros_and_ones(gate):
            gated_by = factors[1 - factors.index(gate)]
            return gated_by, gate, fill if name == "add" else -fill, [gated, rest, inverse]
    return None


def is_small(node: Node, factor: float) -> bool:
    """Return whether what is added to the scores is made of nothing but sizes, and hides no keys."""
    found = list(_made(node))
    return bool(found) and all(made is not None and bool((made * factor > LARGE).all()) for made in found)


def _is_of_zeros_and_ones(node: Any) -> bool:
    """Return whether a tensor is made of zeros and ones, whatever the program is given."""
    value = example_of(node)
    if not isinstance(value, torch.Tensor):
        return False
    if value.dtype == torch.bool:
        return True
    if name_of(node) in _KEEP_VALUES:
        return not is_written(node) and _is_of_zeros_and_ones(argument(node, 0, "input"))
    found = list(_made(node))
    return bool(found) and all(made is not None and bool(((made == 0) | (made == 1)).all()) for made in found)


def _made(node: Node) -> Iterator[torch.Tensor | None]:
    """Make a tensor at the sizes of the graph or at several made-up ones; ``None`` where that can't be done."""
    shape, needed = shape_of(node), _needed(node)
    if shape is None or needed is None or any(is_written(each, needed) for each in needed):
        return
    sizes = [size.node.expr for each in needed for size in (shape_of(each) or ()) if isinstance(size, torch.SymInt)]
    sizes += [number.node.expr for each in needed for number in _numbers(each) if isinstance(number, torch.SymInt)]
    symbols = sorted({symbol for size in sizes for symbol in size.free_symbols}, key=str)
    choices: list[dict[Any, int]] = [{}]
    if symbols:
        reach = _reach(needed, sizes, symbols)
        if reach is None:
            return
        count = len(symbols)
        # Any two of them differ each way.
        choices = [{symbol: reach + 9 + 4 * at for at, symbol in enumerate(symbols)},
                   {symbol: reach + 10 + 3 * (count - at) for at, symbol in enumerate(symbols)},
                   {symbol: 2 * reach + 17 + 5 * at for at, symbol in enumerate(symbols)}]  # fmt: skip
    for values in choices:
        try:
            yield _evaluated(needed, values)
        except Exception:  # whatever can't be computed of made up sizes is no mask that is known
            yield None


def _bands(mask: torch.Tensor, seen: bool | None) -> set[Band]:
    """Return the bands, with either alignment, that a mask shows."""
    fill: float | None = None
    if seen is None:
        hidden = mask[mask != 0]
        if mask.isnan().any() or (hidden.numel() and float(hidden.max()) > LARGE):
            return set()
        fill = float(hidden.max()) if hidden.numel() else 0.0
        if hidden.numel() and float(hidden.min()) != fill:
            return set()
        mask = mask == 0
    else:
        mask = (mask != 0) == seen
    rows, columns = mask.shape
    # Each diagonal has the keys at one distance.
    shown = torch.cat([mask[1:, 0].flip(0), mask[0]]).nonzero().flatten().tolist()
    if not shown or len(shown) != shown[-1] - shown[0] + 1 or not torch.equal(mask[1:, 1:], mask[:-1, :-1]):
        return set()
    first, last = shown[0] - rows + 1, shown[-1] - rows + 1
    found = set()
    for alignment, faced in (("top_left", 0), ("bottom_right", columns - rows)):
        before = None if first == 1 - rows else faced - first
        after = None if last == columns - 1 else last - faced
        if (before is None or before >= 0) and (after is None or after >= 0):
            found.add(Band(before, after, alignment, fill))
    return found


def _needed(node: Node) -> list[Node] | None:
    """Return the nodes that make a mask, in order; ``None`` if they take more than sizes, or other functions."""
    found: set[Node] = set()

    def visit(each: Node) -> bool:
        if each in found:
            return True
        value = example_of(each)
        if not isinstance(value, torch.Tensor):
            return all(isinstance(size, (int, torch.SymInt)) for size in _several(value))
        if name_of(each) not in _FUNCTIONS or len(found) > _MOST_NODES:
            return False
        if not all(map(visit, _values_of(each))):
            return False
        found.add(each)
        return True

    return [each for each in node.graph.nodes if each in found] if visit(node) else None


def _values_of(node: Node) -> list[Node]:
    """Return the nodes whose values a call needs; of others it takes their shape, and the like, alone."""
    if name_of(node) in ("new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like", "empty_like"):
        return [each for each in node.all_input_nodes if each is not node.args[0]]
    return node.all_input_nodes


def _reach(nodes: Sequence[Node], sizes: Sequence[Any], symbols: Sequence[Any]) -> int | None:
    """Return a number that no position in a mask is beyond, but for those that sizes make; ``None`` if it isn't known.

    Sizes must be sums of symbols and numbers: what is rounded, or the least of two, may be another thing elsewhere.
    """
    reach = 0.0
    for size in sizes:
        terms = size.as_poly(*symbols)
        if terms is None or terms.total_degree() > 1:
            return None
        *factors, constant = [*[terms.coeff_monomial(symbol) for symbol in symbols], terms.coeff_monomial(1)]
        if any(not factor.is_Integer or abs(factor) > _MOST_TIMES for factor in factors):
            return None
        reach += abs(float(constant))
    positions: set[Node] = set()
    for node in nodes:
        name = name_of(node)
        of_positions = name == "arange" or any(each in positions for each in node.all_input_nodes)
        if of_positions and name not in _OF_BITS:
            if dtype_of(node) not in _EXACT:
                return None
            positions.add(node)
        numbers = [number for number in _numbers(node) if isinstance(number, (int, float)) and math.isfinite(number)]
        if of_positions and name in ("mul", "log") and any(abs(each) not in (0, 1) for each in numbers):
            return None
        if name == "arange" and (argument(node, 2, "step", 1) != 1 or len(node.args) > 3):
            return None
        if of_positions or name in ("triu", "tril", "triu_", "tril_"):
            reach += sum(map(abs, numbers))
    return math.ceil(reach)


def _several(value: Any) -> tuple[Any, ...]:
    """Return the numbers of a shape, or a number."""
    return value if isinstance(value, tuple) else (value,)


def _numbers(node: Node) -> list[Any]:
    """Return all numbers that a call takes, those that other nodes are as well."""
    found: list[Any] = []

    def visit(value: Any) -> None:
        value = example_of(value)
        numbers = [each for each in _several(value) if isinstance(each, (int, float, torch.SymInt))]
        found.extend([number for number in numbers if not isinstance(number, bool)])

    fx.node.map_aggregate((node.args, node.kwargs), visit)
    return found


def _evaluated(nodes: Sequence[Node], values: Mapping[Any, int]) -> torch.Tensor:
    """Compute nodes on a CPU, with numbers for symbols."""
    results: dict[Node, Any] = {}

    def known(value: Any) -> Any:
        if isinstance(value, Node):
            return results[value] if value in results else known(example_of(value))
        if isinstance(value, tuple):
            return tuple(map(known, value))
        if isinstance(value, torch.SymInt):
            return int(value.node.expr.subs(values))
        if isinstance(value, torch.Tensor):  # which a call takes the shape of, and the like
            return torch.empty((), dtype=value.dtype).expand([known(size) for size in value.shape])
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        for node in nodes:
            arguments, options = fx.node.map_aggregate((node.args, node.kwargs), known)
            made = called(node, arguments, {name: options[name] for name in options if name != "pin_memory"})
            if made.untyped_storage().nbytes() > _MOST_BYTES:
                raise ValueError
            results[node] = made
    return results[nodes[-1]]  # type: ignore[no-any-return]
