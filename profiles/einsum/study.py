"""The three problems of apache/mxnet#18043 in every mode: side by side in one process per framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import einops_fast
from einops_fast.profiles.cases import PROBLEMS, Case
from einops_fast.profiles.frameworks import Unavailable
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import FULL, Effort
from einops_fast.profiles.ways import Around, Way, our_way


def _native(task: Task, mode: str = "einsum", around: Around = nullcontext, **options: Any) -> Way:
    return Way(mode, partial(task.framework.einsum, task.case.equation, **options), task.framework, around)


def _optimized(task: Task) -> Way:
    if task.framework.name not in ("numpy", "cupy"):
        raise Unavailable(f"optimize=True changes nothing in {task.framework.name}")
    return _native(task, "einsum_optimize", optimize=True)


def _by_hand(task: Task) -> Way:
    # Nobody has written an einsum of the user's own by hand.
    if task.case.problem is None:
        raise Unavailable("only the three problems are written by hand")
    return Way("no_einsum", BY_HAND[task.framework.name][task.case.problem], task.framework)


def _patched(task: Task) -> Way:
    return _native(task, "patched", partial(einops_fast.patched, task.framework.name))


class EinsumStudy(Study):
    """A row per dtype, direction, problem and mode."""

    about = "the problems of apache/mxnet#18043 in every mode"
    frameworks = ("numpy", "torch", "mxnet", "cupy")
    families: Mapping[str, tuple[Case, ...]] = {"public": PROBLEMS}
    own_cases = True
    makers: Mapping[str, Callable[[Task], Way]] = {
        "einsum": _native,
        "einsum_optimize": _optimized,
        "no_einsum": _by_hand,
        "fast_einsum": lambda task: our_way(task.framework, task.case),
        "patched": _patched,
    }
    ours = "fast_einsum"
    native = "einsum"
    profiled = True
    dtypes: Mapping[str, tuple[str, ...]] = {"gpu": ("float32", "float16"), "cpu": ("float32",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}


# By hand: what someone who knows the framework well would write instead of einsum. Problem 2 has no b in its
# second operand: b and i, neighbours in memory, become the rows of one matrix per n.


def _bnid_bnjd(q: Any, k: Any) -> Any:
    return q @ k.swapaxes(-1, -2)


def _bind_bjnd(q: Any, k: Any) -> Any:
    return q.swapaxes(1, 2) @ k.swapaxes(1, 2).swapaxes(2, 3)


def _bind_jnd(q: Any, k: Any) -> Any:
    b, i, n, d = q.shape
    scores = q.reshape(b * i, n, d).swapaxes(0, 1) @ k.swapaxes(0, 1).swapaxes(1, 2)
    return scores.reshape(n, b, i, -1).swapaxes(0, 1)


def _mxnet_bnid_bnjd(q: Any, k: Any) -> Any:
    from mxnet import npx

    return npx.batch_dot(q, k, transpose_b=True)


def _mxnet_bind_bjnd(q: Any, k: Any) -> Any:
    return _mxnet_bnid_bnjd(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3))


def _mxnet_bind_jnd(q: Any, k: Any) -> Any:
    b, i, n, d = q.shape
    scores = _mxnet_bnid_bnjd(q.reshape(b * i, n, d).transpose(1, 0, 2), k.transpose(1, 0, 2))
    return scores.reshape(n, b, i, -1).transpose(1, 0, 2, 3)


_VIEWS = (_bnid_bnjd, _bind_bjnd, _bind_jnd)

BY_HAND: dict[str, tuple[Callable[[Any, Any], Any], ...]] = {
    **dict.fromkeys(("numpy", "cupy", "torch"), _VIEWS),
    "mxnet": (_mxnet_bnid_bnjd, _mxnet_bind_bjnd, _mxnet_bind_jnd),
}
