"""FlashAttention-4: all that it is said to do, forward and backward, against the oracle in float64.

Where flash-attn-4 and a GPU are there, they are tested; else a stand-in tests all that is ours.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import attention_problems
import fa4_stand_in
import pytest
import torch
from attention_problems import DEVICE, check, randn
from attention_spec import SPEC
from torch_operands import whole

from einops_fast import attention, attention_backend
from einops_fast.attention import attend
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.implementations import devices, fa4
from einops_fast.runtime.plan_cache import clear_plans


def _there() -> bool:
    try:
        return DEVICE == "cuda" and find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


REAL = [pytest.mark.gpu, pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")]


@pytest.fixture(params=["stand-in", pytest.param("flash-attn-4", marks=REAL)])
def library(request: Any, monkeypatch: Any) -> Iterator[None]:
    """The library, or what stands in for it."""
    clear_plans()
    monkeypatch.setattr(attend, "_calls", {})
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", fa4_stand_in)
        monkeypatch.setattr(fa4.Fa4, "unavailable", lambda self, device: None)
        monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
    yield
    clear_plans()


Problem = tuple[AttentionSpec, AttentionInputs]
BR: dict[str, Any] = {"alignment": "bottom_right"}


def problem(q_len: int = 130, kv_len: int = 200, head_dim: int = 64, **options: Any) -> Problem:
    return attention_problems.attention(
        options.pop("batch", (2, 4)), q_len, kv_len, head_dim, dtype=options.pop("dtype", "bfloat16"), **options
    )


def numbers(*values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def packed(starts: list[int], kv_starts: list[int], share: int = 1, tail: int = 0, **options: Any) -> Problem:
    """Sequences along the positions, with places of none behind them."""
    longest = [max(end - start for start, end in pairwise(each)) for each in (starts, kv_starts)]
    spec, inputs = problem(*longest, batch=(len(starts) - 1, 2, share), varlen=True, **options)
    spec = replace(spec, q_batch=(1, 2, share), k_batch=(1, 2, 1), v_batch=(1, 2, 1))
    inputs.q = randn(1, 2, share, starts[-1] + tail, 64, dtype=spec.dtype)
    inputs.k, inputs.v = (randn(1, 2, 1, kv_starts[-1] + tail, 64, dtype=spec.dtype, seed=at) for at in (1, 2))
    inputs.cu_seqlens_q, inputs.cu_seqlens_kv = numbers(*starts), numbers(*kv_starts)
    return spec, inputs


def paged(size: int, lengths: tuple[int, int] = (17, 250), **options: Any) -> Problem:
    count = -(-256 // size)
    spec, inputs = problem(3, count * size, 128, batch=(2, 2, 2), cache=True, page_size=size, **BR, **options)
    spec = replace(spec, k_batch=(40, 2, 1), v_batch=(40, 2, 1))
    inputs.k, inputs.v = (randn(40, size, 2, 128, dtype=spec.dtype, seed=at) for at in (1, 2))
    inputs.k, inputs.v = (each.transpose(1, 2).unsqueeze(2) for each in (inputs.k, inputs.v))
    inputs.block_table = torch.randperm(40, generator=torch.Generator().manual_seed(0))[: 2 * count].view(2, count)
    inputs.block_table, inputs.cache_seqlens = inputs.block_table.int().to(DEVICE), numbers(*lengths)
    return spec, inputs


SHARED = {"batch": (2, 2, 2), "k_batch": (2, 2, 1)}
STARTS, KV_STARTS = [0, 37, 37, 190, 200], [0, 20, 31, 31, 230]

CASES: dict[str, Any] = {
    "plain": problem,
    "causal": partial(problem, 200, causal=True),
    "causal, fewer queries": partial(problem, causal=True, **BR),
    "window": partial(problem, 300, 300, window=(20, 50)),
    "window, more queries": partial(problem, 600, window=(60, 20), **BR),
    "softcap, float16": partial(problem, softcap=3.0, dtype="float16"),
    "sinks": partial(problem, sinks=(1, 4), scale=0.3),
    "sinks of shared keys": partial(problem, sinks=(1, 2, 2), causal=True, **BR, **SHARED),
    "one head of keys": partial(problem, k_batch=(2, 1), causal=True, **BR),
    "keys shared by the batch": partial(problem, k_batch=(1, 4)),
    "packed": partial(packed, STARTS, KV_STARTS),
    "packed, causal": partial(packed, STARTS, KV_STARTS, causal=True, **BR),
    "packed, softcap, sinks": partial(packed, STARTS, STARTS, softcap=3.0, sinks=(1, 2, 1)),
    "packed, a tail, shared keys": partial(packed, [0, 37, 150, 190], [0, 37, 150, 190], 2, 70, causal=True, **BR),
}

#: Without gradients only.
FORWARD: dict[str, Any] = {
    "values of 32": partial(problem, v_head_dim=32, **SHARED),
    "values of 64": partial(problem, head_dim=256, v_head_dim=64),
    "values of 128": partial(problem, head_dim=192, v_head_dim=128, causal=True, **BR, **SHARED),
}
for size in (16, 256):
    FORWARD |= {
        f"pages of {size}": partial(paged, size),
        f"pages of {size}, causal, hardly any keys": partial(paged, size, (2, 0), causal=True),
        f"pages of {size}, window, softcap, sinks": partial(
            paged, size, (0, 256), window=(100, 0), softcap=3.0, sinks=(1, 2, 2)
        ),
    }

DIMS = [
    *[(dim, dim) for dim in fa4._BACKWARD],
    *[(dim, other) for dim, others in fa4._UNEVEN_BACKWARD.items() for other in others],
]


def by_fa4(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    """The result and the logarithms, without the places of no sequence, which are zeros."""
    out, lse = fa4.Fa4().run(spec, inputs)
    assert out.dtype == inputs.q.dtype
    if not spec.varlen:
        return out, lse
    end = int(inputs.cu_seqlens_q[-1])
    assert not out[..., end:, :].any()
    assert (lse[..., end:] == -torch.inf).all()
    return out[..., :end, :], lse[..., :end]


def compared(given: Problem, gradients: bool) -> None:
    assert fa4.Fa4().lacks(replace(given[0], gradients=gradients)) is None
    check(*given, gradients, tolerance=2e-3 if given[0].dtype == "float16" else 1.5e-2, way=by_fa4)


@pytest.mark.parametrize("case", [*CASES, *FORWARD])
def test_results_and_gradients(case: str, library: None) -> None:
    compared((CASES | FORWARD)[case](), case in CASES)


@pytest.mark.gpu
@pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")
@pytest.mark.parametrize("options", [{}, {"causal": True, **BR}])
@pytest.mark.parametrize("dims", DIMS)
def test_features_of_a_head(dims: tuple[int, int], options: dict[str, Any]) -> None:
    """Each is a kernel of its own, which our side doesn't tell from others."""
    compared(problem(150, 170, dims[0], v_head_dim=dims[1], **options), True)


CALLS: dict[str, tuple[str, Any]] = {
    "one array": ("", lambda x: (x,)),
    "permuted": ("i b n h d, j b h d, b j h e -> i h b n e", lambda x: (x, x[:, :, 1], x[:, :, 2].transpose(0, 1))),
    "one query": ("b h d, b j h d, b j h e -> b h e", lambda x: (x[:, 0, 0], x[:, :, 1], x[:, :, 2])),
    "packed": ("i h d, j h d, j h e -> i h e", lambda x: x.flatten(0, 1).unbind(1)),
}
OPTIONS = {
    "one array": {"layout": "bs3hd", "causal": True}, "packed": {"cu_seqlens_q": numbers(0, 37, 60), "max_seqlen_q": 37}
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_whole_calls(name: str, compiled: bool, library: None) -> None:
    """In any order of axes, with gradients of the log alone, too."""
    (pattern, operands), found = CALLS[name], []

    def call(x: Any) -> Any:
        return attention(*([pattern] if pattern else []), *operands(x), return_lse=True, **OPTIONS.get(name, {}))

    for way, dtype in (("fa4", "bfloat16"), ("math", "float64")):
        x = randn(30, 30, 3, 4, 64, dtype="bfloat16").to(getattr(torch, dtype)).requires_grad_()
        run = whole(call) if compiled and way == "fa4" else call
        with attention_backend(way):
            out, lse = run(x)
        lse = lse.nan_to_num(neginf=0.0)
        found.append([out, lse, *(torch.autograd.grad(each.sum(), x, retain_graph=True)[0] for each in (lse, out))])
    for ours, right in zip(*found, strict=True):
        assert (ours.double() - right).abs().max() <= 2e-2 * max(1.0, right.abs().max())


@pytest.mark.gpu
@pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")
def test_nothing_beyond_the_end_of_a_cache_has_an_effect() -> None:
    spec, inputs = paged(16)
    found = []
    for filling in (0.0, float("nan")):
        for length, table in zip(inputs.cache_seqlens.tolist(), inputs.block_table.tolist(), strict=True):
            for at, page in enumerate(table):
                inputs.k[page, ..., max(0, length - 16 * at) :, :] = filling
                inputs.v[page, ..., max(0, length - 16 * at) :, :] = filling
        found.append(by_fa4(spec, inputs)[0])
    assert torch.equal(*found)


def test_second_derivatives_are_an_error(library: None) -> None:
    q = randn(2, 4, 30, 64, dtype="bfloat16").requires_grad_()
    with attention_backend("fa4"):
        result = attention(q, q, q, layout="bhsd")
    (gradient,) = torch.autograd.grad(result.float().square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"attention_backend\('math'\)"):
        gradient.sum().backward()


# ---- what it refuses


@pytest.mark.parametrize(
    "error", [AssertionError("unsupported"), ImportError("unsupported"), RuntimeError("no memory")]
)
def test_what_it_refuses_when_it_is_called_goes_to_the_next_one(monkeypatch: Any, error: Exception) -> None:
    """Eagerly; in compiled code, and alone, its own error is raised."""

    def refuse(*arrays: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", SimpleNamespace(_flash_attn_fwd=refuse))
    monkeypatch.setattr(fa4.Fa4, "unavailable", lambda self, device: None)
    monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
    clear_plans()
    call = partial(attention, layout="bhsd")
    arrays = [randn(2, 4, 30, 64, dtype="bfloat16", seed=at).cpu() for at in range(3)]
    with attention_backend("math"):
        expected = call(*arrays)
    with attention_backend("fa4", "math"):
        with pytest.warns(RuntimeWarning, match=f"attention by fa4: .*{error}. Such calls go to math"):
            torch.testing.assert_close(call(*arrays), expected)
        with pytest.raises(RuntimeError, match=str(error)):
            whole(call)(*arrays)
    with attention_backend("fa4"), pytest.raises(RuntimeError, match=str(error)):
        call(*arrays)
    clear_plans()


GROUPED = {
    "batch": (2, 4, 2), "q_batch": (2, 4, 2), "k_batch": (2, 4, 1), "v_batch": (2, 4, 1),
    "strides": ((1024000, 128, 64, 1024, 1), (512000, 64, 0, 512, 1), (512000, 64, 0, 512, 1)),
}  # fmt: skip
VARLEN = {"varlen": True, "batch": (4, 8), "q_batch": (1, 8), "k_batch": (1, 8), "v_batch": (1, 8)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float32"}, "float16 and bfloat16"),
        ({"mask": (1, 1, 128, 128)}, "no mask"),
        ({"scale": -0.5}, "positive scale"),
        ({"head_dim": 264, "v_head_dim": 264}, "up to 256"),
        ({"head_dim": 60, "v_head_dim": 60}, "multiples of 8"),
        ({"head_dim": 96, "v_head_dim": 256}, "too few registers"),
        ({"gradients": True, "head_dim": 80, "v_head_dim": 80}, "right with head_dim 80"),
        ({"gradients": True, "v_head_dim": 32}, "64 beside 32"),
        ({"gradients": True, "head_dim": 192, "v_head_dim": 128, **GROUPED}, "heads share their keys"),
        ({"gradients": True, "deterministic": True}, "same bits"),
        ({"gradients": True, "cache": True, "page_size": 16, "alignment": "bottom_right"}, "gradients where"),
        ({"cache": True, "alignment": "bottom_right"}, "without pages, what lies beyond"),
        ({"cache": True, "page_size": 128, "alignment": "bottom_right"}, "pages of 128, what lies beyond"),
        ({"strides": ((65536, 1, 512, 8),) * 3}, "side by side"),
        ({"strides": ((65536, 68, 544, 1),) * 3}, "16 bytes"),
        ({"causal": True, "q_len": 640}, "last query faces the last key"),
        ({"causal": True, **VARLEN}, "last query faces the last key"),
        ({**VARLEN, "batch": (4, 2, 8), "q_batch": (1, 2, 8), "k_batch": (1, 2, 8), "v_batch": (1, 2, 8),
          "strides": ((0, 1000000, 64, 512, 1),) * 3}, "beside packed sequences"),
        ({"transforms": True}, "vmapped"),
    ],
)  # fmt: skip
def test_it_says_what_it_lacks(change: dict[str, Any], reason: str) -> None:
    said = fa4.Fa4().lacks(replace(SPEC, **change))
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    "change",
    [
        {}, GROUPED, VARLEN, {"gradients": True, **GROUPED}, {"v_head_dim": 32, **GROUPED}, {"sinks": True},
        {"gradients": True, "head_dim": 120, "v_head_dim": 120, "causal": True},
        {"gradients": True, "head_dim": 256, "v_head_dim": 256, "window": (10, None)},
        {"gradients": True, "lse": True, "softcap": 3.0, "sinks": True},
        {"cache": True, "page_size": 16, "alignment": "bottom_right", "causal": True},
        {"causal": True, "alignment": "bottom_right", "q_len": 200}, {"v_head_dim": 192},
        {"head_dim": 104, "v_head_dim": 256},
    ],
)  # fmt: skip
def test_it_says_what_it_can_do(change: dict[str, Any]) -> None:
    assert fa4.Fa4().lacks(replace(SPEC, **change)) is None


def test_what_was_not_tried_on_other_gpus_is_left_to_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(fa4, "_INSTALLED", True)
    capabilities = {"cuda:0": (9, 0), "cuda:1": (10, 0), "cuda:2": (8, 0)}
    monkeypatch.setattr(devices, "_capability", capabilities.__getitem__)
    way = fa4.Fa4()
    for change in ({"head_dim": 256, "v_head_dim": 64}, {"sinks": True}, {"cache": True, "page_size": 16}):
        assert way.refuses(replace(SPEC, **change, device="cuda:0")) is None
        assert way.refuses(replace(SPEC, **change, device="cuda:1"))
    assert way.refuses(replace(SPEC, device="cuda:1")) is None
    assert "9.0" in str(way.refuses(replace(SPEC, device="cuda:2")))
    assert "NVIDIA" in str(way.refuses(replace(SPEC, device="cpu")))
    monkeypatch.setattr(fa4, "_INSTALLED", False)
    assert "isn't installed" in str(way.refuses(replace(SPEC, device="cuda:0")))
