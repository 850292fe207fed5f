"""What a step costs: bytes and FLOPs against a device's ceilings. Tiles of our own kernels are priced elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import NamedTuple

from einops_fast.planning.chains import Chain, chain_of, padded_extent, products
from einops_fast.planning.steps import Cast, Diagonal, Fused, Gemm, Multiply, Select, Step, Sum, View
from einops_fast.record import Record

ITEM_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def is_complex(dtype: str) -> bool:
    """Return whether a dtype, by its name, holds complex numbers."""
    return dtype.startswith("complex")


def is_integer(dtype: str) -> bool:
    """Whether a dtype, by its name, holds integers.

    >>> is_integer("uint8"), is_integer("bool")
    (True, False)
    """
    return "int" in dtype


@dataclass(frozen=True)
class Ceilings:
    """What a device and its framework reach, as measured or as known."""

    bandwidth: float  # bytes per second of a contiguous copy, reads and writes counted
    runs: float  # bytes per second of a copy into new memory that keeps the fastest axis the fastest
    gather: float  # the same where another axis becomes the fastest
    flops: dict[str, float] = field(hash=False)  # FLOP/s of a large GEMM, by dtype name
    call: float  # seconds of one library call (launch and dispatch)
    again: float  # seconds that each further call of a loop costs
    item: float  # seconds that one matrix of a batch costs beyond its FLOPs
    broadcast: float  # bytes per second of an elementwise product with broadcasting
    vector_item: float = 0.0  # the same of a matrix times a vector, or of two vectors; 0 where it makes no difference
    tile: float = 5.0  # extent of `m` or `n` at which a GEMM reaches half its rate
    depth: float = 5.0  # the same for `k`
    # by dtype, what GEMM kernels round `m` and `n` up to
    blocks: dict[str, int] = field(default_factory=dict, hash=False)
    native: float = 0.0  # multiply-adds per second of the framework's own einsum loops; 0 where it has none of its own
    native_products: float = 1.0  # the same where nothing is summed
    native_call: float = 0.0  # seconds of a call of it
    native_run: float = 0.0  # seconds that it takes for each run of its innermost loop, beyond its multiply-adds
    native_complex: float = 0.0  # as `native`, of complex numbers; 0 where the loops are of no use for these
    native_complex_products: float = 1.0  # the same where nothing is summed
    run: float = 0.0  # seconds that a copy, an elementwise product or a sum takes to begin its innermost loop once more
    block: int = 0  # elements of a product that are made at a time if they are summed; 0 where all are
    blocked: float = 1.0  # multiply-adds per second of products that are made and summed in blocks
    small: int = 0  # multiply-adds of one matrix below which a batched GEMM runs scalar loops
    small_rate: float = 1.0  # multiply-adds per second of these
    small_item: float = 0.0  # seconds that each of these matrices costs beyond them
    # multiply-adds per second of a batch of dot products that scalar loops aren't for, where these run far below
    # the bandwidth
    dots: dict[str, float] = field(default_factory=dict, hash=False)
    # dtypes of which a single dot product has a fast kernel nevertheless
    dot_kernels: frozenset[str] = frozenset({"float32", "float64", "float16"})
    units: int = 1  # multiprocessors; a GEMM with fewer blocks of results leaves some idle
    fork: float = 0.0  # seconds that it costs more if it is shared out among threads,
    fork_above: int = 0  # which it is from this number of multiply-adds on
    overlaps: bool = False  # whether a GEMM hides memory traffic behind arithmetic

    def gemm_rate(self, dtype: str) -> float:
        return self.flops.get(dtype, self.flops["float32"])

    def streams(self, dtype: str) -> bool:
        """Whether there are sums of products that keep up with memory where a GEMM with an extent of 1 doesn't.

        oneDNN's matrix times vector in bfloat16 does, however the rows lie.
        """
        if dtype == "bfloat16":
            return False
        return bool(self.block or (self.native and not is_complex(dtype)))


# Rows and columns of the result that one multiprocessor of a GPU works on at a time.
_BLOCK = 64
# The same of a kernel that takes rows through a chain of matrices.
_CHAIN_TILE = 128


class Product(NamedTuple):
    """The extents of one pairwise step: ``batch`` products of an ``m × k`` and a ``k × n`` matrix."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def full(self) -> int:
        """Number of multiply-adds."""
        return self.batch * self.m * self.n * self.k

    @property
    def flops(self) -> int:
        return 2 * self.full


def gemm_seconds(product: Product, calls: int, dtype: str, on: Ceilings) -> float:
    """Predicted time of a batched GEMM whose operands lie as it wants them.

    The rate falls off when an extent is short against the tile that libraries block by. The
    arrays are read and written at least once. Products of a few multiplications, and dot products, may run in
    loops of their own.
    """
    m, n, k = product.m, product.n, product.k
    overhead = on.call + (calls - 1) * on.again
    # Scalar loops are for float32 and wider.
    scalar = m * n * k < on.small and ITEM_SIZES.get(dtype, 8) >= 4
    if m == n == 1 and dtype in on.dots and not scalar and (product.batch > 1 or dtype not in on.dot_kernels):
        return overhead + product.batch * on.vector_item + product.full / on.dots[dtype]
    if m * n * k < on.small:
        return overhead + product.full / on.small_rate + product.batch * on.small_item
    # Libraries share out a single dot product where that takes less time.
    forks = m * n * k > on.fork_above and product.batch * m * n > 1
    item = on.vector_item if on.vector_item and (m == 1 or n == 1) else on.item
    overhead += product.batch * (item + (on.fork if forks else 0.0))
    moved = ITEM_SIZES.get(dtype, 8) * product.batch * (m * k + k * n + m * n)
    if m == 1 or n == 1:
        return overhead + moved / on.bandwidth
    block = on.blocks.get(dtype, 1)
    rows, columns = -(-m // block) * block, -(-n // block) * block
    padded = 2 * product.batch * (rows + on.tile) * (columns + on.tile) * (k + on.depth)
    blocks = product.batch // max(calls, 1) * -(-m // _BLOCK) * -(-n // _BLOCK)
    busy = min(1.0, blocks / on.units) if blocks else 1.0
    arithmetic, memory = padded / (busy * on.gemm_rate(dtype)), moved / on.bandwidth
    return overhead + (max(arithmetic, memory) if on.overlaps else arithmetic + memory)


def _chain_flops(chain: Chain, on: Ceilings) -> int:
    """What a kernel computes that takes rows through a whole chain: programs that share rows repeat the first products.

    So many of them share rows as it takes to have two per multiprocessor.
    """
    batch, rows, columns = chain.sides
    blocks = [padded_extent(depth) for depth in chain.depths]
    row_tiles, column_tiles = -(-rows // _CHAIN_TILE), -(-columns // _CHAIN_TILE)
    sharing = min(column_tiles, -(-2 * on.units // (batch * row_tiles)))
    between = sum(a * b for a, b in pairwise(blocks))
    return 2 * batch * rows * (sharing * between + blocks[-1] * columns)


def copy_seconds(elements: int, in_runs: bool, dtype: str, on: Ceilings, inner: int = 0) -> float:
    """Predicted time of writing ``elements`` in another axis order; ``in_runs``: the fastest axis stays the fastest.

    ``inner`` is the length of the innermost loop, 0 where it makes no difference.
    """
    begun = elements / inner * on.run if inner else 0.0
    return on.call + max(begun, 2 * elements * ITEM_SIZES.get(dtype, 8) / (on.runs if in_runs else on.gather))


def multiply_seconds(
    full: int, elements: Sequence[int], summed: bool, dtype: str, on: Ceilings, runs: int = 0
) -> float:
    """Predicted time of a broadcast product of ``full`` elements and, in a second pass or block by block, its sum.

    ``elements``: of the two operands and of the result; ``runs``: how often either pass begins its innermost loop.
    """
    if runs:
        return (2 if summed else 1) * runs * on.run + multiply_seconds(full, elements, summed, dtype, on)
    left, right, result = elements
    item = ITEM_SIZES.get(dtype, 8)
    rate = on.bandwidth if left == right == full else on.broadcast
    if not summed:
        return on.call + item * (left + right + full) / rate
    if 0 < on.block < full:
        calls = 2 if item >= 4 else 4
        passes = full / on.blocked + item * (left + right + result) / on.bandwidth
        return calls * (2 + full // on.block) * on.call + passes
    # Half-precision products are kept in float32 until they are summed.
    wide = max(item, 4)
    converted = on.call + (item + wide) * left / on.bandwidth if wide > item else 0.0
    product = (wide * left + item * right + wide * full) / rate
    return converted + 2 * on.call + product + (wide * full + item * result) / on.bandwidth


def native_seconds(
    full: int,
    elements: Sequence[int],
    summed: bool,
    dtype: str,
    on: Ceilings,
    inner: int = 0,
    adds_to_memory: bool = False,
) -> float:
    """Predicted time in the framework's own einsum loops, where they are of use; arguments as above.

    ``adds_to_memory``: the innermost loop runs along the result, which each multiply-add reads and writes.
    """
    rate, products = on.native, on.native_products
    if is_complex(dtype):
        rate, products = on.native_complex, on.native_complex_products
    if not rate or (adds_to_memory and is_complex(dtype)):
        return float("inf")
    item = ITEM_SIZES.get(dtype, 8)
    loops = full / (rate if summed else products) + (full / inner * on.native_run if inner else 0.0)
    if adds_to_memory:
        loops += 2 * item * full / on.bandwidth
    return on.native_call + max(loops, item * sum(elements) / on.bandwidth)


class StepCost(Record):
    """What one step does."""

    flops: int  # floating-point operations
    moved: int  # bytes that it reads and writes, copies included
    copied: int  # bytes that it writes only to bring an operand into another layout
    seconds: float  # predicted time
    workspace: int = 0  # elements that it allocates beside its result


def step_costs(steps: Sequence[Step], operands: Sequence[int], dtype: str, on: Ceilings) -> tuple[StepCost, ...]:
    """Price every step of a plan for operands of so many elements."""
    elements = list(operands)
    costs = []
    for step in steps:
        costs.append(_step_cost(step, [elements[slot] for slot in step.reads], dtype, on))
        elements.append(prod(step.shape))
    return tuple(costs)


def _step_cost(step: Step, reads: Sequence[int], dtype: str, on: Ceilings) -> StepCost:
    item = ITEM_SIZES.get(dtype, 8)
    result = prod(step.shape)
    if isinstance(step, Select | Diagonal):
        return StepCost(0, 0, 0, 0.0)
    if isinstance(step, View):
        if not step.how.moves:
            return StepCost(0, 0, 0, 0.0)
        return StepCost(0, 2 * item * result, item * result, copy_seconds(result, False, dtype, on))
    if isinstance(step, Cast | Sum):
        moved, added = item * (reads[0] + result), step.axes if isinstance(step, Sum) else ()
        # torch may sum halves over several axes on a CPU in a copy of them in float32.
        copy = 2 * reads[0] if item == 2 and on.block and len(added) > 1 else 0
        return StepCost(reads[0] if added else 0, moved, 0, on.call + moved / on.bandwidth, copy)
    moved = item * (sum(reads) + result)
    if isinstance(step, Gemm):
        copies = [size for size, how in zip(reads, (step.left, step.right), strict=True) if how.moves]
        product = Product(prod(step.batch), step.m, step.n, step.k)
        loops = prod(step.batch[:-1]) if step.buffer is not None else 1
        seconds = gemm_seconds(product, loops, dtype, on)
        seconds += sum(copy_seconds(size, False, dtype, on) for size in copies)
        copied = sum(copies)
        return StepCost(product.flops, moved + 2 * item * copied, item * copied, seconds, copied)
    if isinstance(step, Fused):
        full, chain = products(step.loops), chain_of(step.loops)
        if chain is not None:
            flops, done = 2 * full, _chain_flops(chain, on)
        else:
            flops = full * len(reads) if full > result else full * (len(reads) - 1)
            # A product that is made on the way into a kernel costs no time of its own.
            done = min(flops, 2 * full)
        # What the better of a kernel and the library takes is known when both have been looked at.
        arithmetic = 1.3 * done / on.gemm_rate(dtype)
        library = step_costs(step.library, reads, dtype, on)
        workspace = sum([cost.workspace + prod(call.shape) for cost, call in zip(library, step.library, strict=True)])
        seconds = on.call + max(1.2 * moved / on.bandwidth, arithmetic)
        return StepCost(flops, moved, 0, seconds, workspace - result)
    if isinstance(step, Multiply):
        seconds = multiply_seconds(step.full, (*reads, result), bool(step.summed), dtype, on, step.runs)
        workspace = 0
        if step.summed:  # in float32 where elements are halves: the product, and what is multiplied
            made = 2 * min(step.full, step.block) if step.block else step.full
            workspace = 2 * (made + sum(reads)) if item == 2 else made
        return StepCost(step.full * (2 if step.summed else 1), moved, 0, seconds, workspace)
    return StepCost(2 * step.full, moved, 0, native_seconds(step.full, (*reads, result), True, dtype, on))
