"""FlashAttention-4: all that it is said to do, forward and backward, against the reference in float64.

Where flash-attn-4 and a GPU are there, they are tested; else a stand-in tests all that is ours.
"""

import sys
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import fa4_stand_in
import pytest
import torch
from attention_spec import SPEC
from fa4_calls import BR, THD, P, check, made, results
from torch_operands import whole

from einops_fast import attention_backend
from einops_fast.attention import attend
from einops_fast.backends.torch.attention.implementations import devices, fa4
from einops_fast.runtime.plan_cache import clear_plans


def _there() -> bool:
    try:
        return torch.cuda.is_available() and find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


REAL = [pytest.mark.gpu, pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")]


@pytest.fixture(params=["stand-in", pytest.param("flash-attn-4", marks=REAL)])
def device(request: Any, monkeypatch: Any) -> Any:
    """Where the library, or what stands in for it, runs."""
    clear_plans()
    monkeypatch.setattr(attend, "_calls", {})
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", fa4_stand_in)
        monkeypatch.setattr(fa4.Fa4, "unavailable", lambda self, device: None)
        monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
        yield "cpu"
    else:
        yield "cuda"
    clear_plans()


def shapes(q_len: int, kv_len: int, heads: int = 4, kv_heads: int = 4, dim: int = 64, v_dim: int | None = None) -> Any:
    return (2, q_len, heads, dim), (2, kv_len, kv_heads, dim), (2, kv_len, kv_heads, v_dim or dim)


def packed(total: int, kv_total: int, heads: int = 4, kv_heads: int = 4, dim: int = 64) -> Any:
    return (total, heads, dim), (kv_total, kv_heads, dim), (kv_total, kv_heads, dim)


STARTS, KV_STARTS, SHORT = [0, 37, 37, 190, 200], [0, 20, 31, 31, 230], [0, 37, 150, 190]
UNLIKE = {"cu_seqlens_q": STARTS, "cu_seqlens_kv": KV_STARTS}

#: Pattern, shapes of q, k and v, options; lists of numbers are arrays of integers.
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": (P, shapes(130, 200), {}),
    "causal": (P, shapes(200, 200), {"causal": True}),
    "causal, fewer queries": (P, shapes(130, 200), {"causal": BR}),
    "window": (P, shapes(300, 300), {"window": (20, 50)}),
    "window, more queries": (P, shapes(600, 200), {"window": (60, 20), "alignment": BR, "return_lse": True}),
    "softcap": (P, shapes(130, 200), {"softcap": 3.0}),
    "lse, softcap": (P, shapes(130, 200), {"return_lse": True, "softcap": 3.0, "dtype": "float16"}),
    "sinks": (P, shapes(130, 200), {"sinks": 4, "return_lse": True}),
    "sinks, GQA": (P, shapes(130, 200, 4, 2), {"sinks": 4, "causal": BR}),
    "GQA": (P, shapes(130, 200, 6, 2), {}),
    "MQA": (P, shapes(130, 200, 4, 1), {"causal": BR}),
    "two axes of heads": (
        "b i g r d, b j g d, b j g e -> b i g r e", ((2, 130, 2, 3, 64), (2, 99, 2, 64), (2, 99, 2, 64)), {},
    ),
    "permuted": (
        "h i b d, j b h d, b h j e -> i h b e", ((4, 130, 2, 64), (200, 2, 4, 64), (2, 4, 200, 64)),
        {"return_lse": True},
    ),
    "no batch": ("i h d, j h d, j h e -> i h e", packed(130, 200), {}),
    "one query": ("b h d, b j h d, b j h e -> b h e", ((2, 4, 64), (2, 200, 4, 64), (2, 200, 4, 64)), {}),
    "keys shared by the batch": ("b i h d, j h d, j h e -> b i h e", ((2, 130, 4, 64), (200, 4, 64), (200, 4, 64)), {}),
    "one array": ("bs3hd", ((2, 130, 3, 4, 64),), {"causal": True}),
    "thd": (THD, packed(200, 230), {**UNLIKE, "return_lse": True}),
    "thd, causal": (THD, packed(200, 230), {**UNLIKE, "causal": BR, "return_lse": True}),
    "thd, softcap, sinks": (THD, packed(200, 200), {"cu_seqlens_q": STARTS, "softcap": 3.0, "sinks": 4}),
    "thd, a tail": (THD, packed(260, 260, 4, 2), {"cu_seqlens_q": SHORT, "causal": BR, "return_lse": True}),
}  # fmt: skip

#: Without gradients only.
FORWARD: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "values of 32": (P, shapes(130, 200, 4, 2, 64, 32), {}),
    "values of 64": (P, shapes(130, 200, 4, 4, 256, 64), {}),
    "values of 128": (P, shapes(130, 200, 4, 2, 192, 128), {"causal": BR}),
}
for pages in (16, 256):
    for name, options in {
        "": {"return_lse": True},
        ", causal, hardly any keys": {"causal": BR, "cache_seqlens": [2, 0], "return_lse": True},
        ", window, softcap, sinks": {"window": (100, 0), "softcap": 3.0, "sinks": 4, "cache_seqlens": [0, 256]},
    }.items():
        FORWARD[f"pages of {pages}{name}"] = (
            "b i h d, page j g d, page j g e -> b i h e", ((2, 3, 4, 128), (40, pages, 2, 128), (40, pages, 2, 128)),
            {"cache_seqlens": [17, 250], "block_table": pages, **options},
        )  # fmt: skip

DIMS = [
    *[(dim, dim) for dim in fa4._BACKWARD],
    *[(dim, other) for dim, others in fa4._UNEVEN_BACKWARD.items() for other in others],
]
HEADS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    f"{dim}/{v_dim}, {options}": (P, shapes(150, 170, 4, 4, dim, v_dim), options)
    for dim, v_dim in DIMS
    for options in ({}, {"causal": BR})
}


def compared(case: tuple[Any, Any, dict[str, Any]], device: str, gradients: bool) -> None:
    call, arrays, options = made(case, device)
    with attention_backend("fa4"):
        found = results(call, arrays, options, gradients)
    with attention_backend("math"):
        expected = results(call, arrays, options, gradients, wide=True)
    check(found, expected, 2e-3 if arrays[0].dtype == torch.float16 else 1.5e-2)
    assert found["result"].dtype == arrays[0].dtype


@pytest.mark.parametrize("case", [*CASES, *FORWARD])
def test_forward(case: str, device: str) -> None:
    compared((CASES | FORWARD)[case], device, False)


@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward(case: str, device: str) -> None:
    compared(CASES[case], device, True)


@pytest.mark.gpu
@pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")
@pytest.mark.parametrize("case", HEADS)
def test_features_of_a_head(case: str) -> None:
    """Each is a kernel of its own, which our side doesn't tell from others."""
    compared(HEADS[case], "cuda", True)


@pytest.mark.parametrize("case", ["plain", "sinks, GQA", "lse, softcap", "thd, a tail"])
def test_compiled_it_gives_the_same(case: str, device: str) -> None:
    call, arrays, options = made(CASES[case], device)
    if "cu_seqlens_q" in options:
        options |= {"max_seqlen_q": 113, "max_seqlen_kv": 113}
    compiled = whole(lambda *leaves, **options: call(*leaves, **options))
    compiled.keywords = call.keywords
    with attention_backend("fa4"):
        expected = results(call, arrays, options, True)
        found = results(compiled, arrays, options, True)
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.gpu
@pytest.mark.skipif(not _there(), reason="needs flash-attn-4 and a GPU")
def test_nothing_beyond_the_end_of_a_cache_has_an_effect() -> None:
    call, arrays, options = made(FORWARD["pages of 16"], "cuda")
    found = []
    for filling in (0.0, float("nan")):
        for each in arrays[1:]:
            for lengths, own in zip(options["cache_seqlens"].tolist(), options["block_table"].tolist(), strict=True):
                for at, page in enumerate(own):
                    each[page, max(0, lengths - 16 * at) :] = filling
        with attention_backend("fa4"):
            found.append(call(*arrays, **options)[0])
    assert torch.equal(*found)


def test_only_the_gradient_of_the_log(device: str) -> None:
    call, arrays, options = made(CASES["lse, softcap"], device)
    found = []
    for name, dtype in (("fa4", torch.bfloat16), ("math", torch.float64)):
        leaves = [each.detach().to(dtype).requires_grad_() for each in arrays]
        with attention_backend(name):
            lse = call(*leaves, **options)[1]
        found.append(torch.autograd.grad(lse.sum(), leaves[:2]))
    for ours, right in zip(*found, strict=True):
        assert (ours.double() - right).abs().max() <= 2e-2


def test_second_derivatives_are_an_error(device: str) -> None:
    call, arrays, _ = made(CASES["plain"], device)
    q = arrays[0].requires_grad_()
    with attention_backend("fa4"):
        result = call(q, *arrays[1:])
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
    call, arrays, _ = made(CASES["plain"], "cpu")
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
