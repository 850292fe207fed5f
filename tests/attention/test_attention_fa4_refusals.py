"""FlashAttention-4 that refuses when it is called, in compiled code too: our own kernels do the call."""

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import fa4_stand_in
import pytest
import torch
from attention_problems import tiles
from fa4_calls import BR, THD, P, check, made, results

from einops_fast import attention, attention_backend
from einops_fast.attention import attend
from einops_fast.backends.torch.attention.implementations import devices, fa4, fa4_ops
from einops_fast.runtime.plan_cache import clear_plans

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in runs on a CPU")

SMALL = (2, 11, 4, 16), (2, 19, 2, 16), (2, 19, 2, 16)
PACKED = (20, 4, 16), (23, 2, 16), (23, 2, 16)
LENGTHS = {"cu_seqlens_q": [0, 7, 7, 18], "cu_seqlens_kv": [0, 9, 11, 23]}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "shared keys": (P, SMALL, {"causal": BR, "scale": 0.3}),
    "sinks, lse": (P, SMALL, {"sinks": 4, "window": (5, 3), "alignment": BR, "return_lse": True}),
    "softcap": (P, (SMALL[0], (2, 19, 4, 16), (2, 19, 4, 16)), {"softcap": 3.0}),
    "packed": (THD, PACKED, {**LENGTHS, "causal": BR, "return_lse": True}),
}
PAGES = {"cache_seqlens": [17, 250], "block_table": 16, "return_lse": True}
PAGED = "b i h d, page j g d, page j g e -> b i h e", ((2, 3, 4, 16), (40, 16, 2, 16), (40, 16, 2, 16)), PAGES


class Library:
    """What stands in for the library, and refuses these calls."""

    def __init__(self) -> None:
        self.refuses: dict[str, Exception] = {}
        self.calls: list[str] = []

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append(name)
        if name in self.refuses:
            raise self.refuses[name]
        return getattr(fa4_stand_in, f"_flash_attn_{name}")(*arguments, **options)

    def _flash_attn_fwd(self, *arguments: Any, **options: Any) -> Any:
        return self._call("fwd", *arguments, **options)

    def _flash_attn_bwd(self, *arguments: Any, **options: Any) -> Any:
        return self._call("bwd", *arguments, **options)


@pytest.fixture
def library(monkeypatch: Any) -> Any:
    clear_plans()
    monkeypatch.setattr(attend, "_calls", {})
    found = Library()
    module: Any = SimpleNamespace(_flash_attn_fwd=found._flash_attn_fwd, _flash_attn_bwd=found._flash_attn_bwd)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", module)
    monkeypatch.setattr(fa4.Fa4, "unavailable", lambda self, device: None)
    monkeypatch.setattr(fa4, "_BACKWARD", (16,))
    monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
    with tiles():
        yield found
    clear_plans()


@pytest.mark.parametrize(
    ("case", "refuses"),
    [*((case, "fwd bwd") for case in CASES), *((next(iter(CASES)), one) for one in ("fwd", "bwd"))],
)
def test_our_kernels_do_what_it_refuses(library: Any, case: str, refuses: str) -> None:
    call, arrays, options = made(CASES[case], "cpu")
    with attention_backend("math"):
        expected = results(call, arrays, options, True, wide=True)
    library.refuses = {name: AssertionError("unsupported head_dim") for name in refuses.split()}
    with attention_backend("fa4"):
        with pytest.warns(RuntimeWarning, match="fa4: .*: unsupported head_dim. Such calls go to triton"):
            check(results(call, arrays, options, True), expected, 1.5e-2)
        assert library.calls == ["fwd", "bwd"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(results(call, arrays, options, True), expected, 1.5e-2)
    assert library.calls[2:] == [name for name in ("fwd", "bwd") if name not in refuses]


def test_pages(library: Any) -> None:
    call, arrays, options = made(PAGED, "cpu")
    with attention_backend("math"):
        expected = results(call, arrays, options, False, wide=True)
    library.refuses = {"fwd": ImportError("cannot import name")}
    with attention_backend("fa4"), pytest.warns(RuntimeWarning, match="Such calls go to triton"):
        check(results(call, arrays, options, False), expected, 1.5e-2)


@pytest.mark.parametrize("case", ["shared keys", "packed"])
def test_compiled(library: Any, case: str) -> None:
    call, arrays, options = made(CASES[case], "cpu")
    if case == "packed":
        options |= {"max_seqlen_q": 11, "max_seqlen_kv": 12}
    with attention_backend("math"):
        expected = results(call, arrays, options, True, wide=True)
    library.refuses = {"fwd": NotImplementedError("no"), "bwd": ValueError("no")}
    torch.compiler.reset()
    compiled = torch.compile(lambda *leaves, **options: call(*leaves, **options), fullgraph=True, backend="aot_eager")
    compiled.keywords = call.keywords
    with attention_backend("fa4"), pytest.warns(RuntimeWarning, match="Such calls go to triton"):
        check(results(compiled, arrays, options, True), expected, 1.5e-2)


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory."), RuntimeError("CUDA error: misaligned address")])
def test_errors_that_are_no_refusals(library: Any, error: Exception) -> None:
    call, arrays, options = made(CASES["shared keys"], "cpu")
    library.refuses = {"fwd": error}
    with attention_backend("fa4", "math"), pytest.raises(RuntimeError, match=str(error)):
        call(*arrays, **options)


def test_another_library_where_our_kernels_cannot_be_used(library: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fa4_ops, "why_unusable", lambda: "Triton isn't installed")
    call, arrays, options = made(CASES["shared keys"], "cpu")
    with attention_backend("math"):
        expected = call(*arrays, **options)
    library.refuses = {"fwd": TypeError("unexpected keyword")}
    with (
        attention_backend("fa4", "math"),
        pytest.warns(RuntimeWarning, match="unexpected keyword. Such calls go to math"),
    ):
        torch.testing.assert_close(call(*arrays, **options), expected)
    with attention_backend("fa4"), pytest.raises(RuntimeError, match="FlashAttention-4 refuses this call: unexpected"):
        attention(P, *arrays, causal=True, alignment=BR)
