"""How torch.compile goes through a call of attention: the plan isn't traced where all sizes are known."""

from typing import Any

import pytest
import torch

from einops_fast import attention, attention_backend, scaled_dot_product_attention
from einops_fast.attention import attend as attend_module
from einops_fast.attention import registry
from einops_fast.attention.registry import Implementation, allowed_names, register_implementation
from einops_fast.attention.traced import may_be_known

pytestmark = pytest.mark.skipif(not may_be_known(), reason="this torch traces the plan")

Q, KV = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 2, 8)

CALLS: dict[str, Any] = {
    "layout": lambda q, kv: attention(q, q, q, layout="bshd"),
    "gradients": lambda q, kv: attention(q, kv, kv, layout="bshd", causal="bottom_right"),
    "mask": lambda q, kv: attention(q, kv, kv, layout="bshd", mask=("i j", torch.ones(5, 7) > 0), window=[2, None]),
    "lse": lambda q, kv: attention(q, kv, kv, layout="bshd", return_lse=True, scale=0.5),
    "segments": lambda q, kv: attention(q, q, q, layout="bshd", segment_ids=torch.arange(10).reshape(2, 5) // 2),
    "packed": lambda q, kv: attention(torch.stack([q, q, q], 2), layout="bs3hd", sinks=torch.ones(4)),
    "cache": lambda q, kv: attention(q, kv, kv, layout="bshd", cache_seqlens=torch.tensor([7, 6]), causal=True),
    "drop-in": lambda q, kv: scaled_dot_product_attention(*[x.transpose(1, 2) for x in (q, kv, kv)], enable_gqa=True),
}


class Compiled:
    """What is compiled, and the graphs that there were."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.graphs: list[Any] = []
        torch.compiler.reset()
        self._function = torch.compile(function, fullgraph=True, backend=self._keep, **options)

    def _keep(self, graph: Any, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward

    def __call__(self, *operands: Any) -> Any:
        return self._function(*operands)


def self_attention(q: Any) -> Any:
    return attention(q, q, q, layout="bshd")


@pytest.mark.parametrize("name", CALLS)
def test_no_plan_is_traced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q = Q.clone().requires_grad_(name == "gradients")
    expected = CALLS[name](q, KV)
    monkeypatch.setattr(attend_module, "plan_of", None)
    compiled = Compiled(CALLS[name])
    torch.testing.assert_close(compiled(q, KV), expected)
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("options", [{"dynamic": True}, {}])
def test_symbolic_sizes_stay_symbols(options: dict[str, Any]) -> None:
    self_attention(Q)  # the first call of all changes what others see
    compiled = Compiled(self_attention, **options)
    for length in (5, 6, 7, 9):
        q = torch.randn(2, length, 3, 8)
        if not options:
            torch._dynamo.mark_dynamic(q, 1)
        torch.testing.assert_close(compiled(q), self_attention(q))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("option", [lambda size: {"window": size}, lambda size: {"scale": size**-1.0}])
def test_options_may_be_symbols(option: Any) -> None:
    def call(q: Any, other: Any) -> Any:
        return attention(q, q, q, layout="bshd", **option(other.shape[0]))

    compiled = Compiled(call)
    for length in (3, 4, 5, 6):
        other = torch.ones(length)
        torch._dynamo.mark_dynamic(other, 0)
        torch.testing.assert_close(compiled(Q, other), call(Q, other))


@pytest.mark.parametrize("option", ["scale", "window"])
def test_a_number_that_changes_is_heeded(option: str) -> None:
    compiled = Compiled(lambda q, number: attention(q, q, q, layout="bshd", **{option: number}))
    for number in (1, 2, 3) if option == "window" else (0.5, 0.25, 2.0):
        torch.testing.assert_close(compiled(Q, number), attention(Q, Q, Q, layout="bshd", **{option: number}))


def test_what_a_plan_depends_on_is_guarded() -> None:
    self_attention(Q)
    compiled = Compiled(self_attention, dynamic=False)
    others = [
        Q,
        torch.randn(2, 6, 4, 8),
        torch.randn(2, 4, 5, 8).transpose(1, 2),
        Q.double(),
        Q.clone().requires_grad_(),
    ]
    for _ in range(2):
        for q in others:
            torch.testing.assert_close(compiled(q), self_attention(q))
    assert len(compiled.graphs) == len(others)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(Q).dtype == torch.bfloat16
    assert len(compiled.graphs) == len(others) + 1


def test_a_later_implementation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spy(Implementation):
        name = "spy"

        def lacks(self, spec: Any) -> None:
            return None

        def run(self, spec: Any, inputs: Any) -> tuple[Any, Any]:
            return inputs.q * (spec.group + len(spec.window) + spec.flops * spec.scale * 0), None

    entries, made = dict(registry._entries), dict(registry._made)
    monkeypatch.setattr(registry, "_entries", entries)
    monkeypatch.setattr(registry, "_made", made)
    register_implementation("spy", "torch", Spy)
    with attention_backend("spy"):
        torch.testing.assert_close(Compiled(self_attention)(Q), 3 * Q)
    compiled = Compiled(self_attention)
    compiled(Q)
    register_implementation("cpu", "torch", Spy)
    torch.testing.assert_close(compiled(Q), 3 * Q)


def test_a_wrong_call_is_told_as_ever() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match="k has dtype float64, but q has float32"):
        Compiled(lambda q: attention(q, q.double(), q, layout="bshd"))(Q)

    def call(q: Any) -> Any:
        try:
            return attention(q, q.double(), q, layout="bshd")
        except ValueError:
            return q + 1

    torch.testing.assert_close(Compiled(call)(Q), Q + 1)


def test_a_block_inside_what_is_compiled_counts_there_alone(torch):
    q = torch.ones(2, 5, 3, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def inner(q):
        before = attention(q, q, q, layout="bshd")
        with attention_backend("math"):
            with attention_backend("cpu"):
                by_torch = attention(q, q, q, layout="bshd")
            by_math = attention(q, q, q, layout="bshd")
        return before + by_torch + by_math

    def stops(q):
        with attention_backend("math"):
            torch._dynamo.graph_break()
            return attention(q, q, q, layout="bshd")

    expected = 3 * attention(q, q, q, layout="bshd")
    for outside, by_torch in (("cpu", 2), ("math", 1)):
        torch.compiler.reset()
        with attention_backend(outside):
            found = torch.compile(inner, fullgraph=True, backend=backend)(q)
            assert allowed_names() == (outside,)
        torch.testing.assert_close(found, expected)
        assert graphs.pop().count("= torch._C._nn.scaled_dot_product_attention") == by_torch
    # What stops in the middle of a block leaves nothing behind.
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(stops, fullgraph=True, backend=backend)(q)
    assert allowed_names() is None
    torch.compile(lambda q: attention(q, q, q, layout="bshd"), fullgraph=True, backend=backend)(q)
    assert "scaled_dot_product_attention" in graphs.pop()
    torch.testing.assert_close(torch.compile(stops, backend=backend)(q), expected / 3)
    with pytest.raises(Exception, match="no implementation of attention is called 'five'"):
        torch.compile(lambda q: with_backend("five", q), backend=backend)(q)


def with_backend(name, q):
    with attention_backend(name):
        return attention(q, q, q, layout="bshd")
