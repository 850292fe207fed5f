"""The ways to compute the three problems: native einsum, by hand, torch's einsum, ours, native patched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import einops_fast
from einops_fast.profiles.cases import MODES, Case
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.ways import Way

__all__ = ["BY_HAND", "make_way"]


def make_way(mode: str, case: Case, framework: Framework, torch: Framework | None = None) -> Way:
    """One mode for one problem.

    Args:
        mode: one of :data:`~einops_fast.profiles.cases.MODES`.
        case: one of the three problems, or an einsum of the user's own, which nobody has written by hand.
        framework: the framework compared.
        torch: torch on the same device, for ``th_einsum``.
    """
    equation = case.equation
    native = partial(framework.einsum, equation)
    if mode == "einsum":
        return Way(mode, native, framework)
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
        return Way(mode, native, framework, partial(einops_fast.patched, framework.name))
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
