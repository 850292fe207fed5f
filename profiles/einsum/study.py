"""The three problems of apache/mxnet#18043 in every mode: side by side in one process per framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import einops_fast
from einops_fast.profiles.cases import MODES, PROBLEMS, Case
from einops_fast.profiles.contraction.own_cases import chosen_cases
from einops_fast.profiles.frameworks import Framework, Unavailable, installed, load
from einops_fast.profiles.reporting.cells import CHECK, Column, milliseconds, ratio, table
from einops_fast.profiles.reporting.records import Options, Record, Row
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import FULL, Effort
from einops_fast.profiles.ways import Way

__all__ = ["BY_HAND", "EinsumStudy", "make_way"]

DIFFERENTIABLE = ("torch", "mxnet")


class EinsumStudy(Study):
    """A row per dtype, direction, problem and mode."""

    about = "the problems of apache/mxnet#18043 in every mode"
    frameworks = ("numpy", "torch", "mxnet", "cupy")
    families: Mapping[str, tuple[Case, ...]] = {"public": PROBLEMS}
    own_cases = True
    ours = "fast_einsum"
    native = "einsum"
    needs_torch = False
    profiled = True
    dtypes: Mapping[str, tuple[str, ...]] = {"gpu": ("float32", "float16"), "cpu": ("float32",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}

    def wanted(self, framework: Framework, dtype: str, options: Options) -> tuple[Case, ...]:
        return chosen_cases(self.families, options)

    def directions(self, framework: Framework, case: Case, options: Options) -> tuple[bool, ...]:
        trained = framework.name in DIFFERENTIABLE and not options.forward_only
        return (False, True) if trained else (False,)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[Framework | None, list[Record]]:
        # For torch itself, torch's einsum is the native one already.
        there = framework.name != "torch" and installed("torch")
        return (load("torch", framework.device, framework.threads) if there else None), []

    def ways(self, task: Task) -> list[Way]:
        torch = None if task.backward else task.offered
        ways = []
        for mode in MODES:
            try:
                ways.append(make_way(mode, task.case, task.framework, torch))
            except Unavailable:
                continue
        return ways

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table of forward calls, and one of forward and backward."""
        title = "apache/mxnet#18043: every mode against the framework's own einsum"
        found = [table(title, [row for row in rows if not row.backward], COLUMNS)]
        backward = [row for row in rows if row.backward]
        return [*found, table(f"{title}, forward and backward", backward, COLUMNS)] if backward else found


COLUMNS: tuple[Column[Row], ...] = (
    Column("framework", lambda row: row.framework),
    Column("problem", lambda row: row.case.removeprefix("mx")),
    Column("dtype", lambda row: row.dtype),
    Column("mode", lambda row: row.what),
    Column("shape", lambda row: row.sizes),
    Column("median ms", lambda row: milliseconds(row.seconds)),
    Column("native/this", lambda row: ratio(row.speedup)),
    CHECK,
)


def make_way(mode: str, case: Case, framework: Framework, torch: Framework | None = None) -> Way:
    """One mode for one problem.

    Args:
        mode: one of :data:`~einops_fast.profiles.cases.MODES`.
        case: one of the three problems, or an einsum of the user's own, which nobody has written by hand.
        framework: the framework compared.
        torch: torch on the same device, for ``th_einsum``.

    Raises:
        Unavailable: the framework, or the case, has no such mode.
    """
    equation = case.equation
    native = Way(mode, partial(framework.einsum, equation), framework)
    if mode == "einsum":
        return native
    if mode == "einsum_optimize":
        if framework.name not in ("numpy", "cupy"):
            raise Unavailable(f"optimize=True changes nothing in {framework.name}")
        return Way(mode, partial(framework.einsum, equation, optimize=True), framework)
    if mode == "no_einsum":
        if case.problem is None:
            raise Unavailable("only the three problems are written by hand")
        return Way(mode, BY_HAND[framework.name][case.problem], framework)
    if mode == "th_einsum":
        if torch is None:
            raise Unavailable("th_einsum needs torch")
        return Way(mode, partial(torch.einsum, equation), torch)
    if mode == "fast_einsum":
        return Way(mode, partial(einops_fast.fast_einsum, equation), framework)
    if mode == "patched":
        return Way(mode, native.call, framework, partial(einops_fast.patched, framework.name))
    raise ValueError(f"no such mode: {mode} (known: {', '.join(MODES)})")


# By hand: what someone who knows the framework well would write instead of einsum. Problem 2 has no b in its
# second operand: b and i, neighbours in memory, become the rows of one matrix per n.


def _numpy_bnid_bnjd(q: Any, k: Any) -> Any:
    return q @ k.swapaxes(-1, -2)


def _numpy_bind_bjnd(q: Any, k: Any) -> Any:
    return q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1)


def _numpy_bind_jnd(q: Any, k: Any) -> Any:
    b, i, n, d = q.shape
    scores = q.reshape(b * i, n, d).transpose(1, 0, 2) @ k.transpose(1, 2, 0)
    return scores.reshape(n, b, i, -1).transpose(1, 0, 2, 3)


def _torch_bnid_bnjd(q: Any, k: Any) -> Any:
    return q @ k.mT


def _torch_bind_bjnd(q: Any, k: Any) -> Any:
    return q.transpose(1, 2) @ k.permute(0, 2, 3, 1)


def _torch_bind_jnd(q: Any, k: Any) -> Any:
    b, i, n, d = q.shape
    scores = q.view(b * i, n, d).transpose(0, 1) @ k.permute(1, 2, 0)
    return scores.view(n, b, i, -1).transpose(0, 1)


def _mxnet_bnid_bnjd(q: Any, k: Any) -> Any:
    from mxnet import npx

    return npx.batch_dot(q, k, transpose_b=True)


def _mxnet_bind_bjnd(q: Any, k: Any) -> Any:
    from mxnet import npx

    return npx.batch_dot(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), transpose_b=True)


def _mxnet_bind_jnd(q: Any, k: Any) -> Any:
    from mxnet import npx

    b, i, n, d = q.shape
    scores = npx.batch_dot(q.reshape(b * i, n, d).transpose(1, 0, 2), k.transpose(1, 0, 2), transpose_b=True)
    return scores.reshape(n, b, i, -1).transpose(1, 0, 2, 3)


_NUMPY = (_numpy_bnid_bnjd, _numpy_bind_bjnd, _numpy_bind_jnd)

BY_HAND: dict[str, tuple[Callable[[Any, Any], Any], ...]] = {
    "numpy": _NUMPY,
    "cupy": _NUMPY,
    "torch": (_torch_bnid_bnjd, _torch_bind_bjnd, _torch_bind_jnd),
    "mxnet": (_mxnet_bnid_bnjd, _mxnet_bind_bjnd, _mxnet_bind_jnd),
}
