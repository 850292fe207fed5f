"""Values are read where nobody traces the call, and nothing read is kept: what was decided would hold for others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from einops_fast import attention, nn, ops
from einops_fast.errors import OperandError

PATTERN = "b h i d, b h j d, b h j e -> b h i e"
LOWEST = torch.finfo(torch.float32).min

SEEN = torch.ones(2, 1, 1, 6, dtype=torch.bool)
SOME = SEEN.clone()
SOME[0, ..., 3:] = False
WIDE = torch.ones(2, 1, 1, 128, dtype=torch.bool)
FEW = WIDE.clone()
FEW[0, ..., 50:] = FEW[1] = False


def added(mask: Any, lowest: float = LOWEST) -> Any:
    return torch.zeros(mask.shape).masked_fill(~mask, lowest)


def attended(name: str, **options: Any) -> Callable[..., Any]:
    def call(x: Any, mask: Any) -> Any:
        found = attention(PATTERN, x, x, x, **{name: mask}, **options)
        return found[1] if isinstance(found, tuple) else found

    return call


def module(kind: Any) -> Callable[..., Any]:
    attend = kind(32, 4).eval().requires_grad_(False)
    return lambda x, mask: attend(x, attention_mask=mask)[0]


HIDDEN, HEADS, SCORES = (2, 6, 32), (2, 4, 6, 8), (2, 4, 128, 128)

CASES = {
    "bert": (module(nn.BertSelfAttention), HIDDEN, SEEN, SOME),
    "bert, numbers": (module(nn.BertSelfAttention), HIDDEN, added(SEEN), added(SOME)),
    "gpt": (module(nn.GPTAttention), HIDDEN, SEEN, SOME),
    "qkv": (lambda x, mask: ops.qkv_self_attention(x, 4, torch.ones(96, 32) / 9, attn_mask=mask), HIDDEN, SEEN, SOME),
    "mask": (attended("mask"), HEADS, SEEN, SOME),
    "bias": (attended("bias"), HEADS, added(SEEN), added(SOME)),
    "log": (attended("mask", return_lse=True), HEADS, SEEN, SOME & SOME[:1]),
    "sinks": (attended("sinks"), HEADS, torch.zeros(2, 4), torch.arange(8.0).view(2, 4)),
    "segments": (attended("segment_ids"), HEADS, torch.zeros(2, 6).int(), torch.arange(12).int().view(2, 6) // 3),
    "cache": (attended("cache_seqlens"), HEADS, torch.tensor([6, 6]), torch.tensor([3, 0])),
    "softmax": (lambda x, mask: ops.softmax(x, mask=mask), SCORES, WIDE, FEW),
    "softmax, numbers": (lambda x, mask: ops.softmax(x, mask=mask), SCORES, added(WIDE), added(FEW, -torch.inf)),
    "log_softmax": (lambda x, mask: ops.log_softmax(x, mask=mask, causal=True), SCORES, WIDE, FEW),
    "log_softmax, numbers": (lambda x, m: ops.log_softmax(x, mask=m), SCORES, added(WIDE), added(FEW, -torch.inf)),
    "cross_entropy": (lambda x, y: ops.cross_entropy(x, y), (2, 9), torch.zeros(2).long(), SOME[0, 0, 0, 2:4] * 3),
}  # fmt: skip


class Module(torch.nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Any, mask: Any) -> Any:
        return self.call(x, mask)


def by_jit(call: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = torch.jit.trace(call, arguments, check_trace=False)
    return found


TRACERS: dict[str, Callable[..., Callable[..., Any]]] = {
    "jit": by_jit,
    "make_fx": lambda call, *arguments: make_fx(call)(*arguments),
    "pre_dispatch": lambda call, *arguments: make_fx(call, pre_dispatch=True)(*arguments),
    "export": lambda call, *arguments: torch.export.export(Module(call), arguments, strict=False).module(),
    "compile": lambda call, *arguments: torch.compile(call, backend="eager", fullgraph=True),
    "vmap": lambda call, *arguments: lambda *others: torch.vmap(call)(*[each[None] for each in others])[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_traced_holds_for_other_values(case: str, tracer: str) -> None:
    call, shape, before, after = CASES[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = call(x, after)
    call(x, before)  # what an earlier call found out is no excuse
    torch._dynamo.reset()
    traced = TRACERS[tracer](call, x, before)
    traced(x, before)
    torch.testing.assert_close(traced(x, after), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_jit_records_logarithms_that_have_gradients() -> None:
    call, shape, before, after = CASES["log"]
    x = torch.randn(shape, requires_grad=True)
    torch.testing.assert_close(by_jit(call, x, before)(x, after), call(x, after))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [{}, {"max_seqlen_q": 4}])
def test_lengths_of_packed_sequences_are_not_recorded(given: dict[str, int]) -> None:
    x = torch.randn(8, 2, 4)

    def call(x: Any, ends: Any) -> Any:
        return attention(x, x, x, layout="thd", cu_seqlens_q=ends, **given)

    with pytest.raises(OperandError, match="no single graph can depend on" if given else "give max_seqlen_q"):
        by_jit(call, x, torch.tensor([0, 4, 8]))


def by_numpy(mask: Any) -> Any:
    return mask.numpy()


def by_memory(mask: Any) -> Any:
    return np.frombuffer(mask.numpy().data, dtype=mask.numpy().dtype).reshape(mask.shape)


WAYS_AROUND = {
    "numpy": by_numpy,
    "buffer": by_memory,
    "data": lambda mask: mask.data,
    "detached": lambda mask: mask.detach(),
    "dlpack": lambda mask: torch.from_dlpack(mask),
    "set": lambda mask: torch.empty(0, dtype=mask.dtype).set_(mask.untyped_storage(), 0, mask.shape, mask.stride()),
}


@pytest.mark.parametrize("way", WAYS_AROUND)
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("kind", [nn.BertSelfAttention, nn.GPTAttention])
def test_a_mask_that_changes_behind_torch(kind: Any, numbers: bool, way: str) -> None:
    call, x = module(kind), torch.randn(HIDDEN)
    mask = SEEN.expand(2, 1, 6, 6).contiguous()
    mask = added(mask) if numbers else mask
    memory = WAYS_AROUND[way](mask)
    call(x, mask)
    memory[..., 3:] = LOWEST if numbers else False
    torch.testing.assert_close(call(x, mask), call(x, mask.clone()), rtol=0, atol=0)
    assert not torch.equal(call(x, mask), call(x, added(SEEN) if numbers else SEEN))


@pytest.mark.parametrize("way", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_optimized_models_and_masks_that_change(kind: str, way: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 23}
    config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation=way, bos_token_id=0, eos_token_id=0)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    memory = np.zeros((2, 1, 6, 6), np.float32)
    mask, tokens = torch.from_numpy(memory), torch.arange(12).view(2, 6)

    def run() -> Any:
        model.zero_grad()
        found = model(tokens, attention_mask=mask).last_hidden_state
        found.square().sum().backward()
        return found.detach(), next(each.grad.clone() for each in model.parameters())

    expected = [run()]
    memory[0, ..., 3:], memory[1, :, :2] = LOWEST, LOWEST  # the second leaves queries without any key
    expected.append(run())
    nn.optimize(model)
    for hidden in (False, True):
        memory[:] = 0
        if hidden:
            memory[0, ..., 3:], memory[1, :, :2] = LOWEST, LOWEST
        found = run()
        # Eager attention's gradients of queries without any key are kept, too.
        count = 2 if way == "eager" else 1
        torch.testing.assert_close(found[:count], expected[hidden][:count], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_an_optimized_model_that_jit_traces() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 23}
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval().requires_grad_(False)
    nn.optimize(model)
    tokens, every = torch.arange(12).view(2, 6), torch.ones(2, 6, dtype=torch.long)
    some = every.clone()
    some[0, 3:] = 0
    traced = by_jit(lambda mask: model(tokens, attention_mask=mask).last_hidden_state, every)
    expected = model(tokens, attention_mask=some).last_hidden_state
    torch.testing.assert_close(traced(some), expected, rtol=1e-4, atol=1e-4)
