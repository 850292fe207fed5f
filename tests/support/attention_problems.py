"""Small attentions for the kernels' tests: a spec and its tensors, checked against the oracle with poisoned memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any
from unittest import mock

import pytest
import torch
from kernel_tensors import DEVICE, Poisoned, randn

from einops_fast.attention import attend
from einops_fast.attention.reference import Math
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import call as torch_attention
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.torch.attention.arrays import TorchArrays
from einops_fast.backends.torch.attention.implementations.triton import Triton
from einops_fast.backends.triton.attention import plan as attention_plan
from einops_fast.backends.triton.attention.general.tilings import BackwardTilings, Tiling
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.runtime.plan_cache import clear_plans

SMALL = Tiling(16, 16, 4, 1)
"""So small that a few dozen positions are several blocks."""

DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks")

needs_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
    ),
]
"""What is marked with it runs kernels that aren't interpreted."""


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory is poisoned, no plan is known, and no kernel has all positions in one tile."""
    with (
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_calls", {}),
        mock.patch.object(attention_plan, "suits_short", return_value=False),
        mock.patch.object(attention_plan, "suits_short_backward", return_value=False),
    ):
        yield


@contextmanager
def hopper_calls() -> Iterator[list[str]]:
    """Record the names of Hopper's kernels, empty where one couldn't be queued, on poisoned memory."""
    found: list[str] = []
    call = DeclaredCall.__call__

    def recorded(self: DeclaredCall, *arguments: Any) -> bool:
        queued = call(self, *arguments)
        found.append(self.function.fn.__name__ if queued else "")
        return queued

    with mock.patch.object(DeclaredCall, "__call__", recorded), poisoned():
        yield found


@contextmanager
def tiles(forward: Tiling = SMALL, backward: BackwardTilings | None = None) -> Iterator[None]:
    """Kernels with these tiles, on poisoned memory; none that has all positions in one."""
    chosen = backward or BackwardTilings(SMALL, SMALL, SMALL)
    with (
        poisoned(),
        mock.patch.object(attention_plan, "forward_tiling", return_value=forward),
        mock.patch.object(attention_plan, "backward_tilings", return_value=chosen),
    ):
        yield


def _anywhere(self: Triton, device: str) -> None:
    """Triton's kernels run on any device; torch.compile can follow this, and no mock."""


@contextmanager
def whole_calls() -> Iterator[None]:
    """Calls of `attention` by the kernels, which are for CPUs too then; nothing is known of calls before."""
    with (
        mock.patch.object(Triton, "unavailable", _anywhere),
        mock.patch.object(attend, "_calls", {}),
        tiles(),
    ):
        clear_plans()
        yield
    clear_plans()


def attention(
    batch: Sequence[int] = (2, 2),
    q_len: int = 21,
    kv_len: int = 37,
    head_dim: int = 16,
    v_head_dim: int | None = None,
    dtype: str = "float32",
    q_batch: Sequence[int] | None = None,
    k_batch: Sequence[int] | None = None,
    v_batch: Sequence[int] | None = None,
    bias: Sequence[int] | None = None,
    mask: Sequence[int] | None = None,
    alibi: Sequence[int] | None = None,
    sinks: Sequence[int] | None = None,
    segments: Sequence[int] | None = None,
    **options: Any,
) -> tuple[AttentionSpec, AttentionInputs]:
    """A spec and random tensors; of extras, their shapes are given (of segments, the number of batch axes)."""
    batch = tuple(batch)
    q_batch, k_batch = tuple(q_batch or batch), tuple(k_batch or batch)
    v_batch = tuple(v_batch or k_batch)
    v_head_dim = v_head_dim or head_dim
    generator = torch.Generator().manual_seed(7)
    spec = AttentionSpec(
        batch, q_batch, k_batch, v_batch, q_len, kv_len, head_dim, v_head_dim, dtype,
        scale=options.pop("scale", 1 / math.sqrt(head_dim)),
        bias=None if bias is None else tuple(bias),
        mask=None if mask is None else tuple(mask),
        alibi=alibi is not None,
        sinks=sinks is not None,
        segments=segments is not None,
        lse=options.pop("lse", True),
        **options,
    )  # fmt: skip
    inputs = AttentionInputs(
        randn(*q_batch, q_len, head_dim, dtype=dtype),
        randn(*k_batch, kv_len, head_dim, dtype=dtype, seed=1),
        randn(*v_batch, kv_len, v_head_dim, dtype=dtype, seed=2),
    )
    if bias is not None:
        inputs.bias = randn(*bias, dtype=dtype, seed=3)
    if mask is not None:
        inputs.mask = (torch.rand(tuple(mask), generator=generator) < 0.6).to(DEVICE)
    if alibi is not None:
        inputs.alibi_slopes = torch.rand(tuple(alibi), generator=generator).to(DEVICE)
    if sinks is not None:
        inputs.sinks = randn(*sinks, dtype=accumulator(dtype), seed=4)
    if segments is not None:
        inputs.q_segments = torch.randint(0, 3, (*segments, q_len), generator=generator).sort()[0].int().to(DEVICE)
        inputs.kv_segments = torch.randint(0, 3, (*segments, kv_len), generator=generator).sort()[0].int().to(DEVICE)
    return spec, inputs


def packed(
    q_lens: Sequence[int], kv_lens: Sequence[int], heads: int = 2, kv_heads: int = 0, extra: int = 0, **options: Any
) -> tuple[AttentionSpec, AttentionInputs]:
    """Sequences side by side, and some tokens of none of them."""
    spec, inputs = attention((len(q_lens), heads), max(q_lens), max(kv_lens), varlen=True, **options)
    of_keys = 1, kv_heads or heads
    spec = replace(spec, q_batch=(1, heads), k_batch=of_keys, v_batch=of_keys)
    inputs.q = randn(1, heads, sum(q_lens) + extra, spec.head_dim, dtype=spec.dtype)
    inputs.k = randn(*of_keys, sum(kv_lens) + extra, spec.head_dim, dtype=spec.dtype, seed=1)
    inputs.v = randn(*of_keys, sum(kv_lens) + extra, spec.v_head_dim, dtype=spec.dtype, seed=2)
    inputs.cu_seqlens_q, inputs.cu_seqlens_kv = (
        torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=DEVICE) for lens in (q_lens, kv_lens)
    )
    return spec, inputs


def cached(
    lengths: Sequence[int], page_size: int = 0, spare: int = 0, **options: Any
) -> tuple[AttentionSpec, AttentionInputs]:
    """Sequences whose keys are those of a cache, or in pages of one in any order, of which some are spare."""
    spec, inputs = attention(batch=options.pop("batch", (len(lengths), 2)), cache=True, **options)
    inputs.cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    if page_size:
        of_each = spec.kv_len // page_size
        pages = len(lengths) * of_each + spare
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))[: len(lengths) * of_each]
        inputs.block_table = order.view(len(lengths), of_each).int().to(DEVICE)
        own = (pages, *spec.k_batch[1:])
        spec = replace(spec, page_size=page_size, k_batch=own, v_batch=own)
        # As a cache lies: tokens of a page, then heads.
        inputs.k, inputs.v = (
            randn(pages, page_size, *own[1:], features, dtype=spec.dtype, seed=seed).movedim(1, -2)
            for features, seed in ((spec.head_dim, 1), (spec.v_head_dim, 2))
        )
    return spec, inputs


def hide_ends(mask: Any) -> None:
    """Have a mask hide all at both ends, of one element of the batch in whole rows, of others in blocks too."""
    first, *others = mask.flatten(0, -3)
    first[..., : first.shape[-1] // 3] = False
    first[: first.shape[-2] // 2] = False
    for at, each in enumerate(others):
        each[..., each.shape[-1] // (2 + at) :] = False
        # Causal in blocks.
        each[: each.shape[-2] // 2, 130:] = False


def leaves(inputs: AttentionInputs, wanted: Sequence[str] = DIFFERENTIABLE) -> AttentionInputs:
    """The same tensors, of which the differentiable ones are leaves, with the same strides; some want gradients."""
    return _each(inputs, lambda name, each: each.detach().requires_grad_(name in wanted))


def doubled(inputs: AttentionInputs) -> AttentionInputs:
    """The same tensors, of which the differentiable ones are in float64."""
    return _each(inputs, lambda name, each: each.double())


def _each(inputs: AttentionInputs, change: Callable[[str, Any], Any]) -> AttentionInputs:
    changed = {
        name: change(name, each) if name in DIFFERENTIABLE and each is not None else each
        for name, each in vars(inputs).items()
    }
    return AttentionInputs(**changed)


def run(
    spec: AttentionSpec, inputs: AttentionInputs, gradients: bool = True, way: Any = None,
    wanted: Sequence[str] = DIFFERENTIABLE,
) -> dict[str, Any]:  # fmt: skip
    """Result, logarithms, and the gradients ``wanted`` through both, by name."""
    way = way or torch_attention.triton_attention
    if not gradients:
        out, lse = way(spec, inputs)
        return {"out": out, "lse": lse}
    inputs = leaves(inputs, wanted=wanted)
    out, lse = way(spec, inputs)
    d_out = randn(*out.shape, seed=5).to(out.dtype)
    d_lse = randn(*lse.shape, seed=6).to(lse.dtype)
    of = {name: getattr(inputs, name) for name in wanted if getattr(inputs, name) is not None}
    # Where there is no key, the logarithm is -inf whatever the operands are.
    finite = torch.where(lse == -math.inf, 0.0, lse)
    given = [out, finite], list(of.values()), [d_out, d_lse]
    found = torch.autograd.grad(*given, allow_unused=True, materialize_grads=True)
    return {"out": out, "lse": lse, **dict(zip(of, found, strict=True))}


def check(
    spec: AttentionSpec, inputs: AttentionInputs, gradients: bool = True, kept: Any = None, tolerance: float = 0.0,
    wanted: Sequence[str] = DIFFERENTIABLE, way: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Everything is as in float64, up to rounding."""
    tolerance = tolerance or (1e-12 if spec.dtype == "float64" else 3e-5)
    assert way or Triton().lacks(replace(spec, gradients=gradients)) is None
    found = run(spec, inputs, gradients, way, wanted)
    expected = run(spec, doubled(inputs), gradients, lambda spec, inputs: oracle(spec, inputs, kept))
    for name, value in found.items():
        exact = expected[name]
        assert value.shape == exact.shape, name
        infinite = exact == -math.inf
        assert torch.equal(value == -math.inf, infinite), name
        value, exact = (each.detach().double().masked_fill(infinite, 0) for each in (value, exact))
        assert not value.isnan().any(), name
        if value.numel():
            error = float((value - exact).abs().max())
            assert error <= tolerance * max(1.0, float(exact.abs().max())), (name, error)
    return found


def in_its_precision(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    """The same maths as separate calls in the dtype of the operands, as one would write it."""
    score = (inputs.q @ inputs.k.mT) * spec.scale
    if spec.softcap:
        score = torch.tanh(score / spec.softcap) * spec.softcap
    if inputs.bias is not None:
        score = score + inputs.bias.to(score.dtype)
    i = torch.arange(spec.q_len, device=score.device)[:, None]
    j = torch.arange(spec.kv_len, device=score.device)[None, :]
    facing = i + (spec.kv_len - spec.q_len if spec.alignment == "bottom_right" else 0)
    left, right = spec.window
    hidden = (j < facing - left) if left is not None else torch.zeros_like(j > i)
    hidden = hidden | (j > facing + right) if right is not None else hidden
    hidden = hidden | (j > facing) if spec.causal else hidden
    hidden = hidden | ~inputs.mask if inputs.mask is not None else hidden
    # A row without keys has weight nowhere.
    nothing = hidden.all(-1, keepdim=True)
    score = score.masked_fill(hidden & ~nothing, -math.inf)
    weights = torch.where(nothing, 0.0, torch.softmax(score, -1)).to(score.dtype)
    return weights @ inputs.v, torch.where(nothing[..., 0], -math.inf, torch.logsumexp(score.float(), -1))


def rms(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).square().mean().sqrt())


def check_low_precision(spec: AttentionSpec, inputs: AttentionInputs) -> None:
    """Errors are at most twice those of separate calls in the same precision, of gradients three times."""
    expected, theirs, found = (
        {name: torch.nan_to_num(value, nan=math.nan, neginf=0.0) for name, value in run(spec, of, way=way).items()}
        for of, way in ((doubled(inputs), oracle), (inputs, in_its_precision), (inputs, None))
    )
    eps = torch.finfo(inputs.q.dtype).eps
    for name, value in found.items():
        most = (2 if name in ("out", "lse") else 3) * rms(theirs[name], expected[name])
        # Weights and results are rounded. Of few elements, how far theirs are off is chance.
        roundings = 2 if value.numel() < 256 else 0.5
        least = eps * roundings * float(expected[name].double().square().mean().sqrt())
        assert rms(value, expected[name]) <= max(most, least), name


def oracle(spec: AttentionSpec, inputs: AttentionInputs, kept: Any = None) -> tuple[Any, Any]:
    """Return the result and the logarithms in float64, differentiable.

    Args:
        spec: what to compute.
        inputs: tensors of any floating dtype.
        kept: of which weights dropout leaves, shape ``(*batch, q_len, kv_len)``.
    """
    if not spec.varlen:
        # The reference takes no axis that a bias alone has.
        inputs = replace(inputs, q=inputs.q.expand(*spec.batch, *inputs.q.shape[-2:]))
    # As the front has it: the last query faces the last key of a cache.
    alignment = "bottom_right" if spec.cache else spec.alignment
    with (
        mock.patch.object(TorchArrays, "dropout", lambda self, x, p: x * kept.reshape(x.shape) / (1 - p)),
        # What is tested must not be its own measure: on a GPU, the products would be kernels of ours.
        mock.patch.object(TorchArrays, "einsum", lambda self, equation, a, b: torch.einsum(equation, a, b)),
    ):
        return Math().run(replace(spec, dtype="float64", lse=True, alignment=alignment), inputs)


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {"batch": (2,)},
    "causal": {"causal": True, "batch": (2,)},
    "causal, last facing last": {"causal": True, "alignment": "bottom_right", "batch": (2,)},
    "window": {"window": (5, 9), "batch": (2,)},
    "window, last facing last": {"window": (20, 3), "alignment": "bottom_right", "batch": (2,)},
    "causal window": {"window": (11, None), "causal": True, "batch": (2,)},
    "softcap": {"softcap": 2.0, "batch": (2,)},
    "negative scale": {"scale": -0.3, "batch": (2,)},
    "bias": {"bias": (2, 2, 21, 37)},
    "causal bias": {"bias": (2, 2, 21, 37), "causal": True},
    "bias over batch": {"bias": (1, 2, 21, 37)},
    "bias over heads, causal": {"bias": (2, 1, 21, 37), "causal": True},
    "bias by key": {"bias": (1, 2, 1, 37)},
    "bias by query": {"bias": (2, 1, 21, 1)},
    "one bias": {"bias": (1, 1, 1, 1)},
    "mask": {"mask": (2, 2, 21, 37)},
    "mask by key": {"mask": (2, 1, 1, 37)},
    "alibi": {"alibi": (1, 2)},
    "alibi, causal": {"alibi": (2, 2), "causal": True, "alignment": "bottom_right"},
    "sinks": {"sinks": (1, 2)},
    "segments": {"segments": (2, 1)},
    "segments, causal": {"segments": (1, 1), "causal": True},
    "everything": {
        "bias": (1, 2, 21, 37),
        "mask": (2, 1, 21, 37),
        "alibi": (1, 2),
        "sinks": (2, 2),
        "segments": (2, 1),
        "softcap": 3.0,
        "causal": True,
        "window": (30, 30),
        "alignment": "bottom_right",
    },
}
