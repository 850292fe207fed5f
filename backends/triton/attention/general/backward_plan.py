"""The launches that make up a backward call, put together once for a spec and the layouts of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras, Strides
from einops_fast.backends.triton.attention.general.backward import delta_kernel
from einops_fast.backends.triton.attention.general.bias_gradient import bias_kernel
from einops_fast.backends.triton.attention.general.forward_plan import elements_together
from einops_fast.backends.triton.attention.general.keys_gradient import keys_kernel
from einops_fast.backends.triton.attention.general.queries_gradient import queries_kernel
from einops_fast.backends.triton.attention.general.tilings import BackwardTilings, Tiling, power
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides

__all__ = ["BackwardPlan", "Gradients", "bias_sizes", "is_whole", "parts_of"]

_TILE = 4096
"""Elements of a tile in the kernel that sums up ``o * do``, at most; but for :data:`_ROWS`."""

_ROWS = 32, 128
"""Of such a tile, at least and at most."""

_PROGRAMS = 512
"""So many keep a GPU busy: a small bias is summed up in parts."""


@dataclass
class Gradients:
    """Arrays for the gradients that are wanted; ``None`` for the others.

    That of a bias is full of zeros where :attr:`BackwardPlan.bias_starts_at_zero` says so.
    """

    q: Any = None
    k: Any = None
    v: Any = None
    bias: Any = None


def is_whole(spec: AttentionSpec) -> bool:
    """Whether there is a bias that lacks no axis."""
    return spec.bias == (*spec.batch, spec.q_len, spec.kv_len)


def bias_sizes(problem: Problem, name: str = "d_bias") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of the batch axes that a bias or its gradient has, and of those that it lacks; 1 for the others."""
    # An axis that it lacks has stride 0; one of the batch has at least two elements.
    has = [stride != 0 for stride in getattr(problem.strides, name)[:-2]]
    kept = tuple(size if is_own else 1 for size, is_own in zip(problem.sizes, has, strict=True))
    return kept, tuple(1 if is_own else size for size, is_own in zip(problem.sizes, has, strict=True))


def parts_of(programs: int, steps: int, enough: int = _PROGRAMS) -> int:
    """In how many parts to go through so many steps for each of these programs, of which ``enough`` are enough."""
    return max(1, min(enough // max(1, programs), steps))


class BackwardPlan:
    """A backward call.

    Args:
        spec: what was computed.
        problem: the same, as the kernels take it; with strides of ``out``, ``lse`` (``delta`` has them, too),
            ``d_out`` and the gradients.
        rows: queries of all sequences together, if there are several, else of each batch element.
        tilings: of the kernels.
        padded: if not 0, rows' numbers are written once more, for so many queries of each batch element; a multiple of
            128.
    """

    def __init__(
        self, spec: AttentionSpec, problem: Problem, rows: int, tilings: BackwardTilings, padded: int = 0
    ) -> None:
        features, strides, share = problem.features, problem.strides, problem.share
        self._sums = accumulator(spec.dtype)
        elements = problem.elements // (problem.sizes[0] if spec.varlen else 1)
        self._rows, self._padded = elements * rows, 2 * elements * padded
        length = padded or rows
        columns = power(spec.v_head_dim)
        block = min(max(_ROWS[0], _TILE // columns), _ROWS[1])
        self._delta = KernelCall(
            delta_kernel,
            (elements * -(-length // block), 1),
            (Strides(out=strides.out, d_out=strides.d_out, lse=strides.lse), problem.counting, rows, length),
            {"f": features, "block": block, "columns": columns},
            4,
            1,
        )
        tiles, heads = tilings.keys, problem.elements // share
        self._keys = KernelCall(
            keys_kernel,
            (heads * -(-spec.kv_len // tiles.block_n), 1),
            (
                problem.strides_of("d_out", "dk", "dv"),
                problem.counting,
                *problem.runtime(heads, elements_together(spec, 1)),
            ),
            {"f": features, "block_m": tiles.block_m, "block_n": tiles.block_n},
            tiles.warps,
            tiles.stages,
        )
        tiles, heads = tilings.queries, problem.elements
        self._queries = KernelCall(
            queries_kernel,
            (heads * -(-spec.q_len // tiles.block_m), 1),
            (
                problem.strides_of("d_out", "dq", "d_bias"),
                problem.counting,
                *problem.runtime(heads, elements_together(spec, share)),
            ),
            {"f": features, "block_m": tiles.block_m, "block_n": tiles.block_n},
            tiles.warps,
            tiles.stages,
        )
        self._direct = is_whole(spec)
        skips = features.left or features.right or spec.varlen or spec.cache or spec.segments
        self.bias_starts_at_zero = self._direct and skips
        self._bias: KernelCall | None = None
        self.bias_parts = 1
        if problem.strides.d_bias is not None and not self._direct:
            self._bias = self._bias_call(spec, problem, tilings.bias)

    def _bias_call(self, spec: AttentionSpec, problem: Problem, tiling: Tiling, parts: int = 0) -> KernelCall:
        """Of the kernel for a bias that lacks axes, which sums it up in so many parts; 0 for as many as are good."""
        assert spec.bias is not None
        kept, summed = bias_sizes(problem)
        query_tiles = -(-spec.bias[-2] // tiling.block_m)
        key_tiles = -(-spec.bias[-1] // tiling.block_n)
        programs = query_tiles * key_tiles * prod(kept)
        steps = prod(summed)
        if spec.bias[-2] == 1:
            steps *= -(-spec.q_len // tiling.block_m)
        if spec.bias[-1] == 1:
            steps *= -(-spec.kv_len // tiling.block_n)
        self.bias_parts = parts or parts_of(programs, steps)
        return KernelCall(
            bias_kernel,
            (programs, self.bias_parts),
            (
                problem.strides_of("d_out", "d_bias")._replace(parts=(prod(spec.bias),)),
                problem.counting,
                (ANY, *kept[1:]),
                (ANY, *summed[1:]),
                contiguous_strides(problem.sizes),
                query_tiles,
                key_tiles,
                prod(summed),
                self.bias_parts,
                *problem.runtime(problem.elements, 1),
            ),
            {"f": problem.features, "block_m": tiling.block_m, "block_n": tiling.block_n},
            tiling.warps,
            tiling.stages,
        )

    def __call__(
        self,
        memory: Memory,
        device: int,
        operands: tuple[Any, Any, Any],
        results: tuple[Any, Any],
        gradients_in: tuple[Any, Any],
        extras: Extras,
        into: Gradients,
    ) -> Any:
        """Write the gradients.

        Args:
            memory: the framework's arrays.
            device: number of the device.
            operands: q, k, v.
            results: the result and its logarithms.
            gradients_in: of these; that of the logarithms may be ``None``.
            extras: the other arrays.
            into: where the gradients go to.

        Returns:
            ``delta``, a flat array.
        """
        (q, k, v), (out, lse), (d_out, d_lse) = operands, results, gradients_in
        delta = memory.workspace(q, self._rows, self._sums)
        padded = memory.workspace(q, self._padded, "float32") if self._padded else None
        self._delta(memory, device, out, d_out, lse, d_lse, delta, padded)
        if into.k is not None:
            self._run_keys(memory, device, padded, q, k, v, d_out, lse, delta, into.k, into.v, extras)
        direct = into.bias if self._direct else None
        if into.q is not None:
            self._run_queries(memory, device, padded, q, k, v, d_out, lse, delta, into.q, direct, extras)
        if into.bias is not None and self._bias is not None:
            self._run_bias(memory, device, padded, q, k, v, d_out, lse, delta, into.bias, extras)
        return delta

    def _run_keys(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        self._keys(memory, device, *arrays)

    def _run_queries(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        self._queries(memory, device, *arrays)

    def _run_bias(self, memory: Memory, device: int, padded: Any, *arrays: Any) -> None:
        assert self._bias is not None
        self._bias(memory, device, *arrays)
