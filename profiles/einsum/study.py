"""The three problems of apache/mxnet#18043 in every mode: side by side in one process per framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import einops_fast
from einops_fast.profiles.cases import PROBLEMS, Case
from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.study import Maker, Study, Task
from einops_fast.profiles.timing.measure import FULL, Effort
from einops_fast.profiles.ways import Way

Function = Callable[..., Any]


def _native(task: Task, **options: Any) -> Function:
    return partial(task.framework.einsum, task.case.equation, **options)


def _optimized(task: Task) -> Function:
    if task.framework.name not in ("numpy", "cupy"):
        raise Unavailable(f"optimize=True changes nothing in {task.framework.name}")
    return _native(task, optimize=True)


def _patched(task: Task) -> Way:
    return Way("patched", _native(task), task.framework, partial(einops_fast.patched, task.framework.name))


def _by_hand(task: Task) -> Function:
    # Nobody has written an einsum of the user's own by hand.
    if task.case.problem is None:
        raise Unavailable("only the three problems are written by hand")
    return by_hand(task.framework, task.case.problem)


def by_hand(framework: Any, problem: int) -> Function:
    """Return what someone who knows the framework well would write instead of the einsum of a problem."""

    def product(q: Any, k: Any) -> Any:
        if framework.name == "mxnet":
            return framework.mx.npx.batch_dot(q, k, transpose_b=True)
        return q @ k.swapaxes(-1, -2)

    def heads_last(q: Any, k: Any) -> Any:
        return product(q.swapaxes(1, 2), k.swapaxes(1, 2))

    def rows_of_one_matrix(q: Any, k: Any) -> Any:
        # The second operand has no b: b and i, neighbours in memory, become the rows of one matrix per n.
        b, i, n, d = q.shape
        scores = product(q.reshape(b * i, n, d).swapaxes(0, 1), k.swapaxes(0, 1))
        return scores.reshape(n, b, i, -1).swapaxes(0, 1)

    return (product, heads_last, rows_of_one_matrix)[problem]


class EinsumStudy(Study):
    """A row per dtype, direction, problem and mode."""

    about = "the problems of apache/mxnet#18043 in every mode"
    frameworks = ("numpy", "torch", "mxnet", "cupy")
    families: Mapping[str, tuple[Case, ...]] = {"public": PROBLEMS}
    own_cases = True
    makers: Mapping[str, Maker] = {
        "einsum": _native,
        "einsum_optimize": _optimized,
        "no_einsum": _by_hand,
        "fast_einsum": lambda task: partial(einops_fast.fast_einsum, task.case.called),
        "patched": _patched,
    }
    ours = "fast_einsum"
    native = "einsum"
    profiled = True
    dtypes: Mapping[str, tuple[str, ...]] = {"gpu": ("float32", "float16"), "cpu": ("float32",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}
