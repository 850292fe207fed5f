"""What libraries say that they can do: torch's own conditions, which hold while a compiler traces a call, too."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_implementations import SPEC
from torch._subclasses.fake_tensor import FakeTensorMode

from einops_fast import attention, attention_backend
from einops_fast.attention import prepare
from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention.implementations import base, clock, devices, sdpa
from einops_fast.runtime.plan_cache import clear_plans

BIAS = {"bias": (2, 8, 1000, 1000), "bias_dtype": "float32"}
ODD = {"strides": ((520000, 65, 520, 1),) * 3}
EVEN = {"strides": ((576000, 72, 576, 1),) * 3}
LAST = {"causal": True, "alignment": "bottom_right"}


@pytest.mark.parametrize(
    ("way", "change", "reason"),
    [
        (sdpa.Flash, ODD, "16 bytes"),
        (sdpa.Flash, EVEN, None),
        (sdpa.Flash, {"scale": 0.0}, "positive scale"),
        (sdpa.Flash, LAST, None),
        (sdpa.Efficient, LAST, None),
        (sdpa.Flash, {**LAST, "q_len": 900}, None),
        (sdpa.Efficient, {**LAST, "q_len": 900}, "first query faces the first key"),
        (sdpa.Flash, {**LAST, "q_len": 1100}, "no zeros for queries without any key"),
        (sdpa.Efficient, {**LAST, "q_len": 1100}, "first query faces the first key"),
        (sdpa.Flash, {"causal": True, "q_len": 900}, "last query faces the last key"),
        (sdpa.Flash, {"head_dim": 63, "v_head_dim": 63, **ODD}, None),  # torch copies them, with 64 features
        (sdpa.Cudnn, ODD, "16 bytes"),
        (sdpa.Efficient, {"dtype": "float32", "strides": ((544000, 68, 544, 1),) * 3}, None),
        (sdpa.Efficient, {"dtype": "float32", "strides": ((528000, 66, 528, 1),) * 3}, "16 bytes"),
        (sdpa.Efficient, {"strides": ((0, 64, 512, 1),) * 3}, None),
        (sdpa.Efficient, BIAS, "round the bias from float32 to float16"),
        (sdpa.Efficient, {**BIAS, "dtype": "float32"}, None),
        (sdpa.Cudnn, {**BIAS, "bias_dtype": "bfloat16"}, "round the bias from bfloat16 to float16"),
        (sdpa.Cudnn, {**BIAS, "bias_dtype": "float16"}, None),
    ],
)
def test_a_condition_of_the_problem(way: Any, change: dict[str, Any], reason: str | None) -> None:
    said = way().lacks(replace(SPEC, **change))
    assert said is None if reason is None else reason in said


WIDE = {"head_dim": 256, "v_head_dim": 256}


@pytest.mark.parametrize(
    ("way", "change", "can"),
    [
        (sdpa.Flash, {}, {(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
        (sdpa.Flash, WIDE, {(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
        (sdpa.Flash, {**WIDE, "gradients": True}, {(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
        (sdpa.Flash, {**WIDE, "gradients": True, "dropout_p": 0.5}, {(8, 0), (9, 0), (10, 0)}),
        (sdpa.Flash, {"head_dim": 224, "v_head_dim": 224, "gradients": True}, {(8, 0), (9, 0), (10, 0)}),
        (sdpa.Cudnn, {}, {(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
        (sdpa.Cudnn, WIDE, {(9, 0), (10, 0)}),
        (sdpa.Efficient, {}, {(7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
        (sdpa.Efficient, {"dtype": "bfloat16"}, {(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)}),
    ],
)
def test_a_condition_of_the_gpu(monkeypatch: Any, way: Any, change: dict[str, Any], can: set[tuple[int, int]]) -> None:
    monkeypatch.setattr(devices._cudnn, "is_available", lambda: True)
    gpus = [(7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)]
    monkeypatch.setattr(devices, "_capability", lambda device: gpus[int(device[-1])])
    specs = [replace(SPEC, **change, device=f"cuda:{at}") for at in range(len(gpus))]
    assert {gpu for gpu, spec in zip(gpus, specs, strict=True) if way().refuses(spec) is None} == can


def test_an_operand_that_begins_anywhere_is_refused() -> None:
    long = torch.zeros(2 * 8 * 16 * 64 + 1, dtype=torch.float16)
    odd, even = long[1:].view(2, 8, 16, 64), long[:-1].view(2, 8, 16, 64)
    spec = replace(SPEC, q_len=16, kv_len=16, strides=(even.stride(),) * 3)
    for operands in ((odd, even, even), (even, even, odd)):
        inputs = AttentionInputs(*operands)
        assert "begin at a multiple" in str(sdpa.Efficient().refuses(spec, inputs))


def test_a_later_operand_that_begins_anywhere_is_copied(monkeypatch: Any) -> None:
    """The choice was for calls of this kind, some of whose operands begin at multiples and some elsewhere."""
    seen = []

    def spy(q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
        seen.append([each.data_ptr() % 16 for each in (q, k, v)])
        return native(q, k, v, *others, **options)

    native = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(base, "native", spy)
    monkeypatch.setattr(sdpa, "sdpa_kernel", lambda backend: nullcontext())
    monkeypatch.setattr(sdpa.Efficient, "refuses", lambda self, spec, inputs: self.lacks(spec))
    long = torch.randn(2 * 4 * 16 * 64 + 1)
    odd, even = long[1:].view(2, 4, 16, 64).requires_grad_(), long[:-1].view(2, 4, 16, 64)
    with attention_backend("efficient"):
        for operands in ((even, even, even), (odd, even, odd)):
            found = attention(*operands, layout="bhsd")
            torch.testing.assert_close(found, native(*operands))
    assert torch.autograd.grad(found.sum(), odd)[0].any()
    assert seen == [[0, 0, 0]] * 2


# ---- while a compiler traces


@pytest.fixture
def on_gpu(monkeypatch: Any) -> Any:
    """Have tensors count as ones on a Hopper GPU, with all libraries there."""
    monkeypatch.setattr(prepare, "_device", lambda array, framework: "cuda:0")
    monkeypatch.setattr(devices, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(devices._cudnn, "is_available", lambda: True)
    clear_plans()
    yield
    clear_plans()


def traced(function: Any, *operands: Any, allowed: tuple[str, ...] = ()) -> str:
    """The graph as text."""
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return lambda *operands: (torch.zeros(2, 4, 16, 64),) * len(graph.graph.output_node().args[0])

    torch.compiler.reset()
    with attention_backend(*allowed) if allowed else nullcontext():
        torch.compile(function, fullgraph=True, backend=backend)(*operands)
    return str(graphs.pop())


Q = torch.randn(2, 4, 16, 64, dtype=torch.bfloat16)
LIBRARY, OPERATOR = "scaled_dot_product_attention(", "_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(
    ("options", "operator"),
    [
        ({}, False),
        ({"causal": True}, False),
        ({"return_lse": True}, True),
        ({"causal": "bottom_right", "keys": 32}, True),
    ],
)
def test_flash_is_called_by_its_operator_only_where_torch_has_no_function(
    on_gpu: Any, options: dict[str, Any], operator: bool
) -> None:
    """torch's function goes on to another library where flash can't; the operator raises."""
    kv = torch.randn(2, 4, options.pop("keys", 16), 64, dtype=torch.bfloat16)
    graph = traced(lambda q, kv: attention(q, kv, kv, layout="bhsd", **options), Q, kv, allowed=("flash",))
    assert (OPERATOR in graph, LIBRARY in graph) == (operator, not operator)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "attention_forward"), ("bfloat16", LIBRARY)])
def test_a_wide_bias_is_not_rounded(on_gpu: Any, dtype: str, expected: str) -> None:
    pytest.importorskip("triton")
    q = Q[..., :40].contiguous()  # on Hopper, kernels of ours come first for multiples of 32 features
    bias = torch.zeros(16, 16, dtype=getattr(torch, dtype))
    assert expected in traced(lambda q, bias: attention(q, q, q, layout="bhsd", bias=bias), q, bias)


def test_torch_goes_on_to_what_attention_backend_allows(on_gpu: Any) -> None:
    def call(q: Any) -> Any:
        return attention(q, q, q, layout="bhsd")

    torch.compiler.reset()
    with attention_backend("cudnn", "math"):  # these tensors, on a CPU, are none of cuDNN's
        found = torch.compile(call, fullgraph=True, backend="eager")(Q)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(Q, Q, Q), rtol=2e-2, atol=2e-2)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="scaled_dot_product_attention"):
        traced(call, Q, allowed=("cudnn",))


# ---- tensors without values


@pytest.mark.parametrize("allowed", [None, "triton"])
def test_tensors_without_values_are_neither_timed_nor_asked_for_addresses(
    on_gpu: Any, monkeypatch: Any, allowed: str | None
) -> None:
    pytest.importorskip("triton")
    monkeypatch.undo()
    for module, name, value in (
        (devices, "_capability", lambda device: (9, 0)),
        (clock.TorchClock, "device_name", lambda self: "NVIDIA H100"),
        (clock.TorchClock, "run_of", None),
    ):
        monkeypatch.setattr(module, name, value)
    with FakeTensorMode(), attention_backend(allowed) if allowed else nullcontext():
        q = torch.empty(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
        found = attention(q, q, q, layout="bhsd", causal=True)
    assert (found.shape, found.dtype, found.is_cuda) == (q.shape, q.dtype, True)
