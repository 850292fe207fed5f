"""What the planner is told about a call: the operands, the place where it will run, the dtypes."""

from __future__ import annotations

from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.record import Record


class Operand(Record):
    """An array as the planner sees it: shape, strides in elements, dtype name (as in NumPy)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie without gaps, the last axis being the fastest."""
        return self._lies(contiguous_strides(self.shape))

    @property
    def fortran(self) -> bool:
        """Whether the elements lie without gaps, the first axis being the fastest."""
        return self._lies(contiguous_strides(self.shape[::-1])[::-1])

    def _lies(self, dense: tuple[int, ...]) -> bool:
        return all(
            size == 1 or own == wanted for size, own, wanted in zip(self.shape, self.strides, dense, strict=True)
        )


class Target(Record):
    """Where a plan will run, and what can be done there.

    Attributes:
        backend: name of the backend.
        device: ``'cpu'``, ``'cuda:0'``, …
        ceilings: the rates that time is predicted with.
        strided: arrays have strides: a permutation is a view, and a GEMM reads transposed operands.
        batch_axes: batch axes with strides of their own that one GEMM takes; more are looped over.
        folds_batch: one GEMM also takes several batch axes that merge, and merges them itself.
        broadcasts: a batch axis may be missing from one operand of a GEMM.
        writes: a GEMM can write into a view of an array made beforehand.
        writes_strided: it also writes fast where that view has gaps or another axis order.
        drops_expanded: an axis of stride 0 may be dropped (not where the framework differentiates each step).
        kernels: there are kernels of our own, for these dtypes, that take operands with any strides.
        in_order: the result is wanted in C order.
        memory: labels of the result, slowest first, if sums of products are written in another order than its axes'.
        any_size: the plan must hold for operands of other sizes, too.
        gradients: gradients of the result may be asked for; see :meth:`Backend.differentiable`.
    """

    backend: str
    device: str
    ceilings: Ceilings
    strided: bool = True
    batch_axes: int = 1
    folds_batch: bool = False
    broadcasts: bool = True
    writes: bool = True
    writes_strided: bool = True
    drops_expanded: bool = True
    kernels: frozenset[str] = frozenset()
    in_order: bool = False
    memory: str = ""
    any_size: bool = False
    gradients: bool = False


class Numerics(Record):
    """The dtypes of a call.

    Attributes:
        compute: dtype that the operands are brought to first.
        result: dtype of the answer.
        native: why there is no GEMM for these operands; the framework's own einsum then contracts each pair.
        whole: with ``native``, the framework's own einsum gets all operands at once.
        gemm: whether the library has matrix products of the dtype; without, and without ``native``, elements are
            multiplied and the products summed.
        widens: the framework may sum in another dtype than ``result``, to which the answer is brought back.
    """

    compute: str
    result: str
    native: str = ""
    whole: bool = False
    gemm: bool = True
    widens: bool = False
